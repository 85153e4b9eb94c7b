"""Playing the cases against a provider."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from miles_agents.checks.abuse import breaking_out, hoarding, lingering, looking, lying
from miles_agents.checks.abuse.bait import Bait
from miles_agents.checks.abuse.case import (
    LATE_S,
    AbuseCase,
    After,
    Dial,
    Outcome,
    Pause,
    ReadFile,
    Reset,
    Run,
    Step,
    WriteFile,
)
from miles_agents.contracts import ExecResult, ExecStatus, Language, Sandbox, SandboxProvider
from miles_agents.errors import SandboxError

CASES: tuple[AbuseCase, ...] = (
    *looking.CASES,
    *breaking_out.CASES,
    *hoarding.CASES,
    *lingering.CASES,
    *lying.CASES,
)

_SERVE_S = 60.0
_LAG_S = 3.0  # the event loop may stand still so long, on a machine that the attack keeps busy
_LAG_TICK_S = 0.02
_PROOFS = {  # language → a call with its output, to see that a session works; the shell starts a program
    Language.PYTHON: ("6 * 7", "42\n"),
    Language.SHELL: ("echo $((6 * 7)) | cat", "42\n"),
}


async def check_abuse(provider: SandboxProvider, *, languages: Collection[Language] = tuple(Language)) -> list[str]:
    """Play every case; what got through, empty if nothing did.

    Args:
        provider: started, with the limits `LIMITS`.
        languages: what its sessions run; cases that need others are left out.
    """
    findings = []
    with Bait() as bait:
        for case in CASES:
            if case.languages <= set(languages):
                findings += [f"{case.name}: {each}" for each in await play(case, provider, bait, languages=languages)]
    return findings


async def play(
    case: AbuseCase, provider: SandboxProvider, bait: Bait, *, languages: Collection[Language] = tuple(Language)
) -> list[str]:
    """Play one case in a session of its own; what was found wrong.

    Args:
        case: the attack.
        provider: started, with the limits `LIMITS`.
        bait: on this side.
        languages: what the session must serve after the attack.
    """
    marker = f"abuse{secrets.token_hex(4)}"  # 15 characters are the most that the kernel keeps of a name
    findings: list[str] = []
    try:
        async with _watched_loop(findings), AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(await provider.open()) for _ in range(_sessions(case))]
            results = [await _take(step, sessions, bait.words(marker)) for step in case.steps]
            if not _holds(case, Outcome(results=tuple(results))):
                findings.append(f"{case.must}; seen: {results!r}")
            if left := await bait.left_processes(marker):
                findings.append(f"processes of the call are left: {left}")
            findings += bait.touched()
            findings += await _after(case, sessions[0], languages)
    except (SandboxError, OSError) as error:
        findings.append(f"{case.must}; seen: {type(error).__name__}: {error}")
    return findings


def _holds(case: AbuseCase, outcome: Outcome) -> bool:
    try:
        return case.holds(outcome)
    except ValueError:  # what was printed is not even of the right kind
        return False


def _sessions(case: AbuseCase) -> int:
    return 1 + max((step.session for step in case.steps if isinstance(step, Run)), default=0)


async def _take(step: Step, sessions: list[Sandbox], words: dict[str, str]) -> ExecResult | bytes | OSError | None:
    """One step. A SandboxError is no result: no code may end its session."""
    try:
        match step:
            case Run():
                return await _run(step, sessions[step.session], words)
            case ReadFile():
                return await sessions[0].read_file(_filled(step.path, words))
            case WriteFile():
                await sessions[0].write_file(_filled(step.path, words), step.data)
            case Reset():
                await sessions[0].reset()
            case Pause():
                await asyncio.sleep(step.seconds)
            case Dial():
                _dial(_filled(step.name, words))
    except OSError as error:
        return error
    return None


async def _run(step: Run, sandbox: Sandbox, words: dict[str, str]) -> ExecResult:
    started = time.monotonic()
    result = await sandbox.exec(_filled(step.code, words), timeout_s=step.timeout_s, language=step.language)
    late_s = time.monotonic() - started - step.timeout_s
    if late_s > LATE_S:
        raise SandboxError(f"a call ended {late_s:.1f} s after its limit: {result!r}")
    return result


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _dial(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        client.connect(f"\0{name}")


async def _after(case: AbuseCase, sandbox: Sandbox, languages: Collection[Language]) -> list[str]:
    findings = []
    if case.after is After.SERVES_AFTER_RESET:
        await sandbox.reset()
    for language in languages:
        code, expected = _PROOFS[language]
        result = await sandbox.exec(code, timeout_s=_SERVE_S, language=language)
        if result.status is not ExecStatus.OK or result.stdout != expected:
            findings.append(f"the session must serve the next {language} call; seen: {result!r}")
    return findings


@asynccontextmanager
async def _watched_loop(findings: list[str]) -> AsyncIterator[None]:
    """Note when the event loop stands still for long."""
    watch = asyncio.ensure_future(_worst_lag_s())
    await asyncio.sleep(0)  # it begins
    try:
        yield
    finally:
        watch.cancel()
        worst_s = (await asyncio.gather(watch, return_exceptions=True))[0]
        if isinstance(worst_s, float) and worst_s > _LAG_S:
            findings.append(f"the event loop stood still for {worst_s:.1f} s")


async def _worst_lag_s() -> float:
    worst = 0.0
    while True:
        started = time.monotonic()
        try:
            await asyncio.sleep(_LAG_TICK_S)
        except asyncio.CancelledError:
            return max(worst, time.monotonic() - started - _LAG_TICK_S)
        worst = max(worst, time.monotonic() - started - _LAG_TICK_S)
