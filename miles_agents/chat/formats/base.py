"""What a tool-call format is: how its calls begin, how one is read piece by piece, how one is written."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

from miles_agents.chat.arguments import MalformedCallError, clipped
from miles_agents.chat.schemas import ToolSchemas
from miles_agents.chat.source import Source, beginning_at_end, beginnings
from miles_agents.errors import UsageError


class Ending(StrEnum):
    """How the reading of a call ended."""

    CLOSED = "closed"
    UNCLOSED = "unclosed"  # the reply ended first
    NO_CALL = "no_call"  # what looked like a call is none: it stays content (or thinking)
    FAILED = "failed"  # strict reading only: no complete call begins here


class Ended(NamedTuple):
    """The end of a call: `body` characters after its opening, its closing begins; the source stands behind that."""

    ending: Ending
    body: int


class Call(NamedTuple):
    """A call that could be read."""

    name: str
    arguments: dict[str, Any]


class CallReader(ABC):
    """Reads one call, piece by piece.

    Attributes:
        name: the tool's name, once it is certain that this is a call, and of what. Until then empty.
        pieces: parts of the JSON text of its arguments, in order, that may be passed on already. Either none is ever
            added, or all of them together are the whole JSON object, if the call turns out to be well-formed.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self.name = ""
        self.pieces: list[str] = []

    @abstractmethod
    def read(self, source: Source) -> Ended | None:
        """Read on. None means that more text is needed; never None if `source.final`.

        Strict reading (a possible call inside thinking) gives up with `FAILED` as soon as the text cannot be a
        complete call, in any case where another call seems to begin, so that reading again from there stays linear.
        """

    @abstractmethod
    def result(self, body: str, *, closed: bool, truncated: bool) -> Call:
        """The call. `closed`: it ended before the reply did. `truncated`: a token limit cut the reply.

        Raises:
            MalformedCallError: it cannot be understood; the message is for the model.
        """


class ToolFormat(ABC):
    r"""How one family of models writes calls. Stateless: one object serves all replies.

    Attributes:
        name: the name it is found by.
        opening: pattern of what may begin a call in content. Must end in a fixed character or a look-ahead that does,
            so that what it matches does not depend on what follows; may look back 16 characters, holds no other tag.
            No flags, no named groups.
        unfinished: pattern of what may become an opening when more text comes; ends in `\Z`, at most 256 characters.
        strays: set where nothing protects the text of arguments: pattern of the closing tags. If one stands outside
            calls, or a call of the reply is malformed, what looks like the end of a call may be a piece of its data,
            and no call of that reply is executed. None: the format's strings protect their text.
    """

    name: ClassVar[str]
    opening: re.Pattern[str]
    unfinished: re.Pattern[str]
    strays: re.Pattern[str] | None = None

    @abstractmethod
    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """A reader for the call that `opening` (as written) begins."""

    @abstractmethod
    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text a model of this family writes for this call; reading it gives the call back.

        Raises:
            UsageError: this format cannot say this call unambiguously.
        """


class DelimitedFormat(ToolFormat):
    """A format whose calls stand between two fixed texts, `begin` and `end`; the least there is to write.

    A call ends at the first `end` behind its `begin`; its arguments are passed on in one piece, when it is complete.
    """

    begin: ClassVar[str]
    end: ClassVar[str]

    def __init__(self) -> None:
        self.opening = re.compile(re.escape(self.begin))
        self.unfinished = re.compile(beginnings(self.begin))

    @abstractmethod
    def read_call(self, body: str, schemas: ToolSchemas) -> Call:
        """The call that stands between `begin` and `end`.

        Raises:
            MalformedCallError: it cannot be understood; the message is for the model.
        """

    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """A reader that waits for `end`."""
        return _DelimitedReader(self, schemas, strict=strict)


class _DelimitedReader(CallReader):
    def __init__(self, style: DelimitedFormat, schemas: ToolSchemas, *, strict: bool) -> None:
        super().__init__(strict=strict)
        self._style = style
        self._schemas = schemas

    def read(self, source: Source) -> Ended | None:
        begin, end = self._style.begin, self._style.end
        found = source.text.find(end, source.at)
        stop = found if found >= 0 else len(source.text)
        if self.strict and 0 <= source.text.find(begin, source.at) < stop:
            return Ended(Ending.FAILED, 0)
        if found >= 0:
            source.at = found + len(end)
            return Ended(Ending.CLOSED, source.since_mark(found))
        if source.final:
            source.at = len(source.text)
            return Ended(Ending.UNCLOSED, source.since_mark(source.at))
        source.at = beginning_at_end(source.text, source.at, begin, end)
        return None

    def result(self, body: str, *, closed: bool, truncated: bool) -> Call:
        if not closed:
            raise not_closed(self._style.end)
        return self._style.read_call(body, self._schemas)


def not_closed(closing: str) -> MalformedCallError:
    """The error for a call that the reply broke off."""
    return MalformedCallError(f"the call is not closed by {closing}")


def cannot_say(style: ToolFormat, what: str) -> UsageError:
    """The error for a call that a format has no unambiguous text for."""
    return UsageError(f"the format '{style.name}' cannot write this call: {clipped(what, 300)}")
