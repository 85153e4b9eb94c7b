"""How long one callback holds the event loop while 64 sessions compute, print, time out, and move files.

The CPU time of every callback is taken by a clock around `asyncio.Handle`; asyncio's own debug mode, which adds work of
its own to each callback, is asked as well. Garbage collection strikes whichever callback happens to run, so it is taken
out and shown apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measuring import Row, Settings, Table
from miles_agents.contracts import ExecStatus, Sandbox, SandboxProvider
from miles_agents.errors import SandboxError, SandboxUnavailableError
from miles_agents.tools.sandboxes.docker.sandboxes import DockerSandboxes
from miles_agents.tools.sandboxes.docker.settings import DockerSettings
from miles_agents.tools.sandboxes.namespace import NamespaceSandboxes

SESSIONS = 64
LIMIT_MS = 20.0
_SECONDS = 12.0
_CALL_S = 3.0
_SIDE_TASKS = 3  # of each kind
_NOTED_MS = 1.0
_SHOWN = 4  # of the longest
_TICK_S = 0.005
_FILE_BYTES = 16 << 20
_CRUNCH = """
import time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    print(sum(i * i for i in range(20_000)))
"""
_ENDLESS = "while True: pass"
_STUBBORN = """
while True:
    try:
        while True: pass
    except BaseException: pass
"""
_LARGE = r"print('\0' * (1 << 20)); import sys; sys.stderr.write('é' * (1 << 20))"
_FLOOD = "while True: print('y' * 100_000)"


@dataclass(slots=True)
class CallbackClock:
    """CPU time of the callbacks of this thread's event loop, without garbage collection."""

    calls: int = 0
    longest_ms: dict[str, float] = field(default_factory=dict)  # by callback, those above `_NOTED_MS`
    collection_ms: float = 0.0  # the longest
    _collected_ms: float = 0.0  # since the callback began
    _collecting: float = 0.0
    _thread: int = field(default_factory=threading.get_ident)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measure what runs inside the block."""
        original = events.Handle._run

        def timed(handle: events.Handle) -> None:
            self._collected_ms = 0.0
            name = _name_of(handle)
            started = time.thread_time()
            original(handle)
            self._note(name, 1000 * (time.thread_time() - started) - self._collected_ms)

        events.Handle._run = timed  # type: ignore[method-assign]
        gc.callbacks.append(self._collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collection)
            events.Handle._run = original  # type: ignore[method-assign]

    def _note(self, name: str, took_ms: float) -> None:
        self.calls += 1
        if took_ms > _NOTED_MS:
            self.longest_ms[name] = max(took_ms, self.longest_ms.get(name, 0.0))

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            took_ms = 1000 * (time.thread_time() - self._collecting)
            self._collected_ms += took_ms
            self.collection_ms = max(self.collection_ms, took_ms)


def _name_of(handle: events.Handle) -> str:
    """A task's step is named after the innermost coroutine that waits in it."""
    callback: Any = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        while (inner := getattr(coroutine, "cr_await", None)) is not None and hasattr(inner, "cr_await"):
            coroutine = inner
        return str(coroutine.__qualname__)
    return str(getattr(callback, "__qualname__", callback))


class _SlowCallbacks(logging.Handler):
    """What asyncio's debug mode says of slow callbacks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.longest_ms = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("Executing") and isinstance(record.args, tuple):
            self.count += 1
            self.longest_ms = max(self.longest_ms, 1000 * float(str(record.args[1])))


@dataclass(slots=True)
class Load:
    """The work, and what was done of it."""

    provider: SandboxProvider
    seconds: float
    done: dict[str, int] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)  # by how much a timer fired too late
    _end: float = 0.0

    async def carry_out(self, sessions: int) -> None:
        """All kinds of work at once until the time is over, with every session opened before it begins."""
        kinds: dict[str, Callable[[Sandbox], Awaitable[None]]] = {
            "timeouts": _time_out,
            "large outputs": _print_much,
            "16 MB files": _move_files,
            "resets": _reset,
        }
        uses = [("computing calls", self._crunch)] * sessions + [*kinds.items()] * _SIDE_TASKS
        opened = await asyncio.gather(*(self.provider.open() for _ in uses))
        self._end = time.monotonic() + self.seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            for sandbox, (name, use) in zip(opened, uses, strict=True):
                tasks.create_task(self._repeat(name, sandbox, use))
            for _ in range(_SIDE_TASKS):
                tasks.create_task(self._open_and_close())
        for sandbox in opened:
            await sandbox.close()

    def _goes_on(self) -> bool:
        return time.monotonic() < self._end

    async def _repeat(self, name: str, sandbox: Sandbox, use: Callable[[Sandbox], Awaitable[None]]) -> None:
        while self._goes_on():
            await use(sandbox)
            self.done[name] = self.done.get(name, 0) + 1

    async def _open_and_close(self) -> None:
        while self._goes_on():
            async with await self.provider.open() as sandbox:
                await sandbox.exec("print(1)", timeout_s=60)
            self.done["opened and closed"] = self.done.get("opened and closed", 0) + 1

    async def _crunch(self, sandbox: Sandbox) -> None:
        code = _CRUNCH.format(seconds=min(_CALL_S, self.seconds))
        result = await sandbox.exec(code, timeout_s=120)
        _require(result.status is ExecStatus.OK, result)

    async def _tick(self) -> None:
        while self._goes_on():
            asked = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            self.late_ms.append(1000 * (time.perf_counter() - asked - _TICK_S))


async def _time_out(sandbox: Sandbox) -> None:
    for code in (_ENDLESS, _STUBBORN):
        result = await sandbox.exec(code, timeout_s=0.2)
        _require(result.status is ExecStatus.TIMEOUT, result)


async def _print_much(sandbox: Sandbox) -> None:
    result = await sandbox.exec(_LARGE, timeout_s=60)
    _require(len(result.stdout) > 1 << 15, result.status)
    result = await sandbox.exec(_FLOOD, timeout_s=60)
    _require(result.status is ExecStatus.OUTPUT_LIMIT, result.status)


async def _move_files(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * (_FILE_BYTES // 256)
    await sandbox.write_file("data", data)
    _require(await sandbox.read_file("data") == data, "the file came back changed")


async def _reset(sandbox: Sandbox) -> None:
    await sandbox.reset()


def _require(holds: bool, what: object) -> None:
    if not holds:
        raise RuntimeError(f"not what was to be measured: {what}")


async def measure(settings: Settings) -> list[Table]:
    """As one of `python -m benchmarks`; Docker's daemon is what the environment names."""
    return await tables("", "", scale=settings.scale)


