"""What a container says over its attached streams: its own words when it fails, and the whole session over stdio."""

from __future__ import annotations

import contextlib
from collections import deque

from miles_agents.tools.sandboxes.docker.backend import STDOUT, Attachment

_KEPT_CHUNKS = 32
_KEPT_CHARS = 2000


class LastWords:
    """The end of what a container wrote outside the protocol."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque(maxlen=_KEPT_CHUNKS)

    def add(self, data: bytes) -> None:
        """Keep the end of it."""
        self._chunks.append(data[-_KEPT_CHARS:])

    def __str__(self) -> str:
        return b"".join(self._chunks).decode(errors="backslashreplace").strip()[-_KEPT_CHARS:]


async def listen(attachment: Attachment, words: LastWords) -> None:
    """Keep what is said; returns when the container has ended, or the daemon says no more of it."""
    with contextlib.suppress(OSError):
        while (chunk := await attachment.read()) is not None:
            words.add(chunk.data)


class StdioChannel:
    """A session over its container's standard input and output; see `wire.Channel`.

    Args:
        attachment: with standard input; owned by the channel.
        words: takes what comes over standard error.
    """

    def __init__(self, attachment: Attachment, words: LastWords) -> None:
        self._attachment = attachment
        self._words = words
        self._hung_up = False

    async def receive(self) -> bytes:
        """See `Channel.receive`."""
        while not self._hung_up and (chunk := await self._attachment.read()) is not None:
            if chunk.stream == STDOUT and chunk.data:
                return chunk.data
            self._words.add(chunk.data)
        return b""

    async def send(self, data: bytes) -> None:
        """See `Channel.send`."""
        await self._attachment.write(data)

    def hang_up(self) -> None:
        """See `Channel.hang_up`."""
        self._hung_up = True
        self._attachment.close()

    def close(self) -> None:
        """See `Channel.close`."""
        self.hang_up()
