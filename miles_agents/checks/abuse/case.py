"""One abuse case: steps, and what must hold after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from miles_agents.contracts import ExecResult, ExecStatus, Language, SandboxLimits

LIMITS = SandboxLimits(memory_mb=128, tmp_mb=16, file_mb=8, processes=16)  # of the sessions; small, so that cases end
CALL_S = 30.0  # of ordinary calls: generous, so that a busy machine changes nothing
SHORT_S = 0.5  # of calls that never end by themselves
LATE_S = 10.0  # a call must end so soon after its limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run code. `@canary@` and its like in the code are filled in, see `Bait.words`."""

    code: str
    language: Language = Language.PYTHON
    timeout_s: float = CALL_S
    session: int = 0  # 1 is a neighbour


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """Read a file of the session through the contract."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Write a file of the session through the contract."""

    path: str
    data: bytes = b"overwritten"


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Do nothing for a while: what the code left running has its chance."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Connect from this side to an abstract socket name."""

    name: str


Step = Run | ReadFile | WriteFile | Reset | Pause | Dial


class After(StrEnum):
    """What the session must do once the case is over."""

    SERVES = "serves"  # the next call, in both languages
    SERVES_AFTER_RESET = "serves_after_reset"  # the code may leave its own interpreter unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the steps gave, in their order: an `ExecResult`, bytes, None, or the OSError that was raised."""

    results: tuple[ExecResult | bytes | OSError | None, ...]

    @property
    def runs(self) -> tuple[ExecResult, ...]:
        """The results of `Run` steps."""
        return tuple(each for each in self.results if isinstance(each, ExecResult))

    @property
    def last(self) -> ExecResult:
        """The result of the last `Run`."""
        return self.runs[-1]


Holds = Callable[[Outcome], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbuseCase:
    """Steps of an attack.

    Whatever `holds` says, no bait may be touched, no process named `@marker@` may be left after the steps, and the
    event loop must go on meanwhile.
    """

    name: str
    must: str  # what must hold, in a sentence
    steps: tuple[Step, ...]
    holds: Holds
    after: After = After.SERVES

    @property
    def languages(self) -> set[Language]:
        """What a sandbox must run for this case."""
        return {step.language for step in self.steps if isinstance(step, Run)}


def python(*cells: str, timeout_s: float = CALL_S) -> tuple[Step, ...]:
    """Calls one after the other."""
    return tuple(Run(code=cell.strip("\n"), timeout_s=timeout_s) for cell in cells)


def shell(*commands: str, timeout_s: float = CALL_S) -> tuple[Step, ...]:
    """Commands one after the other."""
    return tuple(Run(code=each.strip("\n"), language=Language.SHELL, timeout_s=timeout_s) for each in commands)


def prints(text: str) -> Holds:
    """The last call is fine and prints just this."""
    return lambda outcome: outcome.last.status is ExecStatus.OK and outcome.last.stdout == text


def ends(*statuses: ExecStatus) -> Holds:
    """The last call ends in one of these ways."""
    return lambda outcome: outcome.last.status in statuses


def fails(error: str) -> Holds:
    """The last call is an error of this name."""
    return lambda outcome: outcome.last.status is ExecStatus.ERROR and error in outcome.last.stderr


def first(holds: Holds) -> Holds:
    """The same of the first call."""
    return lambda outcome: holds(Outcome(results=outcome.runs[:1]))


def both(*holds: Holds) -> Holds:
    """All of these."""
    return lambda outcome: all(each(outcome) for each in holds)


def refuses_files(outcome: Outcome) -> bool:
    """Every step but the runs raised."""
    others = [each for each in outcome.results if not isinstance(each, ExecResult)]
    return bool(others) and all(isinstance(each, OSError) for each in others)


# What got through is named in a list, which must be empty. `attempt` takes a call that must fail, `door` a system call
# that must be refused for what it is (permission, or no such call), not for its arguments.
ATTEMPT = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
seen = []
def attempt(name, call, *arguments):
    try:
        if call(*arguments) in (-1, b"", ""):
            return
    except Exception:
        return
    seen.append(name)
def door(name, x86_64, aarch64, *arguments):
    number = x86_64 if os.uname().machine == "x86_64" else aarch64
    if number is None:
        return
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    if result == 0 and name.startswith("clone"):
        os._exit(0)
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        seen.append((name, result, ctypes.get_errno()))
"""
NOTHING_SEEN = prints("[]\n")
