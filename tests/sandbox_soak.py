"""Many calls in many sessions, with everything that can go wrong on the way, and what is counted before and after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import NamedTuple

from host_processes import descendants, descriptors_of, groups_of
from sandbox_backends import host_of

from miles_agents.contracts import ExecResult, ExecStatus, Language, Sandbox, SandboxProvider
from miles_agents.errors import SandboxError

KILLS = os.getuid() == 0  # an ordinary user does not see the namespaces of the sessions, so can aim at none
_CALL_S = 60.0
_SHORT_S = 0.05
_FIRST_OWN_USER = 2_000_000_000  # sessions of root and of Docker have a user each
_STRAY = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(300)\n"
_STUBBORN = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"


class Left(NamedTuple):
    """What a host holds for its sandboxes."""

    processes: int  # below it, dead ones too
    descriptors: int
    sockets: int
    groups: int
    files: int  # and folders, in the folder of temporary ones


def left_of(host: int, temporary: Path) -> Left:
    """Count it now."""
    held = descriptors_of(host).values()
    sockets = sum(each.startswith("socket:") for each in held)
    groups, files = groups_of(host), list(temporary.rglob("*"))
    return Left(len(descendants(host)), len(held), sockets, len(groups), len(files))


class Place(NamedTuple):
    """Where a session's processes are, as this machine sees it. The kernel uses numbers of namespaces again."""

    namespace: str
    user: int | None  # None: unknown


async def place_of(sandbox: Sandbox, user: int | None = None) -> Place:
    """Ask the session.

    Args:
        sandbox: it.
        user: as this machine sees it, if the session has no user of its own.
    """
    result = await sandbox.exec("import os\nprint(os.readlink('/proc/self/ns/pid'), os.getuid())", timeout_s=_CALL_S)
    namespace, own = result.stdout.split()
    return Place(namespace, int(own) if int(own) >= _FIRST_OWN_USER else user)


def processes_in(places: Iterable[Place]) -> set[int]:
    """Processes of the machine that run in one of these."""
    found = set()
    wanted = set(places)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            namespace = str((folder / "ns/pid").readlink())
            if not wanted.isdisjoint({Place(namespace, _user_of(folder)), Place(namespace, None)}):
                found.add(int(folder.name))
    return found


def _user_of(folder: Path) -> int:
    return int(_status(folder)["Uid"].split()[0])


def _status(folder: Path) -> dict[str, str]:
    lines = (folder / "status").read_text(errors="replace").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _is_supervisor(pid: int) -> bool:
    """Whether it is number 1 of its own pid namespace."""
    return _status(Path(f"/proc/{pid}"))["NSpid"].split()[-1] == "1"


