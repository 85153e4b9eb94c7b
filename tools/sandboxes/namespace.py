"""Sandboxes in fresh Linux namespaces: no daemon, no image, a session in milliseconds.

NamespaceSandboxes ──control──► zygote (warm interpreter) ──clone──► session ◄──socket── RunnerSandbox
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import os
import secrets
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

from miles_agents.contracts import SandboxLimits, SandboxProvider
from miles_agents.errors import ConfigError, SandboxError, SandboxUnavailableError
from miles_agents.tools.sandboxes.probing import probe, refusal
from miles_agents.tools.sandboxes.runner.cgroups import owner_name, sweep
from miles_agents.tools.sandboxes.runner_sandbox import RunnerSandbox
from miles_agents.tools.sandboxes.runner_source import ENVIRONMENT
from miles_agents.tools.sandboxes.wire import SocketChannel, Wire, max_answer_bytes

_START_S = 60.0  # the zygote imports its libraries from a cold disk
_OPEN_S = 30.0
_CLOSE_S = 10.0
_LOG_CHARS = 2000
_NO_GROUPS = "rlimits and a memory guard, no control groups"
_owners = itertools.count()
_log = logging.getLogger(__name__)
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
        self._replacing = asyncio.Lock()
        self._settings: dict[str, Any] = {}
        self._open: set[RunnerSandbox] = set()

    @property
    def description(self) -> str:
        """One line for the run header."""
        facts = self._zygote.facts if self._zygote else {}
        kind = "root, distinct user ids" if facts.get("root") else "user namespaces"
        bounds = "control groups and rlimits" if facts.get("control_groups") else _NO_GROUPS
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
        self._settings = {
            **asdict(self._limits),
            "preload": self._preload,
            "site_folders": site_folders,
            "owner": self._owner,
            "first_serial": secrets.randbelow(1 << 26),
        }
        self._zygote = await _start_zygote(self._settings)

    async def open(self) -> RunnerSandbox:
        """A fresh session.

        Raises:
            SandboxError: it could not be set up.
        """
        sandbox = RunnerSandbox(self, await self.connect())
        self._open.add(sandbox)
        return sandbox

    async def connect(self) -> Wire:
        """The wire to a fresh session; see `SessionOwner.connect`."""
        asked = time.monotonic()
        try:
            async with self._starts:
                self.counters.pool_wait_s += time.monotonic() - asked
                wire = await self._connect(await self._living_zygote())
        except SandboxError:
            self.counters.failed_starts += 1
            raise
        self.counters.starts += 1
        self.counters.start_s += time.monotonic() - asked
        return wire

    async def _living_zygote(self) -> _Zygote:
        """The zygote; one that died (out of memory, killed by hand) is replaced, its sessions are lost.

        Raises:
            SandboxError: the provider is not running, or no new zygote could be started.
        """
        async with self._replacing:
            if self._zygote is None:
                raise SandboxError("the sandbox provider is not running: call start() first")
            if self._zygote.process.poll() is None:
                return self._zygote
            said = await asyncio.to_thread(_stop_zygote, self._zygote)
            _log.warning("the sandbox zygote died and is started again; it said: %s", said.strip() or "nothing")
            await asyncio.to_thread(sweep, self._owner)
            try:
                self._zygote = await _start_zygote(self._settings)
            except SandboxUnavailableError as error:
                raise SandboxError(f"the sandbox zygote died and could not be started again: {error}") from error
            return self._zygote

    async def _connect(self, zygote: _Zygote) -> Wire:
        ours, theirs = socket.socketpair()
        wire = Wire(SocketChannel(ours), max_answer_bytes(self._limits))
        try:
            with theirs:
                socket.send_fds(zygote.control, [b"s"], [theirs.fileno()])
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

    def release(self, wire: Wire) -> None:
        """Hang up: the session ends, and the kernel clears up behind it. See `SessionOwner.release`."""
        wire.close()

    def forget(self, sandbox: RunnerSandbox) -> None:
        """A session was closed; see `SessionOwner.forget`."""
        self._open.discard(sandbox)

    async def close(self) -> None:
        """End every session and the zygote; returns when their processes are gone."""
        zygote, self._zygote = self._zygote, None
        for sandbox in list(self._open):
            await sandbox.close()
        if zygote is not None:
            await asyncio.to_thread(_stop_zygote, zygote)
            await asyncio.to_thread(sweep, self._owner)


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
            env=ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    channel = SocketChannel(ours)
    wire = Wire(channel, 1 << 20)
    try:
        await wire.send(settings, _START_S)
        facts = await wire.receive(_START_S)
    except SandboxError as error:
        facts = {"failed": str(error)}
    except BaseException:
        await asyncio.to_thread(_stop_zygote, _Zygote(process, ours, log, {}))
        raise
    channel.unwatch()
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
