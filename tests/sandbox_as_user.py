"""Namespace sandboxes of an ordinary user, for tests that run as root.

A child process hosts the provider as uid 65534; `UserSandboxes` here passes calls on to it over a socket:

    test (root) ── pickled calls ──► this file as a program: opens the way, gives up root, serves

The interpreter and the checkout may lie where only root can look (below /root, in a private temporary folder). So the
child first makes, in a mount namespace of its own, a passable copy of the folders on the way; the machine itself is
not changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from miles_agents.contracts import ExecResult, Language, Sandbox, SandboxProvider
from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal
from miles_agents.tools.sandboxes.runner import linux

USER = 65534
REPOSITORY = Path(__file__).parents[1]
_HEADER = struct.Struct(">I")
_START_S = 60.0
_ANSWER_S = 120.0  # over whatever a call's own limit is


# --- the test's side --------------------------------------------------------------------------------------------------


class UserSandboxes(SandboxProvider):
    """A `NamespaceSandboxes` hosted by uid 65534.

    Args:
        settings: of the hosted provider.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._description = "not started"
        self.refusal = ""  # why this machine gives ordinary users no sandbox; set by `start`
        self.process_id = 0  # of the hosted provider's launcher: everything the sandboxes run is below it
        self.host_id = 0  # of the process that hosts the provider

    @property
    def description(self) -> str:
        return self._description

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._host = await asyncio.to_thread(_launch, theirs.fileno())
        self.host_id = self._host.pid
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self._listening = asyncio.create_task(self._listen())
        async with asyncio.timeout(_START_S):
            self.refusal = await self._ask(None, "start", **self._settings)
            if not self.refusal:
                self._description, self.process_id = await self._ask(None, "describe")

    async def open(self) -> UserSandbox:
        return UserSandbox(self, await self._ask(None, "open"))

    async def close(self) -> None:
        with contextlib.suppress(SandboxError):
            await self._ask(None, "close")
        self._writer.close()
        await self._listening
        await asyncio.to_thread(self._host.wait, _START_S)

    async def _ask(self, session: int | None, method: str, /, *args: Any, **kwargs: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        if self._listening.done():
            answer.set_exception(SandboxError("the process that hosts the sandboxes is gone"))
        else:
            self._writer.write(_frame((number, session, method, args, kwargs)))
        try:
            async with asyncio.timeout(kwargs.get("timeout_s", 0) + _ANSWER_S):
                return await answer
        except asyncio.CancelledError:
            self._writer.write(_frame((number, None, "cancel", (), {})))
            raise
        finally:
            del self._waiting[number]

    async def _listen(self) -> None:
        while (message := await _receive(self._reader)) is not None:
            number, value, error = message
            waiting = self._waiting.get(number)
            if waiting is None or waiting.done():  # it was cancelled
                continue
            if error is None:
                waiting.set_result(value)
            else:
                waiting.set_exception(error)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SandboxError("the process that hosts the sandboxes is gone"))


