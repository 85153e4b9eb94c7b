"""What hostile code tries: the shipped suite over every launcher, and that the suite notices what gets through."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from sandbox_backends import BACKENDS, running

from miles_agents.checks import abuse
from miles_agents.checks.abuse import Bait, Outcome, Run
from miles_agents.contracts import ExecResult, ExecStatus, Language, SandboxProvider
from miles_agents.tools.sandboxes import ScriptedSandboxes

CASES = {case.name: case for case in abuse.CASES}


@pytest_asyncio.fixture(params=BACKENDS, scope="module", loop_scope="module")
async def provider(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_SECRET", "hunter2")
        async with running(request.param, request, limits=abuse.LIMITS, pool_size=1) as started:
            yield started


@pytest.fixture(scope="module")
def bait():
    with Bait() as laid:
        yield laid


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_hostile_code_gets_nowhere(provider: SandboxProvider, bait: Bait, name: str) -> None:
    assert await abuse.play(CASES[name], provider, bait) == []


# --- the suite itself -------------------------------------------------------------------------------------------------


def test_there_are_more_than_a_hundred_cases_and_each_says_what_must_hold():
    assert len(CASES) == len(abuse.CASES) > 100
    assert all(case.must and not case.must.endswith(".") and case.steps for case in abuse.CASES)


def test_a_shell_tries_the_same_kinds_of_things():
    assert sum(Language.SHELL in case.languages for case in abuse.CASES) >= 20


GOT_THROUGH = (
    ExecResult(status=ExecStatus.OK, stdout='["got through"]\n', exit_code=0),
    ExecResult(status=ExecStatus.OK, stdout="", exit_code=0),
    ExecResult(status=ExecStatus.OK, stdout="4\n", exit_code=0, duration_s=25),
    ExecResult(status=ExecStatus.OK, stdout="400000000\n", exit_code=0),
    ExecResult(status=ExecStatus.OK, stdout='{"HOST_SECRET": "hunter2"}\n', exit_code=0),
    ExecResult(status=ExecStatus.TIMEOUT),
)


@pytest.mark.parametrize("name", CASES)
def test_a_case_does_not_hold_whatever_its_calls_give(name: str, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    case = CASES[name]
    outcomes = [
        Outcome(results=tuple(seen if isinstance(step, Run) else b"secret" for step in case.steps))
        for seen in GOT_THROUGH
    ]
    assert not all(_holds(case, outcome) for outcome in outcomes)


def _holds(case: abuse.AbuseCase, outcome: Outcome) -> bool:
    try:
        return case.holds(outcome)
    except ValueError:  # the output is no number, no JSON
        return False


async def test_everything_that_a_useless_sandbox_lets_through_is_found():
    said = "/etc/shadow\n"
    async with ScriptedSandboxes(lambda code: ExecResult(status=ExecStatus.OK, stdout=said)) as provider:
        findings = await abuse.check_abuse(provider)
    found = {finding.partition(":")[0] for finding in findings}
    assert found == set(CASES)


async def test_languages_that_a_sandbox_does_not_run_are_left_out():
    asked = []

    def answer(code: str) -> ExecResult:
        asked.append(code)
        return ExecResult(status=ExecStatus.OK)

    async with ScriptedSandboxes(answer) as provider:
        await abuse.check_abuse(provider, languages=[Language.PYTHON])
    shell_code = {step.code for case in abuse.CASES for step in case.steps if getattr(step, "language", "") == "shell"}
    assert shell_code.isdisjoint(asked)


def touch_tcp(bait: Bait) -> None:
    socket.create_connection(("127.0.0.1", int(bait.words("")["@tcp@"]))).close()


def touch_udp(bait: Bait) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("127.0.0.1", int(bait.words("")["@udp@"])))


def touch_abstract(bait: Bait) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + bait.words("")["@abstract@"])


def touch_path(bait: Bait) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(bait.words("")["@socket@"])


def touch_canary(bait: Bait) -> None:
    Path(bait.words("")["@canary@"]).write_text("eaten")


@pytest.mark.parametrize("touch", [touch_tcp, touch_udp, touch_abstract, touch_path, touch_canary])
def test_bait_that_is_touched_is_noticed_once(touch):
    with Bait() as bait:
        assert bait.touched() == []
        touch(bait)
        assert len(bait.touched()) == 1
        assert bait.touched() == []


async def test_processes_that_are_left_are_found_by_name_and_by_arguments(monkeypatch):
    monkeypatch.setattr("miles_agents.checks.abuse.bait._GONE_S", 0.2)
    named = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'abusename', 0, 0, 0); print(flush=True); time.sleep(60)"
    command = [sys.executable, "-c", named, "abuseargument"]
    child = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    with Bait() as bait, child:
        await asyncio.to_thread(child.stdout.readline)
        assert await bait.left_processes("abusename") == [child.pid]
        assert await bait.left_processes("abuseargument") == [child.pid]
        assert await bait.left_processes("abusenobody") == []
        child.kill()


async def test_a_host_that_stands_still_is_a_finding(monkeypatch):
    import time

    monkeypatch.setattr("miles_agents.checks.abuse.suite._LAG_S", 0.2)

    def blocks(code: str) -> ExecResult:
        time.sleep(0.5)
        return ExecResult(status=ExecStatus.OK, stdout="[]\n")

    async with ScriptedSandboxes(blocks) as provider:
        with Bait() as bait:
            findings = await abuse.play(CASES["mounts"], provider, bait)
    assert any("stood still" in each for each in findings)


def test_bait_is_open_to_everyone_and_taken_away():
    with Bait() as bait:
        words = bait.words("me")
        canary = Path(words["@canary@"])
        assert canary.read_text() == words["@secret@"]
        assert canary.stat().st_mode & 0o666 == 0o666
        assert canary.parent.stat().st_mode & 0o755 == 0o755
    assert not canary.parent.exists()
