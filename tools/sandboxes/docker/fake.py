"""A container engine that keeps a record and runs nothing: for tests of whoever owns containers.

Its containers dial the host's socket or take their standard streams as real ones do, greet, and answer `exec` from a
script. Removals may fail, creations may be slow, and other people's containers may be there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_agents.tools.sandboxes.docker.backend import (
    STDERR,
    STDOUT,
    Chunk,
    ContainerError,
    ContainerRecord,
    EngineFacts,
    ImageFacts,
    Removal,
)
from miles_agents.tools.sandboxes.docker.dial_in import SOCKET_NAME
from miles_agents.tools.sandboxes.docker.owned_tasks import OwnedTasks
from miles_agents.tools.sandboxes.docker.settings import IMAGE
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, encode

_MAX_BYTES = 1 << 24
_READ_BYTES = 1 << 16
_NOT_FOUND, _CONFLICT, _FAILED = 404, 409, 500
_Send = Callable[[bytes], Awaitable[None]]
Script = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


async def _say_ok(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"status": "ok", "stdout": ""}


@dataclass(slots=True)
class FakeContainer:
    """One container of the record."""

    name: str
    body: Mapping[str, Any]
    stdin: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)  # b"" at its end
    output: asyncio.Queue[Chunk | None] = field(default_factory=asyncio.Queue)
    running: asyncio.Future[None] | None = None


class FakeAttachment:
    """The streams of a fake container."""

    def __init__(self, container: FakeContainer, attached: set[FakeAttachment]) -> None:
        self._container = container
        self._attached = attached
        attached.add(self)

    async def read(self) -> Chunk | None:
        """See `Attachment.read`."""
        return await self._container.output.get()

    async def write(self, data: bytes) -> None:
        """See `Attachment.write`."""
        self._container.stdin.put_nowait(data)

    def close(self) -> None:
        """See `Attachment.close`."""
        self._attached.discard(self)
        self._container.stdin.put_nowait(b"")
        self._container.output.put_nowait(None)


class FakeContainerBackend:
    """Keeps a record of what was made and removed.

    Args:
        script: what a session answers to an `exec` request; it may take its time.
        create_s: how long making a container takes; a caller that goes away changes nothing.
        start_s: how long until a started container dials in.
        fail_removals: numbers of the attempts to remove, counted from 0, that fail.
        greeting: what a session says first; empty for a container that ends before it does.
        facts: what the engine says of itself.
    """

    def __init__(
        self,
        script: Script = _say_ok,
        *,
        create_s: float = 0.0,
        start_s: float = 0.0,
        fail_removals: Container[int] = (),
        greeting: Mapping[str, Any] | None = None,
        facts: EngineFacts | None = None,
    ) -> None:
        self._script = script
        self._create_s = create_s
        self._start_s = start_s
        self._fail_removals = fail_removals
        self._facts = facts or EngineFacts(version="fake")
        self.greeting: Mapping[str, Any] = {"ready": True} if greeting is None else greeting
        self.host = "unix:///fake.sock"
        self.images = {IMAGE: ImageFacts()}
        self.containers: dict[str, FakeContainer] = {}
        self.created: list[str] = []
        self.removed: list[str] = []
        self.removal_attempts = 0
        self.attached: set[FakeAttachment] = set()  # and not closed yet
        self.refuse_creations = ""  # why, if it does
        self.closed = False
        self._tasks = OwnedTasks()

    async def connect(self) -> EngineFacts:
        """See `ContainerBackend.connect`."""
        return self._facts

    async def find_image(self, image: str) -> ImageFacts | None:
        """See `ContainerBackend.find_image`."""
        return self.images.get(image)

    async def pull(self, image: str) -> None:
        """See `ContainerBackend.pull`."""
        self.images[image] = ImageFacts()

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """See `ContainerBackend.create`."""
        await asyncio.sleep(self._create_s)
        if self.refuse_creations:
            raise ContainerError(self.refuse_creations, _FAILED)
        if name in self.containers:
            raise ContainerError(f"the name {name} is in use", _CONFLICT)
        self.containers[name] = FakeContainer(name, body)
        self.created.append(name)

    def put(self, record: ContainerRecord) -> None:
        """Have a container there that somebody else made."""
        self.containers[record.name] = FakeContainer(record.name, {"Labels": dict(record.labels)})

    async def attach(self, name: str, *, stdin: bool) -> FakeAttachment:
        """See `ContainerBackend.attach`."""
        return FakeAttachment(self._get(name), self.attached)

    async def start(self, name: str) -> None:
        """See `ContainerBackend.start`."""
        container = self._get(name)
        mounts = container.body["HostConfig"].get("Mounts")
        address = Path(mounts[0]["Source"], SOCKET_NAME) if mounts else None
        container.running = self._tasks.start(self._run(container, address))

    async def ending(self, name: str) -> str:
        """See `ContainerBackend.ending`."""
        return "" if name in self.containers else "exit code 1"

    async def remove(self, name: str) -> Removal:
        """See `ContainerBackend.remove`."""
        number = self.removal_attempts
        self.removal_attempts += 1
        await asyncio.sleep(0)
        if number in self._fail_removals:
            raise ContainerError(f"removal {number} fails: its script says so", _FAILED)
        container = self.containers.pop(name, None)
        if container is None:
            return Removal.ABSENT
        self.removed.append(name)
        if container.running is not None:
            container.running.cancel()
        container.output.put_nowait(None)
        return Removal.REMOVED

    async def list(self, label: str) -> Sequence[ContainerRecord]:
        """See `ContainerBackend.list`."""
        key, _, value = label.partition("=")
        records = [ContainerRecord(each.name, each.body.get("Labels", {})) for each in self.containers.values()]
        return [each for each in records if key in each.labels and value in ("", each.labels[key])]

    async def close(self) -> None:
        """See `ContainerBackend.close`."""
        self.closed = True
        await self._tasks.cancel()

    def _get(self, name: str) -> FakeContainer:
        if name not in self.containers:
            raise ContainerError(f"no such container: {name}", _NOT_FOUND)
        return self.containers[name]

    async def _run(self, container: FakeContainer, address: Path | None) -> None:
        await asyncio.sleep(self._start_s)
        try:
            if address is None:
                await self._serve(container.stdin.get, lambda data: container.output.put(Chunk(STDOUT, data)))
            else:
                await self._dial(address)
        except OSError as error:
            container.output.put_nowait(Chunk(STDERR, str(error).encode()))
        container.output.put_nowait(None)
        if self.containers.pop(container.name, None) is not None:  # the engine removes it by itself
            self.removed.append(container.name)

    async def _dial(self, address: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(address)

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            await self._serve(lambda: reader.read(_READ_BYTES), send)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, receive: Callable[[], Awaitable[bytes]], send: _Send) -> None:
        """The runner's part: an introduction, a greeting, then requests until the host hangs up."""
        buffer = FrameBuffer(_MAX_BYTES)
        introduced = False
        while data := await receive():
            buffer.feed(data)
            while (message := buffer.pop()) is not None:
                if introduced:
                    await send(encode({"id": message["id"], **await self._answer(message)}))
                elif not self.greeting:
                    raise OSError("it broke: its script says so")
                else:
                    introduced = {"modules", "settings"} <= set(message)
                    await send(encode(dict(self.greeting)))

    async def _answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["op"] != "exec":
            return {"unsupported": message["op"]}
        return await self._script(message)
