"""From a name to a session that is greeted and ready: one container's start."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import socket
import time
from typing import Any, NamedTuple

from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.docker.attached import LastWords, StdioChannel, listen
from miles_agents.tools.sandboxes.docker.backend import Attachment, ContainerBackend, ContainerError
from miles_agents.tools.sandboxes.docker.dial_in import SOCKET_NAME, Door, Doors
from miles_agents.tools.sandboxes.docker.hardening import MOUNT_POINT, ContainerPlan, user_id
from miles_agents.tools.sandboxes.docker.removals import Removals
from miles_agents.tools.sandboxes.docker.settings import Transport
from miles_agents.tools.sandboxes.runner_source import bootstrap_command, introduction
from miles_agents.tools.sandboxes.wire import Channel, SocketChannel, Wire, max_answer_bytes

_PYTHON = "python3"
_LAUNCH_S = 120.0  # a busy daemon, and a cold disk under the packages that are imported ahead
_LAST_WORDS_S = 2.0
_PROBE_S = 5.0
_IN_CONTAINER = f"{MOUNT_POINT}/{SOCKET_NAME}"
_STDIO = "-"
_numbers = itertools.count()  # of the process: a provider that is started again makes no name twice


class SessionRefusedError(SandboxError):
    """Host and container talk, and the session itself says that it cannot be."""


class Launched(NamedTuple):
    """A session that nobody has used."""

    name: str  # of its container
    wire: Wire
    launch_s: float  # how long it took to make
    made_at: float  # by the monotonic clock


async def is_well(launched: Launched) -> bool:
    """Whether a session that waited for its use still answers."""
    try:
        await launched.wire.send({"id": -1, "op": "ping"}, _PROBE_S)
        await launched.wire.receive(_PROBE_S)
    except SandboxError:
        return False
    return True


class Launcher:
    """Starts containers of one plan.

    Args:
        backend: the engine.
        removals: owns each container before it is made.
        plan: what is the same for all of them.
        doors: where they dial in; may stay closed if none does.
    """

    def __init__(self, backend: ContainerBackend, removals: Removals, plan: ContainerPlan, doors: Doors) -> None:
        self._backend = backend
        self._removals = removals
        self._plan = plan
        self._doors = doors
        self._introduction = introduction(plan.limits, plan.preload)
        self._first_serial = secrets.randbelow(1 << 26)

    async def launch(self, transport: Transport, *, maps_user_ids: bool) -> Launched:
        """A fresh session. Whatever goes wrong, and when it is cancelled, its container goes.

        Args:
            transport: how to reach it.
            maps_user_ids: see `EngineFacts`.

        Raises:
            SandboxError: it could not be set up; with what the container said.
        """
        number = next(_numbers)
        name = self._plan.owner.container_name(number)
        began = time.monotonic()
        words = LastWords()
        identity = user_id(self._first_serial + number, mapped=maps_user_ids)
        start = self._over_stdio if transport is Transport.STDIO else self._over_socket
        self._removals.own(name)
        try:
            async with asyncio.timeout(_LAUNCH_S):
                wire = await start(name, identity, words)
        except (SandboxError, ContainerError, OSError) as error:  # a TimeoutError is an OSError
            raise await self._explained(error, name, words) from error
        except BaseException:
            self._removals.start(name)
            raise
        now = time.monotonic()
        return Launched(name, wire, now - began, now)

    async def _explained(self, error: Exception, name: str, words: LastWords) -> SandboxError:
        """The error to raise; the container is on its way out."""
        ending = ""
        try:
            with contextlib.suppress(ContainerError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    ending = await self._backend.ending(name)
        finally:
            self._removals.start(name)
        what = str(error) or f"no session within {_LAUNCH_S:g} s"
        kind = SessionRefusedError if isinstance(error, SessionRefusedError) else SandboxError
        said = f"; it said: {words}" if str(words) else ""
        return kind(f"a sandbox session could not be set up: {what}{f' ({ending})' if ending else ''}{said}")

    async def _over_socket(self, name: str, identity: int, words: LastWords) -> Wire:
        door = self._doors.make(name)
        try:
            body = self._body(identity, _IN_CONTAINER, str(door.folder))
            attachment = await self._make(name, body, stdin=False)
            saying = asyncio.ensure_future(listen(attachment, words))
            try:
                await self._backend.start(name)
                return await self._greeted(SocketChannel(await _dialled(door, saying)))
            except (SandboxError, ContainerError, OSError):
                await asyncio.wait([saying], timeout=_LAST_WORDS_S)
                raise
            finally:
                saying.cancel()
                attachment.close()
        finally:
            door.close()

    async def _over_stdio(self, name: str, identity: int, words: LastWords) -> Wire:
        attachment = await self._make(name, self._body(identity, _STDIO, ""), stdin=True)
        try:
            await self._backend.start(name)
        except BaseException:
            attachment.close()
            raise
        return await self._greeted(StdioChannel(attachment, words))

    async def _make(self, name: str, body: dict[str, Any], *, stdin: bool) -> Attachment:
        await self._removals.create(name, self._backend.create(name, body))
        return await self._backend.attach(name, stdin=stdin)

    def _body(self, identity: int, address: str, socket_folder: str) -> dict[str, Any]:
        command = bootstrap_command(_PYTHON, address)
        return self._plan.body(command, identity=identity, socket_folder=socket_folder)

    async def _greeted(self, channel: Channel) -> Wire:
        wire = Wire(channel, max_answer_bytes(self._plan.limits))
        try:
            await wire.send(self._introduction, _LAUNCH_S)
            greeting = await wire.receive(_LAUNCH_S)
        except BaseException:
            wire.close()
            raise
        if "failed" in greeting:
            wire.close()
            raise SessionRefusedError(str(greeting["failed"]))
        return wire


async def _dialled(door: Door, ended: asyncio.Future[None]) -> socket.socket:
    """The container's connection.

    Raises:
        SandboxError: the container ended first.
    """
    dialled = door.expect()
    await asyncio.wait({dialled, ended}, return_when=asyncio.FIRST_COMPLETED)
    if not dialled.done():
        raise SandboxError("its container ended before it dialled in")
    dialled.result()
    return door.take()
