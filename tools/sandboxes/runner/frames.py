"""Length-prefixed JSON: four bytes big-endian, then ASCII JSON."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

HEADER = struct.Struct(">I")
MAX_REQUEST_BYTES = 96 << 20  # from the host to a session


class FrameError(Exception):
    """Bytes that are no frame: too long, no JSON, or no object."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame."""
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


class FrameBuffer:
    """Takes bytes as they come and gives whole messages.

    Args:
        max_bytes: a longer body is a `FrameError`.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._data += data

    def complete(self) -> bool:
        """Whether `pop` has something to decode, or to refuse."""
        if len(self._data) < HEADER.size:
            return False
        (length,) = HEADER.unpack_from(self._data)
        return length > self._max_bytes or len(self._data) >= HEADER.size + int(length)

    def pop(self) -> dict[str, Any] | None:
        """The next message, or None while it is incomplete.

        Raises:
            FrameError: what came is no frame.
        """
        if len(self._data) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._data)
        if length > self._max_bytes:
            raise FrameError(f"a frame of {length} bytes; at most {self._max_bytes} are allowed")
        if len(self._data) < HEADER.size + length:
            return None
        body = bytes(self._data[HEADER.size : HEADER.size + length])
        del self._data[: HEADER.size + length]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"no JSON: {error}") from None
        if not isinstance(message, dict):
            raise FrameError("no JSON object")
        return message


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_message(fd: int, buffer: FrameBuffer) -> dict[str, Any]:
    """The next message of a blocking descriptor.

    Raises:
        EOFError: the other end is gone.
        FrameError: what came is no frame.
    """
    while (message := buffer.pop()) is None:
        data = os.read(fd, 1 << 16)
        if not data:
            raise EOFError
        buffer.feed(data)
    return message