class UserSandbox(Sandbox):
    """One session of a `UserSandboxes`."""

    def __init__(self, provider: UserSandboxes, number: int) -> None:
        self._provider = provider
        self._number = number

    async def exec(self, code: str, *, timeout_s: float, language: Language = Language.PYTHON) -> ExecResult:
        return await self._provider._ask(self._number, "exec", code, timeout_s=timeout_s, language=language)

    async def read_file(self, path: str) -> bytes:
        return await self._provider._ask(self._number, "read_file", path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._provider._ask(self._number, "write_file", path, data)

    async def reset(self) -> None:
        await self._provider._ask(self._number, "reset")

    async def close(self) -> None:
        await self._provider._ask(self._number, "close")


def _launch(fd: int) -> subprocess.Popen[bytes]:
    paths = [str(REPOSITORY), str(REPOSITORY / "tests"), *(each for each in sys.path if each.endswith("-packages"))]
    environment = {
        **os.environ,  # what the sandboxes must keep from their sessions
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HOME": "/tmp",
    }
    command = [sys.executable, __file__, "enter", str(fd)]
    return subprocess.Popen(command, env=environment, cwd="/", pass_fds=(fd,), start_new_session=True)


def _frame(message: object) -> bytes:
    data = pickle.dumps(message)
    return _HEADER.pack(len(data)) + data


async def _receive(reader: asyncio.StreamReader) -> Any:
    """The next message, None at the end."""
    try:
        (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        return pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return None


# --- the child: open the way, give up root ----------------------------------------------------------------------------


def enter(fd: int) -> None:
    """Become uid 65534, with the interpreter and the checkout in reach, and serve."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    with _needed_folders() as needed:
        for closed in _closed_folders(needed):
            _replace(closed, {path: held for path, held in needed.items() if path.is_relative_to(closed)})
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.execv(sys.executable, [sys.executable, __file__, "serve", str(fd)])


@contextlib.contextmanager
def _needed_folders() -> Iterator[dict[Path, int]]:
    """What the interpreter reads, each held open: what lies under a mount is reached by its descriptor."""
    wanted = [REPOSITORY, *map(Path, (sys.base_prefix, sys.prefix, *sys.path))]
    paths = {path for each in wanted if each.is_absolute() and each.is_dir() for path in (each, each.resolve())}
    paths = {part for path in paths for part in ([path] if _passable(path) else path.iterdir())}
    needed = {path: os.open(path, os.O_PATH) for path in sorted(paths)}
    try:
        yield needed
    finally:
        for held in needed.values():
            os.close(held)


def _passable(folder: Path) -> bool:
    everyone = stat.S_IROTH | stat.S_IXOTH
    return folder.stat().st_mode & everyone == everyone


def _closed_folders(paths: Iterable[Path]) -> list[Path]:
    """The uppermost folders above the paths that only their owner can pass."""
    above = {parent for path in paths for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH}
    return sorted(folder for folder in above if above.isdisjoint(folder.parents))


def _replace(closed: Path, needed: dict[Path, int]) -> None:
    """Mount an open folder over a closed one, with only what is needed of it inside."""
    linux.mount("tmpfs", str(closed), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    for path, held in needed.items():  # sorted: parents come before what lies in them, which is there by then
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(os.fstat(held).st_mode):
            path.mkdir()
        else:
            path.touch()
        linux.mount(f"/proc/self/fd/{held}", str(path), None, linux.MS_BIND | linux.MS_REC)


# --- the child: serve -------------------------------------------------------------------------------------------------


class _Host:
    """Answers calls, each in a task of its own."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._provider = NamespaceSandboxes()
        self._sessions: dict[int, Sandbox] = {}
        self._opened: dict[int, Sandbox] = {}  # by the call that opened them
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count()

    def take(self, message: tuple[int, int | None, str, tuple[Any, ...], dict[str, Any]]) -> None:
        number, session, method, args, kwargs = message
        if method == "cancel":
            self._tasks[-1 - number] = asyncio.create_task(self._cancel(number))
            return
        target = self if session is None else self._sessions[session]
        task = asyncio.create_task(self._answer(number, lambda: getattr(target, method)(*args, **kwargs)))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number))

    async def _cancel(self, number: int) -> None:
        """End a call; if it was an `open` that came to its end all the same, nobody will close that session."""
        if (task := self._tasks.get(number)) is not None:
            task.cancel()
            await asyncio.wait({task})
        if (session := self._opened.pop(number, None)) is not None:
            await session.close()
        del self._tasks[-1 - number]

    async def _answer(self, number: int, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            value = await call()
            if isinstance(value, Sandbox):
                self._opened[number] = value
                value = next(self._numbers)
                self._sessions[value] = self._opened[number]
            answer = (number, value, None)
        except Exception as error:
            answer = (number, None, error)
        self._writer.write(_frame(answer))
        await self._writer.drain()

    async def start(self, **settings: Any) -> str:
        if not probe().works:
            return refusal(probe())
        self._provider = NamespaceSandboxes(**settings)
        await self._provider.start()
        return ""

    async def describe(self) -> tuple[str, int]:
        return self._provider.description, self._provider.process_id

    async def open(self) -> Sandbox:
        return await self._provider.open()

    async def close(self) -> None:
        await self._provider.close()


async def serve(fd: int) -> None:
    """Host a provider until the socket closes."""
    connection = socket.socket(fileno=fd)
    os.set_inheritable(fd, False)  # its end is the sign of this process's end
    reader, writer = await asyncio.open_connection(sock=connection)
    host = _Host(writer)
    while (message := await _receive(reader)) is not None:
        host.take(message)
    await host.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    {"enter": enter, "serve": lambda fd: asyncio.run(serve(fd))}[sys.argv[1]](int(sys.argv[2]))
