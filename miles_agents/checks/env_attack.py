"""The attack on an environment: every check by itself, without a model, each with what was seen and what to do.

    rows = await attack_env(MyEnv)                           # no tool needs a sandbox
    rows = await attack_env(MyEnv, sandboxes=provider)       # a started provider
    assert not failures(rows), describe_rows(rows)

`python -m miles_agents.environments check NAME` runs it on the command line. An environment may declare
`junk_reward`, the most that an episode without meaning may score where chance earns something (a choice of four:
0.25); otherwise it is 0, or the lower end of `reward_range` if that is more.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import miles_agents
from miles_agents.checks.env_grading import GRADING_CHECKS
from miles_agents.checks.env_repeats import REPEAT_CHECKS
from miles_agents.checks.env_robustness import ROBUSTNESS_CHECKS
from miles_agents.checks.env_row import CheckRow, EnvCheck, Found, NotApplicable, Outcome, Remark
from miles_agents.checks.env_rules import CALL_CHECKS, EPISODE_CHECKS, TASK_CHECKS
from miles_agents.checks.env_subject import AttackSettings, Subject
from miles_agents.checks.env_watch import LoopBlockedError, LoopWatch
from miles_agents.contracts import Env, SandboxProvider
from miles_agents.errors import EpisodeError, UsageError

CHECKS: Sequence[EnvCheck] = (
    *TASK_CHECKS,
    *EPISODE_CHECKS,
    *GRADING_CHECKS,
    *CALL_CHECKS,
    *ROBUSTNESS_CHECKS,
    *REPEAT_CHECKS,
)

FIRST = TASK_CHECKS[0].name  # without tasks nothing can be played

_UNBLOCK = "Blocking code belongs in a plain function (not async: it gets a thread of its own) or in the sandbox."
_LIBRARIES = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
# Where no code of the user's is: "<…>" is no file, and without a separator /usr/lib would be the start of /usr/library.
_OF_OTHERS = ("<", *(f"{path}{os.sep}" for path in (Path(miles_agents.__file__).parent, *_LIBRARIES)))
_END_S = 5.0  # for a check that was cancelled


async def attack_env(
    make: Callable[[], Env],
    *,
    sandboxes: SandboxProvider | None = None,
    settings: AttackSettings | None = None,
    on_row: Callable[[CheckRow], None] | None = None,
) -> list[CheckRow]:
    """Run every check on an environment.

    Args:
        make: a new instance: the class, or a function.
        sandboxes: started; needed where a tool needs a sandbox.
        settings: how it is attacked.
        on_row: is told of each row as soon as it is there.

    Returns:
        One row for each check, in the order of `CHECKS`.

    Raises:
        UsageError: the environment cannot be made ready as it is set up: a setting, its data, a server.
    """
    settings = settings or AttackSettings()
    watch = LoopWatch(settings.patience_s)
    rows: list[CheckRow] = []
    with watch.running():
        subject = Subject(make, sandboxes, settings, watch)
        try:
            await _open(subject)
            attack = _Attack(subject)
            for check in CHECKS:
                rows.append(await attack.row(check))
                if on_row is not None:
                    on_row(rows[-1])
        finally:
            await subject.close()
    return rows


def failures(rows: Sequence[CheckRow]) -> list[CheckRow]:
    """The rows of checks that failed."""
    return [row for row in rows if row.outcome is Outcome.FAILED]


def describe_rows(rows: Sequence[CheckRow]) -> str:
    """The rows as text, one below the other."""
    return "\n".join(describe_row(row) for row in rows)


def describe_row(row: CheckRow) -> str:
    """One row as text: the outcome, what was seen, and what to do."""
    lines = [f"{row.outcome.value:<8} {row.name:<16} {row.seen or row.must}"]
    if row.outcome in (Outcome.FAILED, Outcome.WARNING):
        lines = [f"{row.outcome.value:<8} {row.name:<16} {row.must}", f"{'':<9}seen: {row.seen}"]
        if row.advice:
            lines.append(f"{'':<9}do:   {row.advice}")
    return "\n".join(lines)


async def _open(subject: Subject) -> None:
    try:
        await subject.env.open_shared()
    except UsageError:
        raise
    except EpisodeError as error:
        raise UsageError(str(error)) from error


class _Origin(NamedTuple):
    """Where an error was raised: equal for one fault that several checks meet."""

    kind: str
    file: str
    line: int | None


class _Attack:
    """Runs checks one after the other and makes a row of whatever comes out of each."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._failed: set[str] = set()
        self._stuck = ""  # the check that met something that never ends
        self._raised: dict[_Origin, str] = {}  # → the check that met it first

    async def row(self, check: EnvCheck) -> CheckRow:
        began = time.monotonic()
        self._subject.doing = ""
        outcome, seen, advice = await self._outcome(check)
        if outcome is Outcome.FAILED:
            self._failed.add(check.name)
        await self._subject.tidy()
        if outcome is not Outcome.PASSED:
            self._subject.renew()
        return CheckRow(
            name=check.name,
            must=check.must,
            outcome=outcome,
            seen=seen,
            advice=advice,
            duration_s=time.monotonic() - began,
        )

    async def _outcome(self, check: EnvCheck) -> tuple[Outcome, str, str]:
        missing = [name for name in check.after if name in self._failed]
        if missing:
            return Outcome.SKIPPED, f"cannot be judged before '{missing[0]}' passes", ""
        if self._stuck:
            return Outcome.SKIPPED, f"not tried: what '{self._stuck}' found would hold it up, too", ""
        if check.name != FIRST and not self._subject.tasks:
            return Outcome.SKIPPED, "there is no task to play", ""
        try:
            return Outcome.PASSED, await self._within_deadline(check), ""
        except Found as found:
            return Outcome.FAILED, str(found), found.advice
        except Remark as remark:
            return Outcome.WARNING, str(remark), remark.advice
        except NotApplicable as reason:
            return Outcome.SKIPPED, str(reason), ""
        except (Exception, LoopBlockedError, BaseExceptionGroup, asyncio.CancelledError) as error:  # noqa: BLE001 — seam
            return self._of_error(check, error)

    async def _within_deadline(self, check: EnvCheck) -> str:
        deadline_s = self._subject.settings.deadline_s
        # Waited for from outside: what the environment runs may keep its cancellation to itself.
        running = asyncio.ensure_future(check.body(self._subject))
        try:
            await asyncio.wait({running}, timeout=deadline_s)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running}, timeout=_END_S)
        if running.cancelled() or not running.done():
            self._stuck = check.name
            raise Found(
                f"not over after {deadline_s:g} s{self._where()}", "Give everything that is waited for a deadline."
            )
        return running.result()

    def _of_error(self, check: EnvCheck, error: BaseException) -> tuple[Outcome, str, str]:
        """What a check asserted, or what the environment raised."""
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise error
        if isinstance(error, UsageError) and check.name == FIRST:  # data is not there: no fault of the environment
            raise error
        blocked = _leaf_of(error, LoopBlockedError)
        if blocked is not None:
            self._stuck = check.name
            return Outcome.FAILED, f"{blocked}{self._where()}", _UNBLOCK
        origin = _origin(error)
        if isinstance(error, AssertionError) and Path(origin.file).parent == Path(__file__).parent:
            return Outcome.FAILED, str(error), check.advice
        met = self._raised.setdefault(origin, check.name)
        shown = f"{type(error).__name__}: {error}".strip().rstrip(":")
        if met != check.name:
            return Outcome.SKIPPED, f"cannot be judged: as in '{met}', {shown}", ""
        return Outcome.FAILED, f"it raised {shown}{self._where()}, from {origin.file}:{origin.line}", check.advice

    def _where(self) -> str:
        return f" ({self._subject.doing})" if self._subject.doing else ""


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _leaf_of(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    """The first error of a kind among an error, what it groups and what it came from."""
    seen: set[int] = set()
    queue = [error]
    while queue:
        each = queue.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, kind):
            return each
        queue += [*(each.exceptions if isinstance(each, BaseExceptionGroup) else ()), each.__cause__, each.__context__]
    return None


def _origin(error: BaseException) -> _Origin:
    """Of the first cause of an error."""
    while True:
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__
        if inner is None:
            break
        error = inner
    return _Origin(type(error).__name__, *place_of(error))


def place_of(error: BaseException) -> tuple[str, int | None]:
    """File and line that an error came from: the last one of the user's own, where there is one."""
    if isinstance(error, SyntaxError):
        return error.filename or "?", error.lineno
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if not file.startswith(_OF_OTHERS)]
    return [("?", 0), *frames, *own][-1]
