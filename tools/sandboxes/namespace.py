"""Sandboxes in fresh Linux namespaces: no daemon, no image, a session in milliseconds.

NamespaceSandboxes ──control──► zygote (warm interpreter) ──clone──► session ◄──socket── NamespaceSandbox
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import itertools
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

from miles_agents.contracts import ExecResult, ExecStatus, Sandbox, SandboxLimits, SandboxProvider
from miles_agents.errors import ConfigError, SandboxError, SandboxUnavailableError
from miles_agents.tools.sandboxes.probing import probe, refusal
from miles_agents.tools.sandboxes.runner.cgroups import owner_name, sweep
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, FrameError, encode

_START_S = 60.0  # the zygote imports its libraries from a cold disk
_OPEN_S = 30.0
_MARGIN_S = 15.0  # over a call's own limit: the interrupt's grace, the kill, a busy machine
_FILE_S = 30.0
_CLOSE_S = 10.0
_LOG_CHARS = 2000
_owners = itertools.count()
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 — of the session's own tree
    "TMPDIR": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a printed set must not change from run to run
    "PYTHONDONTWRITEBYTECODE": "1",
    # A process with threads must not be forked, and sessions share the machine.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
# Imports the runner alone: the packages above it are empty stand-ins, since theirs import more than the standard
# library.
_BOOTSTRAP = """
import sys, types
names = ("miles_agents", "miles_agents.tools", "miles_agents.tools.sandboxes")
for name in names:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1]] if name == names[-1] else []
from miles_agents.tools.sandboxes.runner.zygote import main
main(int(sys.argv[2]))
"""


class _Zygote(NamedTuple):
    """A running zygote, as the host holds it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    log: IO[bytes]
    facts: dict[str, Any]


