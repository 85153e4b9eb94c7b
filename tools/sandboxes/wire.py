"""Frames between the host and one session's supervisor, with a deadline on every wait."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from miles_agents.contracts import SandboxLimits
from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, FrameError, encode

T = TypeVar("T")

_READ_BYTES = 1 << 16  # a larger buffer is mapped and unmapped by the allocator for every answer
_LARGE_BYTES = 1 << 18  # JSON of this size takes milliseconds: a thread's work, not the event loop's


class Channel(Protocol):
    """A byte stream to a session. One task receives and one sends at a time."""

    async def receive(self) -> bytes:
        """Some bytes; b"" at the end of the stream.

        Raises:
            OSError: the stream broke.
        """
        ...

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            OSError: the stream broke.
        """
        ...

    def hang_up(self) -> None:
        """End the stream, so that the other end sees it and waits of this one end. May be called twice."""
        ...

    def close(self) -> None:
        """Free what the channel holds; nobody may be waiting on it. May be called twice."""
        ...


class SocketChannel:
    """A connected stream socket, owned by the channel.

    The descriptor stays registered with the event loop from the first wait on: registering it anew for each answer
    costs as much as the answer.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._waiting: asyncio.Future[bytes] | None = None
        self._watched_by: asyncio.AbstractEventLoop | None = None

    async def receive(self) -> bytes:
        """See `Channel.receive`. A turn of the event loop for each piece: a fast sender cannot keep it to itself."""
        loop = asyncio.get_running_loop()
        if self._watched_by is not loop:
            self.unwatch()
            loop.add_reader(self._socket, self._take)
            self._watched_by = loop
        self._waiting = loop.create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    async def send(self, data: bytes) -> None:
        """See `Channel.send`."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            await asyncio.get_running_loop().sock_sendall(self._socket, memoryview(data)[sent:])

    def hang_up(self) -> None:
        """See `Channel.hang_up`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end was faster
            return

    def close(self) -> None:
        """See `Channel.close`."""
        self.unwatch()
        self._socket.close()

    def _take(self) -> None:
        # Read here and not by the task that waits: it runs one turn later, until when the loop would find the
        # descriptor readable again.
        if self._waiting is None:  # nobody asked: the other end hung up between two calls
            self.unwatch()
            return
        if self._waiting.done():
            return
        try:
            self._waiting.set_result(self._socket.recv(_READ_BYTES))
        except BlockingIOError:
            return
        except OSError as error:
            self._waiting.set_exception(error)

    def unwatch(self) -> None:
        """Take the descriptor from the event loop, for others to wait on."""
        if self._watched_by is not None and not self._watched_by.is_closed():
            self._watched_by.remove_reader(self._socket)
        self._watched_by = None


class Wire:
    """Messages over one channel. After a failed or cancelled wait the wire is dead: its frames are out of step.

    Args:
        channel: to the session; the wire owns it.
        max_bytes: a longer message from the session is a lost session.
    """

    def __init__(self, channel: Channel, max_bytes: int) -> None:
        self._channel = channel
        self._buffer = FrameBuffer(max_bytes)
        self.dead = ""  # why it cannot be used any more

    async def receive(self, deadline_s: float) -> dict[str, Any]:
        """The next message.

        Raises:
            SandboxError: the other end is gone, too slow, or talks nonsense.
        """
        return await self._within(deadline_s, self._next())

    async def send(self, message: dict[str, Any], deadline_s: float) -> None:
        """Send one message; raises as `receive` does."""
        await self._within(deadline_s, self._channel.send(encode(message)))

    async def ask(self, message: dict[str, Any], deadline_s: float, *, large: bool = False) -> dict[str, Any]:
        """Send one message, then receive one; raises as `receive` does.

        Args:
            message: JSON.
            deadline_s: for both.
            large: encode it off the event loop.
        """
        return await self._within(deadline_s, self._ask(message, large=large))

    async def _within(self, deadline_s: float, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await work
        except TimeoutError:
            raise self.lost(f"no answer within {deadline_s:g} s") from None
        except (OSError, FrameError) as error:
            raise self.lost(str(error)) from error
        except asyncio.CancelledError:
            self.kill("a call was cancelled")
            raise

    async def _ask(self, message: dict[str, Any], *, large: bool) -> dict[str, Any]:
        await self._channel.send(await asyncio.to_thread(encode, message) if large else encode(message))
        return await self._next()

    async def _next(self) -> dict[str, Any]:
        while (message := await self._pop()) is None:
            data = await self._channel.receive()
            if not data:
                raise self.lost("its processes ended")
            self._buffer.feed(data)
        return message

    async def _pop(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LARGE_BYTES or not self._buffer.complete():
            return self._buffer.pop()
        return await asyncio.to_thread(self._buffer.pop)

    def lost(self, why: str) -> SandboxError:
        """Hang up, and the error to raise."""
        if not self.dead:
            self.kill(why)
        return SandboxError(f"the sandbox session was lost: {self.dead}")

    def kill(self, why: str) -> None:
        """Hang up: the session's supervisor sees it and ends, and everything in the session with it."""
        self.dead = self.dead or why
        self._channel.hang_up()

    def close(self) -> None:
        """Hang up and free the channel; nobody may be waiting."""
        self.kill("it was closed")
        self._channel.close()


def max_answer_bytes(limits: SandboxLimits) -> int:
    """The largest honest answer: a file in base64, or two streams with six bytes of JSON for each one."""
    file = (limits.file_mb << 20) * 4 // 3
    streams = 2 * (limits.output_kb << 10) * 6
    return file + streams + (1 << 20)