class Soak:
    """Plays sessions until the calls are used up.

    Args:
        provider: started.
        sessions: in all, eight at a time.
        calls: in all.
        seed: what goes wrong, and when.
    """

    def __init__(self, provider: SandboxProvider, *, sessions: int, calls: int, seed: int = 0) -> None:
        self._provider = provider
        self._sessions = sessions
        self._calls_each = calls // sessions
        self._random = random.Random(seed)
        self._at_a_time = asyncio.Semaphore(8)
        self._place: dict[Sandbox, Place] = {}
        self.places: set[Place] = set()  # of every session there was
        host = host_of(provider)
        self._user = None if host == os.getpid() else _user_of(Path(f"/proc/{host}"))
        self.happened: Counter[str] = Counter()  # kinds of calls
        self.besides: Counter[str] = Counter()  # what happened on the way

    async def run(self) -> None:
        """All sessions."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._sessions):
                group.create_task(self._session(random.Random(self._random.random()), number))

    async def _session(self, chance: random.Random, number: int) -> None:
        """One session; when it is lost another one takes its place, so that the number of calls is what was asked."""
        async with self._at_a_time:
            sandbox = await self._open(chance)
            try:
                for call in range(self._calls_each):
                    try:
                        await self._call(sandbox, chance, f"{number}-{call}")
                    except SandboxError:
                        self.besides["lost"] += 1
                        await sandbox.close()
                        sandbox = await self._open(chance)
            finally:
                await sandbox.close()

    async def _open(self, chance: random.Random) -> Sandbox:
        while chance.random() < 0.3:
            opening = asyncio.ensure_future(self._provider.open())
            await asyncio.sleep(chance.random() * 0.02)
            opening.cancel()
            self.besides["cancelled open"] += 1
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await (await opening).close()
        sandbox = await self._provider.open()
        await self._note_place(sandbox)
        return sandbox

    async def _note_place(self, sandbox: Sandbox) -> None:
        self._place[sandbox] = await place_of(sandbox, self._user)
        self.places.add(self._place[sandbox])

    async def _call(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        """One call, mostly a plain one: its output must be its own and nobody else's."""
        kinds = (
            (self._plain, 70), (self._shell, 10), (self._files, 4), (self._time_out, 4), (self._shell_time_out, 2),
            (self._stubborn, 1), (self._crash, 2), (self._stray, 3), (self._flood, 1), (self._cancel, 0.7),
            (self._reset, 0.7), (self._close, 0.3), (self._kill_worker, KILLS), (self._kill_supervisor, 0.6 * KILLS),
        )  # fmt: skip
        kind = chance.choices([each for each, _ in kinds], [weight for _, weight in kinds])[0]
        self.happened[kind.__name__.strip("_")] += 1
        await kind(sandbox, chance, token)

    async def _exec(
        self, sandbox: Sandbox, code: str, *, timeout_s: float = _CALL_S, shell: bool = False
    ) -> ExecResult:
        language = Language.SHELL if shell else Language.PYTHON
        result = await sandbox.exec(code, timeout_s=timeout_s, language=language)
        self.besides["respawned"] += result.state_lost
        return result

    async def _plain(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, f"print('{token}')")
        assert (result.status, result.stdout) == (ExecStatus.OK, f"{token}\n"), result

    async def _shell(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, f"echo {token} | cat", shell=True)
        assert (result.status, result.stdout) == (ExecStatus.OK, f"{token}\n"), result

    async def _files(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        await sandbox.write_file("folder/file", token.encode())
        assert await sandbox.read_file("folder/file") == token.encode()

    async def _time_out(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, f"{_STRAY}while True: pass", timeout_s=_SHORT_S)
        assert result.status is ExecStatus.TIMEOUT, result

    async def _shell_time_out(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, "sleep 300 & sleep 300", timeout_s=_SHORT_S, shell=True)
        assert result.status is ExecStatus.TIMEOUT, result

    async def _stubborn(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, _STUBBORN, timeout_s=_SHORT_S)
        assert result.status is ExecStatus.TIMEOUT, result

    async def _crash(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, f"{_STRAY}os._exit(7)")
        assert (result.status, result.exit_code) == (ExecStatus.CRASHED, 7), result

    async def _stray(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, f"{_STRAY}print('{token}')")
        assert (result.status, result.stdout) == (ExecStatus.OK, f"{token}\n"), result

    async def _flood(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        result = await self._exec(sandbox, "while True: print('x' * 50_000)")
        assert result.status is ExecStatus.OUTPUT_LIMIT, result

    async def _reset(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        await sandbox.reset()
        await self._note_place(sandbox)

    async def _cancel(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        async with self._running(sandbox, chance) as calling:
            calling.cancel()
        await self._exec(sandbox, "1")  # a cancelled call costs the session
        raise AssertionError("a session must not go on after a cancelled call")

    async def _close(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        async with self._running(sandbox, chance):
            await sandbox.close()
        await self._exec(sandbox, "1")

    async def _kill_worker(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        async with self._running(sandbox, chance) as calling:
            while not calling.done():  # the call may not have begun yet
                self._kill(sandbox, supervisor=False)
                await asyncio.wait({calling}, timeout=0.3)
            assert calling.result().status is ExecStatus.CRASHED, calling.result()

    async def _kill_supervisor(self, sandbox: Sandbox, chance: random.Random, token: str) -> None:
        async with self._running(sandbox, chance):
            self._kill(sandbox, supervisor=True)
        await self._exec(sandbox, "1")
        raise AssertionError("a session must not go on without its supervisor")

    def _kill(self, sandbox: Sandbox, *, supervisor: bool) -> None:
        for pid in processes_in([self._place[sandbox]]):
            with contextlib.suppress(OSError):  # it is gone by itself
                if _is_supervisor(pid) is supervisor:
                    os.kill(pid, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def _running(self, sandbox: Sandbox, chance: random.Random) -> AsyncIterator[asyncio.Future[ExecResult]]:
        """A call that goes on for long; the block ends it, one way or another."""
        calling = asyncio.ensure_future(self._exec(sandbox, "import time\ntime.sleep(300)", timeout_s=400))
        await asyncio.sleep(chance.random() * 0.05)
        try:
            yield calling
        finally:
            with contextlib.suppress(asyncio.CancelledError, SandboxError):
                await calling