async def tables(host: str, why_no_docker: str, *, scale: float, sessions: int = SESSIONS) -> list[Table]:
    """A table for each launcher.

    Args:
        host: of the Docker daemon.
        why_no_docker: there is none; the reason is shown.
        scale: of the time it goes on.
        sessions: that compute.
    """
    providers: dict[str, Callable[[], SandboxProvider]] = {"namespace": lambda: NamespaceSandboxes(preload=())}
    if not why_no_docker:
        providers["docker"] = lambda: DockerSandboxes(settings=DockerSettings(host=host))
    found = []
    for name, make in providers.items():
        title = f"event loop, {name}: {sessions} sessions compute"
        try:
            found.append(Table(title=title, rows=await _rows(make, scale * _SECONDS, sessions), notes=_NOTES))
        except (SandboxUnavailableError, SandboxError) as error:
            found.append(Table(title=title, rows=[], notes=(str(error),)))
    if why_no_docker:
        found.append(Table(title="event loop, docker", rows=[], notes=(why_no_docker,)))
    return found


_NOTES = (
    f"claim: no callback takes {LIMIT_MS:g} ms of CPU",
    "beside the computing sessions others open, close, time out, print megabytes, move files of 16 MB, and reset",
)


async def _rows(make: Callable[[], SandboxProvider], seconds: float, sessions: int) -> list[Row]:
    clock, load = await _watched(make, seconds, sessions)
    ordered = sorted(clock.longest_ms.items(), key=lambda item: -item[1])
    late = sorted(load.late_ms)
    rows = [
        Row(name="one callback, most CPU", value=ordered[0][1] if ordered else _NOTED_MS, unit="ms"),
        *(Row(name=f"    {name}", value=took, unit="ms") for name, took in ordered[:_SHOWN]),
        Row(name="callbacks", value=clock.calls, unit=""),
        Row(name="longest garbage collection", value=clock.collection_ms, unit="ms CPU"),
        Row(name="timer late, p99", value=late[int(0.99 * (len(late) - 1))], unit="ms wall"),
        Row(name="timer late, at most", value=late[-1], unit="ms wall"),
        *(Row(name=name, value=count, unit="") for name, count in sorted(load.done.items())),
    ]
    slow, in_debug = _SlowCallbacks(), (CallbackClock(), load)
    with _debugging(slow):
        in_debug = await _watched(make, seconds, sessions)
    return [
        *rows,
        Row(name="in debug mode: most CPU", value=max(in_debug[0].longest_ms.values(), default=0.0), unit="ms"),
        Row(name=f"in debug mode: callbacks above {LIMIT_MS:g} ms wall", value=slow.count, unit=""),
        Row(name="in debug mode: longest", value=slow.longest_ms, unit="ms wall"),
    ]


async def _watched(make: Callable[[], SandboxProvider], seconds: float, sessions: int) -> tuple[CallbackClock, Load]:
    clock = CallbackClock()
    with clock.running():
        async with make() as provider:
            load = Load(provider, seconds)
            await load.carry_out(sessions)
    return clock, load


@contextlib.contextmanager
def _debugging(handler: logging.Handler) -> Iterator[None]:
    loop, log = asyncio.get_running_loop(), logging.getLogger("asyncio")
    passes_on = log.propagate
    log.addHandler(handler)
    log.propagate = False
    loop.set_debug(True)
    loop.slow_callback_duration = LIMIT_MS / 1000
    try:
        yield
    finally:
        loop.set_debug(False)
        log.propagate = passes_on
        log.removeHandler(handler)
