"""The part of a reply that is not decided yet, while it is read piece by piece."""

from __future__ import annotations

import re

_CONTEXT = 16  # characters before the reading position that patterns may look back at


class Source:
    """Text that was read in pieces. `text[at:]` is what comes next.

    From `mark()` on, what was read stays, so that it can be had whole (`taken`) or read again (`back_to`). Each
    character is copied a bounded number of times, however small the pieces are.
    """

    def __init__(self, text: str = "", *, final: bool = False) -> None:
        self.text = text
        self.at = 0
        self.final = final  # nothing comes after this text
        self.reread = 0  # how many characters were read again
        self._context = ""
        self._before: list[str] = []  # what was read since the mark, up to `_mark` in the present text
        self._before_length = 0
        self._mark = 0
        self._marked = False

    @property
    def waiting(self) -> int:
        """Number of characters that were not read yet."""
        return len(self.text) - self.at

    def add(self, piece: str) -> None:
        """Put another piece behind the text."""
        if self._marked:
            self._before.append(self.text[self._mark : self.at])
            self._before_length += self.at - self._mark
        start = max(0, self.at - _CONTEXT)
        self.text = self.text[start:] + piece
        self.at -= start
        self._mark = self.at

    def mark(self) -> None:
        """Keep what is read from here on."""
        self._context = self.text[max(0, self.at - _CONTEXT) : self.at]
        self._before, self._before_length, self._mark, self._marked = [], 0, self.at, True

    def release(self) -> None:
        """Keep it no longer."""
        self._before, self._before_length, self._marked = [], 0, False

    def since_mark(self, index: int) -> int:
        """How many characters after the mark `text[index]` is."""
        return self._before_length + index - self._mark

    def taken(self) -> str:
        """All that was read since the mark."""
        return "".join(self._before) + self.text[self._mark : self.at]

    def back_to(self, offset: int) -> None:
        """Go on reading `offset` characters after the mark."""
        self.reread += self.since_mark(self.at) - offset
        if offset < self._before_length:
            joined = self._context + "".join(self._before)
            self.text = joined + self.text[self._mark :]
            self._before, self._before_length, self._mark = [], 0, len(self._context)
        self.at = self._mark + offset - self._before_length


def beginning_at_end(text: str, at: int, *tags: str) -> int:
    """Where in `text[at:]` one of the tags may have begun without being complete; `len(text)` if nowhere."""
    longest = max(map(len, tags)) - 1
    for start in range(max(at, len(text) - longest), len(text)):
        if any(tag.startswith(text[start:]) for tag in tags):
            return start
    return len(text)


def beginnings(*tags: str) -> str:
    """A pattern for the proper beginnings of these tags, at the end of a text."""
    return "(?:" + "|".join(_beginning(tag) for tag in tags) + r")\Z"


def _beginning(tag: str) -> str:
    pattern = ""
    for character in reversed(tag[1:-1]):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return re.escape(tag[0]) + pattern
