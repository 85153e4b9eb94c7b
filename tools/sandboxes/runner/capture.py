"""Bounded capture of an output stream: its head, its tail, and how much was left out."""

from __future__ import annotations


class Capture:
    """Keeps the first and the last half of `shown_bytes`.

    Args:
        shown_bytes: how much of the stream is kept at most.
    """

    def __init__(self, shown_bytes: int) -> None:
        self._half = max(1, shown_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take more of the stream."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 4 * self._half:
                del self._tail[: -self._half]

    def text(self) -> str:
        """What is shown; bytes that are no UTF-8 become backslash escapes."""
        tail = bytes(self._tail[-self._half :])
        omitted = self.total - len(self._head) - len(tail)
        if not omitted:
            return (bytes(self._head) + tail).decode("utf-8", "backslashreplace")
        head, tail = _whole_head(bytes(self._head)), _whole_tail(tail)
        omitted = self.total - len(head) - len(tail)
        parts = (head.decode("utf-8", "backslashreplace"), tail.decode("utf-8", "backslashreplace"))
        return f"{parts[0]}\n… [{omitted} bytes omitted] …\n{parts[1]}"


def _whole_head(data: bytes) -> bytes:
    """Without a character that the cut split at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead >= 0xC0:
            length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data[:-back] if length > back else data
        if lead < 0x80:
            break
    return data


def _whole_tail(data: bytes) -> bytes:
    """Without the rest of a character that the cut split at the start."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
