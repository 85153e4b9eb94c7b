"""What the sandbox benchmark asks of everything it compares, and one round of measuring it.

Standard library only: it also runs in the virtual environment of the peers, which has nothing of this project.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

IMPORTS = "import numpy, sympy; print(numpy.pi > 3, sympy.pi > 3)"
_OPENING_AT_ONCE = 4
_LEAST_STARTS = 3


class UnavailableError(Exception):
    """A subject cannot be measured here; the message is what its row says."""


class Work(NamedTuple):
    """Code to call, with another number each time so that nothing answers from a cache."""

    name: str
    code: str
    printed: str

    def call(self, number: int) -> tuple[str, str]:
        """The code for one call, and what it must print."""
        n = 2 + number % 1000
        values = {"n": n, "next": n + 1, "value": n * 23 + 58, "sum": n * (n - 1) // 2}
        return self.code.format(**values), self.printed.format(**values)


PLAIN = Work("plain", "print({n}*23+58)", "{value}")
# On one line, so that an interpreter behind a terminal can be given it too.
LIBRARIES = Work(
    "numpy and sympy",
    "import numpy as np, sympy; x = sympy.symbols('x'); "
    "print(sympy.factor(x**2 - {next}*x + {n}), int(np.arange({n}).sum()))",
    "(x - {n})*(x - 1) {sum}",
)
WORKS = (PLAIN, LIBRARIES)


class Session(Protocol):
    """One session of a subject."""

    async def call(self, code: str) -> str:
        """Run code; what it printed."""
        ...

    async def close(self) -> None:
        """End the session."""
        ...


class Subject(Protocol):
    """Something that runs Python code in sessions."""

    blocking: bool  # its calls hold the thread they are made in: each session is given one of its own

    async def start(self) -> str:
        """Get ready to open sessions; one line about isolation and state.

        Raises:
            UnavailableError: it cannot be measured here.
        """
        ...

    async def open(self) -> Session:
        """A new session."""
        ...

    async def settle(self) -> None:
        """Wait until nothing is under way that the start of a session would have to share the machine with."""
        ...

    async def memory(self) -> float | None:
        """Bytes in use by everything of the subject now; None if that cannot be told."""
        ...

    async def stop(self) -> None:
        """End everything. May be called after a failed start."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One round."""

    sessions: Sequence[int] = (1, 8, 32)  # numbers of sessions that call at the same time
    starts: int = 32  # timed one by one, at most
    starts_s: float = 3.0  # for that; sessions still missing then are opened several at a time
    calls_s: float = 1.0  # for the calls of each kind, with each number of sessions
    least_calls: int = 2  # of each session, however long they take


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of some sessions at the same time."""

    latencies_s: Sequence[float]
    per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round found."""

    starts_s: Sequence[float]  # open, and a first call that imports numpy and sympy
    calls: Mapping[str, Mapping[int, Calls]] = field(default_factory=dict)  # by name of the work, number of sessions
    session_bytes: float | None = None  # of a used session: what all of them add, divided by their number

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_plain(cls, fields: Mapping[str, Any]) -> Round:
        """What `plain` gave, after its way through JSON."""
        calls = {
            work: {int(sessions): Calls(**each) for sessions, each in found.items()}
            for work, found in fields["calls"].items()
        }
        return cls(starts_s=fields["starts_s"], calls=calls, session_bytes=fields["session_bytes"])


async def measure_round(subject: Subject, plan: Plan) -> Round:
    """Open sessions, call them, weigh them, close them.

    Raises:
        RuntimeError: a call printed something else than it must.
    """
    before = await subject.memory()
    sessions: list[Session] = []
    try:
        starts_s = await _timed_starts(subject, plan, sessions)
        while missing := max(0, max(plan.sessions, default=0) - len(sessions)):
            sessions += await together(subject, [_opened(subject) for _ in range(min(missing, _OPENING_AT_ONCE))])
        numbers = itertools.count()
        calls = {
            work.name: {
                count: await _timed_calls(subject, sessions[:count], work, numbers, plan) for count in plan.sessions
            }
            for work in WORKS
        }
        after = await subject.memory()
        known = before is not None and after is not None
        each = (after - before) / len(sessions) if known else None
        return Round(starts_s=starts_s, calls=calls, session_bytes=each)
    finally:
        await together(subject, [session.close() for session in sessions])


async def _opened(subject: Subject) -> Session:
    session = await subject.open()
    try:
        _require("True True", await session.call(IMPORTS), IMPORTS)
    except BaseException:
        await session.close()
        raise
    return session


async def _timed_starts(subject: Subject, plan: Plan, sessions: list[Session]) -> list[float]:
    starts_s: list[float] = []
    deadline = time.perf_counter() + plan.starts_s
    while len(starts_s) < plan.starts and (len(starts_s) < _LEAST_STARTS or time.perf_counter() < deadline):
        await subject.settle()
        started = time.perf_counter()
        sessions += await together(subject, [_opened(subject)])
        starts_s.append(time.perf_counter() - started)
    return starts_s


async def _timed_calls(
    subject: Subject, sessions: Sequence[Session], work: Work, numbers: Iterator[int], plan: Plan
) -> Calls:
    await together(subject, [_use(session, work, numbers, calls_s=0.0, least=1) for session in sessions])
    found = await together(
        subject, [_use(each, work, numbers, calls_s=plan.calls_s, least=plan.least_calls) for each in sessions]
    )
    spans = [span for each in found for span in each]
    wall_s = max(span[1] for span in spans) - min(span[0] for span in spans)
    return Calls(latencies_s=[ended - started for started, ended in spans], per_second=len(spans) / wall_s)


async def _use(
    session: Session, work: Work, numbers: Iterator[int], *, calls_s: float, least: int
) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    deadline = time.perf_counter() + calls_s
    while len(spans) < least or spans[-1][1] < deadline:
        code, wanted = work.call(next(numbers))
        started = time.perf_counter()
        printed = await session.call(code)
        spans.append((started, time.perf_counter()))
        _require(wanted, printed, code)
    return spans


def _require(wanted: str, printed: str, code: str) -> None:
    if printed.strip() != wanted:
        raise RuntimeError(f"{code!r} printed {printed[-500:]!r} and not {wanted!r}")


async def together(subject: Subject, tasks: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Carry out all of them at the same time; those of a blocking subject in a thread each."""
    if not subject.blocking:
        return await asyncio.gather(*tasks)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(max(1, len(tasks))) as threads:
        return await asyncio.gather(*(loop.run_in_executor(threads, _run, task) for task in tasks))


def _run(task: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(task)


# ---------------------------------------------------------------------- memory


def tree_bytes(root: int) -> float | None:
    """Proportional set size of a process and all below it; None where the kernel does not let this user read it."""
    total = 0.0
    for pid in _tree(root):
        try:
            total += _proportional_bytes(pid)
        except PermissionError:
            return None
        except OSError:  # it has ended
            continue
    return total


def _tree(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 — names are enough
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, [])


def _proportional_bytes(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:  # noqa: PTH123
        for line in rollup:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024.0
    return 0.0


def container_bytes(statistics: Mapping[str, Any]) -> float:
    """What `docker stats` shows: memory of the container's control group without its idle page cache.

    Args:
        statistics: the Engine API's answer for one container.
    """
    memory = statistics.get("memory_stats", {})
    details = memory.get("stats", {})
    idle = details.get("total_inactive_file", details.get("inactive_file", 0))  # control groups v1, v2
    return float(memory.get("usage", 0) - idle)
