"""The sandbox benchmark's own arithmetic, and a quick look at whether it still fits the package."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import io
import json
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import event_loop, peers
from benchmarks.event_loop import CallbackClock
from benchmarks.peer_process import PeerProcess
from benchmarks.sandbox_rounds import IMPORTS, LIBRARIES, PLAIN, WORKS, Plan, Round, UnavailableError, measure_round
from benchmarks.sandbox_subjects import Namespace
from benchmarks.sandboxes import Absent, Here, Target, as_json, compare, percentile, report, targets
from miles_agents.tools.sandboxes.probing import probe, refusal


class _Here:
    """A subject that runs code in this process; `altered` spoils what every session prints."""

    def __init__(self, *, blocking: bool, altered: str = "") -> None:
        self.blocking = blocking
        self.altered = altered
        self.open_now = self.most_open = self.calls = 0
        self.threads: set[int] = set()

    async def start(self) -> str:
        return "in this process"

    async def open(self) -> _Here:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return self

    async def call(self, code: str) -> str:
        self.calls += 1
        self.threads.add(threading.get_ident())
        if not self.blocking:
            await asyncio.sleep(0)
        if "import" not in code:
            return str(eval(code.removeprefix("print"))) + self.altered
        if code == IMPORTS:
            return "True True"
        n = int(re.search(r"arange\((\d+)\)", code)[1])
        return f"(x - {n})*(x - 1) {sum(range(n))}"

    async def close(self) -> None:
        self.open_now -= 1

    async def settle(self) -> None:
        pass

    async def memory(self) -> float:
        return 1000.0 + 50.0 * self.open_now

    async def stop(self) -> None:
        pass


_QUICK = Plan(sessions=(1, 3), starts=2, starts_s=0, calls_s=0, least_calls=4)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_round_opens_calls_weighs_and_closes_sessions(blocking):
    subject = _Here(blocking=blocking)
    found = await measure_round(subject, _QUICK)
    assert (subject.most_open, subject.open_now) == (3, 0)
    assert len(found.starts_s) == 2
    assert found.session_bytes == 50.0
    for work in WORKS:
        assert [len(found.calls[work.name][count].latencies_s) for count in (1, 3)] == [4, 12]
        assert all(each.per_second > 0 for each in found.calls[work.name].values())
    # 3 starts; for each kind of code 1 and 3 sessions that warm up with one call and make 4
    assert subject.calls == 3 + 2 * (1 + 3) * 5
    assert (threading.get_ident() in subject.threads) != blocking
    assert Round.from_plain(json.loads(json.dumps(found.plain()))) == found


async def test_a_call_that_prints_something_else_is_no_measurement():
    subject = _Here(blocking=False, altered="1")
    with pytest.raises(RuntimeError, match="and not"):
        await measure_round(subject, _QUICK)
    assert subject.open_now == 0


def test_each_call_has_other_numbers_and_what_it_must_print_is_right():
    sympy = pytest.importorskip("sympy")
    for number in (0, 1, 2, 57, 998):
        code, printed = PLAIN.call(number)
        assert str(eval(code.removeprefix("print"))) == printed
        code, printed = LIBRARIES.call(number)
        n = number + 2
        x = sympy.symbols("x")
        assert printed == f"{sympy.factor(x**2 - (n + 1) * x + n)} {sum(range(n))}"
        assert f"x**2 - {n + 1}*x + {n})" in code
    assert len({PLAIN.call(number)[0] for number in range(1000)}) == 1000


async def test_a_subject_that_fails_is_a_row_and_the_others_go_on():
    good, bad = Here(_Here(blocking=False)), Here(_Here(blocking=False, altered="1"))
    measured = {"good": good, "absent": Absent("not here"), "bad": bad}
    entries = await compare(measured, dict.fromkeys(measured, Plan(sessions=(1, 8, 32), calls_s=0)), rounds=2)
    by_name = {entry.name: entry for entry in entries}
    assert len(by_name["good"].rounds) == 2
    assert not by_name["good"].why_not
    assert by_name["absent"].why_not == "not here"
    assert "and not" in by_name["bad"].why_not
    assert not by_name["bad"].rounds
    shown = io.StringIO()
    report(entries, targets(entries), [], Console(file=shown, width=150))
    assert "not measured: absent: not here" in shown.getvalue()
    assert shown.getvalue().count("not measured)") == 5  # targets: neither of this project's launchers took part
    assert json.loads(json.dumps(as_json(entries)))["good"]["plain"]["call_ms"]["count"] == 4


@pytest.mark.parametrize(
    ("found", "at_least", "verdict"),
    [
        (0.2, False, "held"),
        (0.4, False, "MISSED"),
        (0.4, True, "held"),
        (0.2, True, "MISSED"),
        (None, False, "not measured"),
    ],
)
def test_a_target_is_held_or_missed(found, at_least, verdict):
    assert Target("claim", found, 0.3, at_least).verdict == verdict


def test_percentiles_are_values_that_occurred():
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([3.0], 50) == 3.0
    assert percentile([1.0, 2.0], 50) == 1.0


async def test_a_peer_is_measured_in_a_process_of_its_own():
    process = PeerProcess(Path(sys.executable), peers.SUBPROCESS, image="", docker_host="")
    try:
        assert "no isolation" in await process.start()
        found = await process.round(Plan(sessions=(1,), starts=1, starts_s=0, calls_s=0, least_calls=1))
    finally:
        await process.stop()
    assert found.session_bytes is None
    assert all(len(found.calls[work.name][1].latencies_s) == 1 for work in WORKS)


async def test_a_peer_that_is_not_installed_says_so():
    process = PeerProcess(Path(sys.executable), peers.SWE_REX, image="", docker_host="")
    if importlib.util.find_spec("swerex") is None:
        with pytest.raises(UnavailableError, match="swerex"):
            await process.start()
    await process.stop()
    absent = PeerProcess(Path("/nowhere/python"), peers.SWE_REX, image="", docker_host="")
    with pytest.raises(UnavailableError, match="nowhere"):
        await absent.start()
    await absent.stop()


@pytest.mark.sandbox
async def test_sessions_in_namespaces_are_measured():
    if why_not := refusal(probe()):
        pytest.skip(why_not.splitlines()[0])
    subject = Namespace()
    try:
        await subject.start()
        found = await measure_round(subject, _QUICK)
    finally:
        await subject.stop()
    assert found.session_bytes is None or found.session_bytes > 1 << 20  # a worker that has used numpy


def test_the_clock_tells_which_callback_held_the_loop_and_leaves_garbage_collection_out():
    async def computes() -> None:
        await asyncio.sleep(0)
        ended = time.thread_time() + 0.03
        while time.thread_time() < ended:
            pass

    async def collects() -> None:
        junk = [[] for _ in range(300_000)]
        gc.collect()
        del junk

    async def work() -> None:
        clock = CallbackClock()
        with clock.running():
            await asyncio.gather(computes(), asyncio.sleep(0.01))
            assert clock.collection_ms < 30
            await asyncio.create_task(collects())
        found.append(clock)

    found: list[CallbackClock] = []
    asyncio.run(work())
    (clock,) = found
    (longest,) = [took for name, took in clock.longest_ms.items() if "computes" in name or name == "sleep"]
    assert 30 <= longest < 300
    assert clock.collection_ms > 0
    assert asyncio.Handle._run.__name__ == "_run"


@pytest.mark.sandbox
async def test_the_event_loop_is_watched_while_sessions_work():
    if why_not := refusal(probe()):
        pytest.skip(why_not.splitlines()[0])
    namespace, docker = await event_loop.tables("", "no daemon", scale=0.05, sessions=2)
    rows = {row.name: row.value for row in namespace.rows}
    assert docker.notes == ("no daemon",)
    assert 0 < rows["one callback, most CPU"] < 1000
    assert rows["computing calls"] >= 2
    assert {"16 MB files", "large outputs", "opened and closed", "resets", "timeouts"} <= rows.keys()
    assert not asyncio.get_running_loop().get_debug()
