"""Grading from every kind of thread and process, and what no pair of answers can do to it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from answers_cases import TOWERS
from answers_grading import Judge, grade
from host_processes import descendants, living, until
from scripted_runs import Adding, Scripted, pool_of

import miles_agents as ma
from miles_agents.answers import AnswerPolicy, Grader, GraderLimits, answer_reward, equivalent, equivalent_async
from miles_agents.contracts import Draw
from miles_agents.errors import FailureCause

HALF = (r"\frac{1}{2}", "0.5")
TRIGONOMETRY = (r"\sin^2 x + \cos^2 x", "1")  # needs a worker
HANGS = (r"\prod_{k=1}^{3000}(x+k)", r"\sin x")  # minutes of expanding
HUNGRY = ("(a+b+c+d)^{60}", "(a^2+b^2+c^2+d^2+2ab+2ac+2ad+2bc+2bd+2cd)^{30}")  # equal; 39,711 terms when expanded


@pytest.fixture
def grader() -> Iterator[Grader]:
    made = Grader(GraderLimits(time_s=1.0, workers=2))
    yield made
    made.close()


def alive(pids: list[int]) -> list[int]:
    return sorted(set(pids) & living())


def workers_of(pid: int) -> list[int]:
    """Those whose command line says so; a process that just began has another one."""
    return [
        child
        for child in descendants(pid)
        if b"answers.worker" in (Path("/proc") / str(child) / "cmdline").read_bytes()
    ]


def cpu_seconds(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- A03: the same verdict everywhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", [HALF, TRIGONOMETRY], ids=["exact", "by a worker"])
def test_A03_graded_alike_in_the_main_thread_and_in_threads(pair: tuple[str, str]) -> None:
    assert equivalent(*pair).correct is True
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: equivalent(*pair).correct, range(8)))
    assert found == [True] * 8


@pytest.mark.parametrize("pair", [HALF, TRIGONOMETRY], ids=["exact", "by a worker"])
async def test_A03_graded_alike_on_an_event_loop(pair: tuple[str, str]) -> None:
    assert (await asyncio.to_thread(equivalent, *pair)).correct is True
    assert (await equivalent_async(*pair)).correct is True
    assert await answer_reward(rf"\boxed{{{pair[1]}}}", pair[0]) == 1.0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_A03_graded_alike_in_another_process(method: str) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as processes:
        assert processes.submit(grade, *HALF).result(60) is True
        assert processes.submit(grade, *TRIGONOMETRY).result(60) is True


def test_A03_a_forked_process_starts_workers_of_its_own() -> None:
    code = (
        "import os, sys\n"
        "from miles_agents.answers import equivalent\n"
        f"pair = {TRIGONOMETRY!r}\n"
        "assert equivalent(*pair).correct is True\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if equivalent(*pair).correct is True else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert equivalent(*pair).correct is True\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray here: pip install 'miles-agents[ray]'")
def test_A03_graded_alike_in_a_ray_actor_with_concurrency() -> None:
    import ray

    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False)
    try:
        actor = ray.remote(max_concurrency=4)(Judge).remote()
        pairs = [HALF, TRIGONOMETRY] * 4
        assert ray.get([actor.grade.remote(*pair) for pair in pairs], timeout=100) == [True] * 8
    finally:
        ray.shutdown()


class Graded(Adding):
    """Scores by the answer reward."""

    async def reward(self, episode: ma.Episode) -> dict[str, float]:
        """1 for the right sum."""
        return {"answer": await answer_reward(episode.final.content, episode.task.answer)}


async def test_A03_a_grader_that_raises_is_counted_and_its_samples_are_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("signal only works in main thread")

    world = Scripted(lambda request: r"\boxed{2}")
    workers = world.workers(pool_of(Graded), group_size=2)
    draw = Draw(index=0, task=Graded().tasks("train")[1], version=0)
    fine = await workers.play_group(draw)
    monkeypatch.setattr("miles_agents.answers.grader.compare", broken)
    flagged = await workers.play_group(draw)
    for group in (fine, flagged):
        world.ledger.count(group)
    assert [each.reward for each in fine.trajectories] == [1.0, 1.0]
    assert [(each.cause, each.reward) for each in flagged.trajectories] == [(FailureCause.GRADER, None)] * 2
    assert world.ledger.failures["grader"] == 2
    assert equivalent("1", "2").correct is None
    assert "signal only works in main thread" in equivalent("1", "2").reason


# --- A04: nothing hangs, nothing eats the machine ---------------------------------------------------------------------


@pytest.mark.parametrize(("gold", "answer", "equal"), TOWERS)
def test_A04_towers_are_told_apart_without_evaluating_them(gold: str, answer: str, equal: bool) -> None:
    before = resident_bytes()
    started = time.perf_counter()
    assert equivalent(gold, answer).correct is equal
    assert equivalent(answer, gold).correct is equal
    assert time.perf_counter() - started < 1.0  # ~1 ms
    assert resident_bytes() - before < 2**30
    assert equivalent(*HALF).correct is True


async def heartbeat(beats: list[float]) -> None:
    while True:
        beats.append(time.perf_counter())
        await asyncio.sleep(0.02)


async def test_A04_32_towers_and_hanging_pairs_at_once_leave_the_event_loop_and_the_pool_alone(grader: Grader) -> None:
    assert (await grader.grade_async(*TRIGONOMETRY)).correct is True
    beats: list[float] = []
    pulse = asyncio.create_task(heartbeat(beats))
    hanging = [asyncio.create_task(grader.grade_async(*HANGS)) for _ in range(4)]
    towers = await asyncio.gather(*[grader.grade_async(gold, answer) for gold, answer, _ in TOWERS * 8])
    hung = await asyncio.gather(*hanging)
    pulse.cancel()
    assert [each.correct for each in towers] == [equal for _, _, equal in TOWERS * 8]
    assert [(each.correct, each.reason) for each in hung] == [(None, "the time limit was met")] * 4
    assert grader.undecided == {"the time limit was met": 4}
    stalls = [after - before for before, after in itertools.pairwise(beats)]
    assert max(stalls) < 0.2
    assert len(beats) > 50  # two rounds of hanging pairs take at least 2 s
    after = await asyncio.gather(*[grader.grade_async(*TRIGONOMETRY) for _ in range(2)])
    assert [each.correct for each in after] == [True, True]


LABORIOUS = [  # seconds to minutes of exact arithmetic each
    "+".join(f"(x+{k})^{{200}}" for k in range(30)),
    r"\sum_{k=1}^{1000}\sum_{j=1}^{1000} jk",
    r"\sum_{k=1}^{1000} (x+k)^{50}",
    r"\prod_{k=1}^{1000} (x+k)",
]


async def test_A04_laborious_arithmetic_is_left_to_workers_and_never_stalls_the_event_loop(grader: Grader) -> None:
    beats: list[float] = []
    pulse = asyncio.create_task(heartbeat(beats))
    verdicts = await asyncio.gather(*[grader.grade_async("17", answer) for answer in LABORIOUS])
    pulse.cancel()
    assert {each.correct for each in verdicts} <= {False, None}
    assert max(after - before for before, after in itertools.pairwise(beats)) < 0.2


def test_A04_a_hanging_pair_meets_its_limit_and_its_worker_is_gone(grader: Grader) -> None:
    assert grader.grade(*TRIGONOMETRY).correct is True
    [worker] = grader.worker_pids()
    started = time.perf_counter()
    assert grader.grade(*HANGS).correct is None
    assert 1.0 <= time.perf_counter() - started < 2.0
    assert alive([worker]) == []
    assert grader.worker_pids() == []
    assert grader.grade(*TRIGONOMETRY).correct is True
    assert len(grader.worker_pids()) == 1


def test_A04_a_worker_takes_no_more_memory_than_its_limit() -> None:
    grader = Grader(GraderLimits(time_s=60.0, memory_mb=16, workers=1))
    try:
        verdict = grader.grade(*HUNGRY)
        assert verdict.correct is None
        assert verdict.reason == "the memory limit was met"
        assert grader.grade(r"\sin(2x)", r"2 \sin x \cos x").correct is True
    finally:
        grader.close()


def test_a_killed_worker_costs_one_verdict_at_most(grader: Grader) -> None:
    assert grader.grade(*TRIGONOMETRY).correct is True
    os.kill(grader.worker_pids()[0], signal.SIGKILL)
    verdict = grader.grade(*TRIGONOMETRY)
    assert verdict.correct is True or "worker" in verdict.reason
    assert grader.grade(*TRIGONOMETRY).correct is True


def test_closing_leaves_no_process_and_grading_goes_on_afterwards(grader: Grader) -> None:
    assert grader.grade(*TRIGONOMETRY).correct is True
    pids = grader.worker_pids()
    grader.close()
    assert alive(pids) == []
    assert grader.grade(*TRIGONOMETRY).correct is True


def gone(pids: list[int], within_s: float = 10.0) -> bool:
    """Whether all processes end in time."""
    deadline = time.monotonic() + within_s
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            with os.fdopen(descriptor):
                select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    return alive(pids) == []


START = "from miles_agents.answers import equivalent; equivalent(*{pair!r}); print('done', flush=True); {then}"


@pytest.mark.parametrize("then", ["", "input()"], ids=["that ends", "that is killed"])
def test_workers_end_with_their_process(then: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", START.format(pair=TRIGONOMETRY, then=then or "input()")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        pids = workers_of(process.pid)
        assert len(pids) == 2  # the warm process and the worker it forked
        if then:
            process.kill()
        else:
            process.stdin.write(b"\n")
            process.stdin.close()
        process.wait(30)
    assert gone(pids)


async def test_a_busy_worker_dies_with_its_process_in_the_middle_of_a_computation() -> None:
    code = f"from miles_agents.answers import Grader, GraderLimits\nGrader(GraderLimits(time_s=90)).grade(*{HANGS!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:

        def busy() -> bool:
            found = workers_of(process.pid)
            return len(found) == 2 and cpu_seconds(max(found)) > 0.3

        assert await until(busy, within_s=60)
        pids = workers_of(process.pid)
    finally:
        process.kill()
        process.wait()
    assert gone(pids)


def test_a_worker_is_started_only_when_it_is_needed() -> None:
    code = (
        "import sys\nfrom miles_agents.answers import default_grader, equivalent\n"
        "assert equivalent('1/2', '0.5').correct is True\n"
        "assert default_grader().worker_pids() == []\n"
        "assert 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_long_answers_are_graded_by_workers_and_far_too_long_ones_are_undecided(grader: Grader) -> None:
    ones = "+".join(["1"] * 1500)
    assert grader.grade("1500", ones).correct is True
    assert grader.grade("1501", ones).correct is False
    assert grader.grade("7", "no " * 5_000).correct is False
    assert grader.grade("7", "7" * 200_001).correct is None
    assert grader.grade("7", "(" * 500 + "7" + ")" * 500).correct is None
    assert grader.grade("7", "(" * 500).correct is False  # unfinished
    assert grader.grade("7", None).correct is False


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="time_s=0: it must be above 0"):
        GraderLimits(time_s=0)
    assert equivalent("35%", "35", policy=AnswerPolicy(percent_asked=True)).correct is True
