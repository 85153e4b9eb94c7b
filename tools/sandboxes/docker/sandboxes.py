"""Sandboxes in hardened Docker containers: one container a session, discarded after use, made ahead by a pool.

DockerSandboxes ──► ContainerPool ──► Launcher ──► ContainerBackend (create, attach, start)
      │                                  │ own             │
      │ release ──► Removals ◄───────────┘                 ▼
      │                                             container: the runner, as process 1
      ▼                                                    │
RunnerSandbox ──► Wire ──► Channel ◄── dials the host's socket, or its attached standard streams
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from miles_agents.contracts import SandboxLimits, SandboxProvider
from miles_agents.errors import SandboxError, SandboxUnavailableError
from miles_agents.tools.sandboxes.docker import hardening
from miles_agents.tools.sandboxes.docker.backend import ContainerBackend, ContainerError, EngineFacts
from miles_agents.tools.sandboxes.docker.dial_in import Doors
from miles_agents.tools.sandboxes.docker.hardening import ContainerPlan
from miles_agents.tools.sandboxes.docker.launch import Launched, Launcher, SessionRefusedError, is_well
from miles_agents.tools.sandboxes.docker.owner import LABEL, Owner
from miles_agents.tools.sandboxes.docker.pool import ContainerPool
from miles_agents.tools.sandboxes.docker.removals import Removals
from miles_agents.tools.sandboxes.docker.settings import IMAGE, DockerSettings, Pull, Transport
from miles_agents.tools.sandboxes.runner_sandbox import RunnerSandbox
from miles_agents.tools.sandboxes.wire import Wire

_CLOSE_S = 60.0  # for the daemon to remove what is left
_FRESH_S = 1.0  # a session that waited longer is asked whether it is well

_log = logging.getLogger(__name__)


class _Running(NamedTuple):
    """What is there between `start` and `close`."""

    backend: ContainerBackend
    removals: Removals
    launcher: Launcher
    pool: ContainerPool
    loop: asyncio.AbstractEventLoop


class DockerSandboxes(SandboxProvider):
    """Opens sessions in containers of their own.

    Args:
        limits: of each session.
        preload: packages to have imported before a session begins; they must be in the image.
        settings: see `DockerSettings`.
        backend: instead of the Docker daemon that the settings name.
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        preload: Sequence[str] = (),
        settings: DockerSettings | None = None,
        backend: ContainerBackend | None = None,
    ) -> None:
        self._limits = limits or SandboxLimits()
        self._preload = tuple(preload)
        self._settings = settings or DockerSettings()
        self._given_backend = backend
        self._owner = Owner.of_this_process()
        self._facts = EngineFacts()
        self._transport = self._settings.transport
        self._doors = Doors(self._owner)
        self._running: _Running | None = None
        self._changing = asyncio.Lock()  # one of start and close at a time
        self._ending: asyncio.Task[None] | None = None
        self._names: dict[Wire, str] = {}
        self._open: set[RunnerSandbox] = set()
        self.left_behind: tuple[str, ...] = ()  # containers that `close` could not remove

    @property
    def description(self) -> str:
        """One line for the run header."""
        runtime = self._settings.runtime or self._facts.default_runtime
        loaded = f", preloaded {', '.join(self._preload)}" if self._preload else ""
        return (
            f"docker ({self._settings.image}; {runtime}, over {self._transport}; no network, no capabilities, "
            f"read-only, distinct user ids; seccomp; control groups and rlimits{loaded})"
        )

    @property
    def label(self) -> str:
        """What the containers of this launcher carry, as `docker ps --filter label=…` takes it."""
        return f"{LABEL}={self._owner.name}"

    @property
    def ready(self) -> int:
        """Sessions that the pool has ready."""
        return self._running.pool.ready if self._running else 0

    async def start(self) -> None:
        """Look at the daemon, remove what ended processes left there, make a first session. A second call does nothing.

        Raises:
            SandboxUnavailableError: the daemon is not there or cannot give the isolation; the message prints the way
                out.
        """
        async with self._changing:
            await self._ended()
            if self._running is not None:
                return
            try:
                await self._start()
            except (SandboxUnavailableError, SandboxError, ContainerError, OSError) as error:
                await self._ended()
                raise SandboxUnavailableError(f"sandbox=docker cannot run here: {error}") from error
            except BaseException:
                await self._ended()
                raise

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
            launched = await self._take()
        except SandboxError:
            self.counters.failed_starts += 1
            raise
        waited = time.monotonic() - asked
        under_way = min(waited, launched.launch_s) if launched.made_at > asked else 0.0
        self.counters.starts += 1
        self.counters.start_s += waited
        self.counters.pool_wait_s += waited - under_way
        self._names[launched.wire] = launched.name
        return launched.wire

    def release(self, wire: Wire) -> None:
        """Hang up, and remove the container in the background; see `SessionOwner.release`."""
        wire.close()
        name = self._names.pop(wire, None)
        if name is not None and self._running is not None:
            self._running.removals.start(name)

    def forget(self, sandbox: RunnerSandbox) -> None:
        """A session was closed; see `SessionOwner.forget`."""
        self._open.discard(sandbox)

    async def close(self) -> None:
        """End every session; returns when their containers are gone. What could not be removed is reported.

        A caller that is cancelled leaves; the end goes on, and another call waits for it.
        """
        async with self._changing:
            if self._running is not None:
                _require_loop_of(self._running)
                running, self._running = self._running, None
                self._ending = asyncio.ensure_future(self._end(running))
            await self._ended()

    async def _start(self) -> None:
        if self._owner.pid != os.getpid():  # made before a fork
            self._owner = Owner.of_this_process()
            self._doors = Doors(self._owner)
        backend = self._given_backend or _engine_backend(self._settings.host)
        running = self._assemble(backend)
        try:
            await self._look_at(backend)
            await self._require_image(backend)
            await self._reap(running)
            self._doors.open()
            running.pool.put(await self._first_session(running.launcher))
        except BaseException:
            self._ending = asyncio.ensure_future(self._end(running))
            raise
        self._running = running
        running.pool.fill()

    async def _ended(self) -> None:
        if self._ending is not None:
            try:
                await asyncio.shield(self._ending)
            finally:
                if self._ending.done():
                    self._ending = None

    async def _end(self, running: _Running) -> None:
        try:
            await running.pool.close()
            for sandbox in list(self._open):
                await sandbox.close()
            self.left_behind = tuple(sorted(await running.removals.finish(_CLOSE_S)))
        finally:
            await running.removals.cancel()
            await running.backend.close()
            self._doors.close()
        if self.left_behind:
            names = " ".join(self.left_behind)
            _log.error("these containers could not be removed; type: docker rm --force %s", names)

    def _assemble(self, backend: ContainerBackend) -> _Running:
        removals = Removals(backend, self.counters)
        plan = ContainerPlan(owner=self._owner, settings=self._settings, limits=self._limits, preload=self._preload)
        launcher = Launcher(backend, removals, plan, self._doors)
        pool = ContainerPool(
            lambda: launcher.launch(self._transport, maps_user_ids=self._facts.maps_user_ids),
            self._discard,
            size=self._settings.pool_size,
            at_once=self._settings.max_parallel_starts,
        )
        return _Running(backend, removals, launcher, pool, asyncio.get_running_loop())

    async def _look_at(self, backend: ContainerBackend) -> None:
        """Refuse a daemon that cannot hold sessions to their limits; choose how to reach them.

        Raises:
            SandboxUnavailableError: what to do instead.
        """
        local = backend.host.startswith("unix://") and sys.platform == "linux"
        if self._settings.transport is Transport.SOCKET and not local:
            raise SandboxUnavailableError(
                f"sandbox.docker.transport=socket needs a daemon on this machine, not {backend.host}; leave it out"
            )
        self._facts = await backend.connect()
        why_not = hardening.refusal(self._facts, self._settings)
        if why_not:
            raise SandboxUnavailableError(why_not)
        for warning in hardening.warnings(self._facts):
            _log.warning("%s", warning)
        if self._settings.transport is Transport.AUTO:
            dials = local and hardening.shares_kernel(self._facts, self._settings)
            self._transport = Transport.SOCKET if dials else Transport.STDIO

    async def _require_image(self, backend: ContainerBackend) -> None:
        image = self._settings.image
        found = await backend.find_image(image)
        if found is None and self._settings.pull is Pull.MISSING:
            _log.info("pulling the image %s", image)
            await backend.pull(image)
            found = await backend.find_image(image)
        if found is None:
            raise SandboxUnavailableError(_no_image(image))
        if found.volumes:
            places = ", ".join(found.volumes)
            raise SandboxUnavailableError(
                f"the image {image} declares volumes ({places}), which sessions could fill; use one without"
            )

    async def _reap(self, running: _Running) -> None:
        """Have the containers removed that processes of this user here left when they were killed."""
        found = await running.backend.list(LABEL)
        left_over = [record.name for record in found if self._owner.may_reap(record.labels)]
        for name in left_over:
            running.removals.own(name)
            running.removals.start(name)
        if left_over:
            _log.warning("removing %d containers that ended processes left: %s", len(left_over), ", ".join(left_over))

    async def _first_session(self, launcher: Launcher) -> Launched:
        """One session ahead of all need: what does not work is found now, not in every episode."""
        mapped = self._facts.maps_user_ids
        try:
            return await launcher.launch(self._transport, maps_user_ids=mapped)
        except SessionRefusedError:
            raise
        except SandboxError as error:
            if self._settings.transport is not Transport.AUTO or self._transport is Transport.STDIO:
                raise
            launched = await launcher.launch(Transport.STDIO, maps_user_ids=mapped)
            self._transport = Transport.STDIO
            _log.warning("sessions go over the containers' standard streams, since a socket does not work: %s", error)
            return launched

    async def _take(self) -> Launched:
        """A session that answers."""
        running = self._running
        if running is None:
            raise SandboxError("the sandbox provider is not running: call start() first")
        _require_loop_of(running)
        while True:
            launched = await running.pool.take()
            try:
                well = time.monotonic() - launched.made_at < _FRESH_S or await is_well(launched)
            except BaseException:
                self._discard(launched)
                raise
            if self._running is running and well:
                return launched
            self._discard(launched)
            if self._running is not running:
                raise SandboxError("the sandbox provider was closed")
            _log.warning("a session that was kept ready ended before its use: %s", launched.name)

    def _discard(self, launched: Launched) -> None:
        self._names[launched.wire] = launched.name
        self.release(launched.wire)


def _require_loop_of(running: _Running) -> None:
    """What waits in one event loop is never woken from another one.

    Raises:
        SandboxError: the provider was started in another one.
    """
    if asyncio.get_running_loop() is not running.loop:
        raise SandboxError("the sandbox provider was started in another event loop: start, use and close it in one")


def _engine_backend(host: str) -> ContainerBackend:
    try:
        from miles_agents.tools.sandboxes.docker.engine_backend import EngineBackend
    except ModuleNotFoundError as error:
        raise SandboxUnavailableError(
            f"{error.name} is not installed. Type:\n    pip install 'miles_agents[docker]'"
        ) from error
    return EngineBackend(host)


def _no_image(image: str) -> str:
    if image == IMAGE:
        return (
            f"the daemon has no image {image}. Make it:\n    make sandbox-image\n"
            "or, where no registry is reachable:\n    docker/build_offline.sh"
        )
    return f"the daemon has no image {image}. Type:\n    docker pull {image}\nor add: sandbox.docker.pull=missing"