class _Wire:
    """Frames over one socket. Every wait has a deadline; after a failed or cancelled one the wire is dead."""

    def __init__(self, connection: socket.socket, max_bytes: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._buffer = FrameBuffer(max_bytes)
        self.dead = ""  # why it cannot be used any more

    async def receive(self, deadline_s: float) -> dict[str, Any]:
        """The next message.

        Raises:
            SandboxError: the other end is gone, too slow, or talks nonsense.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline_s):
                while (message := self._buffer.pop()) is None:
                    data = await loop.sock_recv(self._socket, 1 << 16)
                    if not data:
                        raise self._lost("its processes ended")
                    self._buffer.feed(data)
            return message
        except TimeoutError:
            raise self._lost(f"no answer within {deadline_s:g} s") from None
        except (OSError, FrameError) as error:
            raise self._lost(str(error)) from error
        except asyncio.CancelledError:
            self.kill("a call was cancelled")
            raise

    async def send(self, message: dict[str, Any], deadline_s: float) -> None:
        """Send one message; raises as `receive` does."""
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.get_running_loop().sock_sendall(self._socket, encode(message))
        except TimeoutError:
            raise self._lost(f"takes no request within {deadline_s:g} s") from None
        except OSError as error:
            raise self._lost(str(error)) from error
        except asyncio.CancelledError:
            self.kill("a call was cancelled")
            raise

    def _lost(self, why: str) -> SandboxError:
        if not self.dead:
            self.kill(why)
        return SandboxError(f"the sandbox session was lost: {self.dead}")

    def kill(self, why: str) -> None:
        """Hang up: the session's supervisor sees it and ends, and the kernel ends everything in it."""
        self.dead = self.dead or why
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end was faster
            return

    def close(self) -> None:
        """Hang up and free the descriptor; nobody may be waiting."""
        self.kill("it was closed")
        self._socket.close()


class NamespaceSandbox(Sandbox):
    """One session of a `NamespaceSandboxes`. Calls made at the same time run one after the other."""

    def __init__(self, provider: NamespaceSandboxes, wire: _Wire) -> None:
        self._provider = provider
        self._wire = wire
        self._turn = asyncio.Lock()
        self._ids = itertools.count()
        self._closed = False

    async def exec(self, code: str, *, timeout_s: float) -> ExecResult:
        """Run Python in the session; see `Sandbox.exec`."""
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s!r}; it must be positive")
        request = {"op": "exec", "code": code, "timeout_s": timeout_s}
        answer = await self._request(request, timeout_s + _MARGIN_S)
        fields = {name: answer[name] for name in ExecResult.__dataclass_fields__ if name in answer}
        return ExecResult(**{**fields, "status": ExecStatus(answer["status"])})

    async def read_file(self, path: str) -> bytes:
        """Read a regular file of the session; see `Sandbox.read_file`."""
        answer = await self._request({"op": "read", "path": path}, _FILE_S)
        return base64.b64decode(answer["data"])

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the session; see `Sandbox.write_file`."""
        await self._request({"op": "write", "path": path, "data": base64.b64encode(data).decode()}, _FILE_S)

    async def reset(self) -> None:
        """A new session takes this one's place: nothing can be left over."""
        async with self._turn:
            self._require_open()
            old, self._wire = self._wire, await self._provider.connect()
            old.close()

    async def close(self) -> None:
        """End the session. The kernel clears up behind it; nobody waits for that."""
        self._closed = True
        self._wire.kill("it was closed")
        async with self._turn:  # a call in progress ends first, with a SandboxError
            self._wire.close()
        self._provider.forget(self)

    async def _request(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        async with self._turn:
            self._require_open()
            number = next(self._ids)
            await self._wire.send({"id": number, **request}, deadline_s)
            answer = await self._wire.receive(deadline_s)
        if answer.get("id") != number:
            self._wire.kill("its answers are out of step")
            raise SandboxError(f"the sandbox session was lost: {self._wire.dead}")
        if "errno" in answer:
            raise OSError(answer["errno"], answer["message"], request.get("path"))
        return answer

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox session is closed")
        if self._wire.dead:
            raise SandboxError(f"the sandbox session was lost: {self._wire.dead}")


class NamespaceSandboxes(SandboxProvider):
    """Opens sessions in fresh user, pid, net, mount, ipc and uts namespaces of this machine.

    Args:
        limits: of each session.
        preload: packages to have imported before a session begins; only these can be imported in it, besides the
            standard library. Without any a session starts twice as fast.
        max_parallel_starts: how many sessions may be starting at the same time.
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        preload: Sequence[str] = ("numpy", "sympy"),
        max_parallel_starts: int = 8,
    ) -> None:
        self._limits = limits or SandboxLimits()
        self._preload = tuple(preload)
        self._starts = asyncio.Semaphore(max_parallel_starts)
        self._owner = f"{owner_name(os.getpid())}_{next(_owners)}"
        self._zygote: _Zygote | None = None
        self._open: set[NamespaceSandbox] = set()

    @property
    def description(self) -> str:
        """One line for the run header."""
        facts = self._zygote.facts if self._zygote else {}
        kind = "root, distinct user ids" if facts.get("root") else "user namespaces"
        bounds = "control groups and rlimits" if facts.get("control_groups") else "rlimits"
        loaded = f", preloaded {', '.join(self._preload)}" if self._preload else ""
        return f"namespace ({kind}; pid, net, mount, ipc, uts; seccomp; {bounds}{loaded})"

    @property
    def process_id(self) -> int:
        """Of the zygote's launcher: everything the sandboxes run is below it. 0 while it is not running."""
        return self._zygote.process.pid if self._zygote else 0

    async def start(self) -> None:
        """Check the machine, start the zygote and wait until it is warm. A second call does nothing.

        Raises:
            SandboxUnavailableError: this machine cannot give the isolation; the message prints the way out.
            ConfigError: a package to preload is not installed.
        """
        if self._zygote is not None:
            return
        site_folders = _site_folders(self._preload)
        why_not = refusal(await asyncio.to_thread(probe))
        if why_not:
            raise SandboxUnavailableError(why_not)
        await asyncio.to_thread(sweep)
        settings = {
            **asdict(self._limits),
            "preload": self._preload,
            "site_folders": site_folders,
            "owner": self._owner,
            "first_serial": secrets.randbelow(1 << 26),
        }
        self._zygote = await _start_zygote(settings)

    async def open(self) -> NamespaceSandbox:
        """A fresh session.

        Raises:
            SandboxError: it could not be set up.
        """
        sandbox = NamespaceSandbox(self, await self.connect())
        self._open.add(sandbox)
        return sandbox

    async def connect(self) -> _Wire:
        """The wire to a fresh session, ready for calls (for this module's own use)."""
        if self._zygote is None:
            raise SandboxError("the sandbox provider is not running: call start() first")
        async with self._starts:
            ours, theirs = socket.socketpair()
            wire = _Wire(ours, self._max_answer_bytes())
            try:
                with theirs:
                    socket.send_fds(self._zygote.control, [b"s"], [theirs.fileno()])
                greeting = await wire.receive(_OPEN_S)
            except OSError as error:
                wire.close()
                raise SandboxError(f"the sandbox zygote is gone: {error}") from error
            except BaseException:
                wire.close()
                raise
        if "failed" in greeting:
            wire.close()
            raise SandboxError(f"a sandbox session could not be set up: {greeting['failed']}")
        return wire

    def forget(self, sandbox: NamespaceSandbox) -> None:
        """A session was closed (for this module's own use)."""
        self._open.discard(sandbox)

    async def close(self) -> None:
        """End every session and the zygote; returns when their processes are gone."""
        zygote, self._zygote = self._zygote, None
        for sandbox in list(self._open):
            await sandbox.close()
        if zygote is not None:
            await asyncio.to_thread(_stop_zygote, zygote)
            await asyncio.to_thread(sweep, self._owner)

    def _max_answer_bytes(self) -> int:
        """The largest honest answer: a file in base64, or two streams with six bytes of JSON for each one."""
        file = (self._limits.file_mb << 20) * 4 // 3
        streams = 2 * (self._limits.output_kb << 10) * 6
        return file + streams + (1 << 20)


def _site_folders(preload: Sequence[str]) -> list[str]:
    """The folders of installed packages the preloaded ones lie in.

    Raises:
        ConfigError: one is not installed.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    folders = []
    for name in preload:
        spec = importlib.util.find_spec(name.partition(".")[0])
        if spec is None:
            raise ConfigError(f"sandbox.preload: no package '{name}' is installed; install it or leave it out")
        places = list(spec.submodule_search_locations or []) or [spec.origin or ""]
        folder = Path(places[0]).parent
        if folder.is_absolute() and folder != stdlib and str(folder) not in folders:
            folders.append(str(folder))
    return folders


def _command(control_fd: int) -> list[str]:
    # The interpreter behind a virtual environment: the sandbox has no use for the environment's other packages.
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    flags = ["-s", "-S", "-P", "-B", "-X", "utf8"]  # -I would also ignore the hash seed
    return [interpreter, *flags, "-c", _BOOTSTRAP, str(Path(__file__).parent), str(control_fd)]


async def _start_zygote(settings: dict[str, Any]) -> _Zygote:
    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115 — closed by _stop_zygote
    with theirs:
        # Started from the loop's own thread: the zygote is killed when the thread that started it ends.
        process = subprocess.Popen(  # noqa: ASYNC220, S603 — returns as soon as the new program runs
            _command(theirs.fileno()),
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    wire = _Wire(ours, 1 << 20)
    try:
        await wire.send(settings, _START_S)
        facts = await wire.receive(_START_S)
    except SandboxError as error:
        facts = {"failed": str(error)}
    except BaseException:
        await asyncio.to_thread(_stop_zygote, _Zygote(process, ours, log, {}))
        raise
    zygote = _Zygote(process, ours, log, facts)
    if "failed" in facts:
        said = await asyncio.to_thread(_stop_zygote, zygote)
        raise SandboxUnavailableError(f"the sandbox cannot be set up here: {facts['failed']}\n{said}".rstrip())
    ours.setblocking(True)
    return zygote


def _stop_zygote(zygote: _Zygote) -> str:
    """Hang up, wait for the end, insist after a while; the zygote's end is the end of all sessions.

    Returns the last it had to say.
    """
    zygote.control.close()
    try:
        zygote.process.wait(_CLOSE_S)
    except subprocess.TimeoutExpired:
        zygote.process.kill()
        zygote.process.wait()
    with zygote.log as log:
        log.seek(0)
        return log.read().decode(errors="backslashreplace")[-_LOG_CHARS:]
