"""Reading calls whose arguments stand between tags as they are: nothing in them is escaped.

Where a value ends is decided by what stands behind its closing tag: the next argument, or the end of the call. A
closing tag before anything else is data. A text with two readings is an error, never a shortened value: a value in
which another call begins, an argument given twice, closing tags outside any call. A reply with such a fault, or with a
call that cannot be read, is refused whole: every end of a call in it may be a piece of data.

White space between tags is skipped (at most 32 characters, so that a decision never waits for long). White space of a
value is its own, but for the one `padding` at each side that the family's template writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from miles_agents.chat.arguments import MalformedCallError, clipped
from miles_agents.chat.formats.base import Call, CallReader, Ended, Ending, ToolFormat, cannot_say, not_closed
from miles_agents.chat.schemas import ToolSchemas, as_json
from miles_agents.chat.source import Source, beginning_at_end, beginnings

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


class Chars(NamedTuple):
    """A run of characters of one class."""

    chars: str
    least: int
    most: int
    kept: bool = False  # it is what the pattern is after

    def pattern(self, least: int | None = None) -> str:
        """Its pattern; `least` replaces its own."""
        return f"{self.chars}{{{self.least if least is None else least},{self.most}}}"


GAP = Chars(r"\s", 0, 32)
NAME = Chars(r"[^<>\n]", 1, 128, kept=True)

Parts = tuple[str | Chars, ...]  # tags and what stands between them


class Expected:
    """One of some sequences of tags, and whether a text may become one.

    Args:
        ways: the sequences.
        before: a tag that must follow, and is not part of them.
    """

    def __init__(self, *ways: Parts, before: str = "") -> None:
        ahead = f"(?={GAP.pattern()}{re.escape(before)})" if before else ""
        self._whole = re.compile("|".join(_whole(parts) + ahead for parts in ways))
        tail: Parts = (GAP, before) if before else ()
        self._unfinished = re.compile("|".join(_unfinished((*parts, *tail)) for parts in ways))

    def match(self, text: str, at: int) -> re.Match[str] | None:
        """The match that begins at `at`."""
        return self._whole.match(text, at)

    def may_begin(self, source: Source, at: int) -> bool:
        """True if the rest of the text is the beginning of a match, and more may come."""
        return not source.final and self._unfinished.match(source.text, at) is not None


def _whole(parts: Parts) -> str:
    written = (re.escape(each) if isinstance(each, str) else each.pattern() for each in parts)
    kept = (isinstance(each, Chars) and each.kept for each in parts)
    return "".join(f"({text})" if is_kept else text for text, is_kept in zip(written, kept, strict=True))


def _unfinished(parts: Parts) -> str:
    """A pattern for proper beginnings of these parts, up to the end of the text."""
    if not parts:
        return r"(?!)"
    first, rest = parts[0], _unfinished(parts[1:])
    if isinstance(first, str):
        return rf"(?:{beginnings(first)}|\Z|{re.escape(first)}{rest})"
    return rf"(?:{first.pattern(least=0)}\Z|{first.pattern()}{rest})"


class Grammar(NamedTuple):
    """The tags of a family. All but `nested` may be tried right behind a tag."""

    head: Expected  # behind <tool_call>; group 1: the tool's name
    argument: Expected  # what precedes a value; group 1: its key
    value_close: str
    tail: Expected  # what ends the call, </tool_call> last
    nested: Expected  # the beginning of a call, within a value
    padding: str
    expected: str  # how a call is written, for the model


class _State(StrEnum):
    HEAD = "head"
    BETWEEN = "between"
    VALUE = "value"
    TO_TAG = "to_tag"  # it is broken: skip to the next closing tag
    TO_END = "to_end"  # it is ambiguous: nothing behind it can be told from its data


@cache
def _value_tag(close: str) -> re.Pattern[str]:
    """A pattern of the tags that matter inside a value."""
    return re.compile(f"{re.escape(close)}|{CALL_OPEN}")


class TaggedReader(CallReader):
    """Reads one call by its grammar."""

    def __init__(self, grammar: Grammar, schemas: ToolSchemas, *, strict: bool) -> None:
        super().__init__(strict=strict)
        self._grammar = grammar
        self._schemas = schemas
        self._state = _State.HEAD
        self._tag = _value_tag(grammar.value_close)
        self._fault = ""
        self._broken_at = -1  # where in the body it is written otherwise
        self._key = ""
        self._is_text = True
        self._value: list[str] = []
        self._unsent = ""
        self._at_start = True
        self.values: dict[str, str] = {}  # the text of each argument
        self._arguments: dict[str, Any] = {}

    def read(self, source: Source) -> Ended | None:
        """Read on, see `CallReader`."""
        while True:
            before = (self._state, source.at)
            ended = _STEPS[self._state](self, source)
            if ended is not None or (self._state, source.at) == before:
                return ended

    def _head(self, source: Source) -> Ended | None:
        found = self._grammar.head.match(source.text, source.at)
        if found is None:
            return self._unless(source, self._grammar.head)
        source.at = found.end()
        self.name = found[1]
        self.pieces.append("{")
        self._state = _State.BETWEEN
        return None

    def _between(self, source: Source) -> Ended | None:
        found = self._grammar.argument.match(source.text, source.at)
        if found is not None:
            source.at = found.end()
            self._begin_value(found[1])
            return None
        found = self._grammar.tail.match(source.text, source.at)
        if found is not None:
            source.at = found.end()
            self.pieces.append("}")
            return Ended(Ending.CLOSED, source.since_mark(found.end() - len(CALL_CLOSE)))
        return self._unless(source, self._grammar.argument, self._grammar.tail)

    def _unless(self, source: Source, *expected: Expected) -> Ended | None:
        """What stands here fits nothing: wait while it may become what is expected, else the call is broken."""
        if any(each.may_begin(source, source.at) for each in expected):
            return None
        if self.strict:
            return Ended(Ending.FAILED, 0)
        self._broken_at = source.since_mark(source.at)
        self._state = _State.TO_TAG
        return None

    def _begin_value(self, key: str) -> None:
        if key in self.values:
            self._fault = self._fault or f"argument {clipped(repr(key), 60)} is given twice"
        self._key = key
        self._is_text = self._schemas.is_text(self.name, key)
        self._value, self._unsent, self._at_start = [], "", True
        comma = ", " if self.values else ""
        self.pieces.append(f"{comma}{as_json(key)}: " + ('"' if self._is_text else ""))
        self._state = _State.VALUE

    def _in_value(self, source: Source) -> Ended | None:
        found = self._tag.search(source.text, source.at)
        stop = found.start() if found else len(source.text)
        if found is None and not source.final:
            stop = beginning_at_end(source.text, source.at, self._grammar.value_close, CALL_OPEN)
        self._take(source, stop)
        if found is None:
            return Ended(self._unclosed(), source.since_mark(source.at)) if source.final else None
        grammar = self._grammar
        if found[0] == CALL_OPEN:
            if grammar.nested.match(source.text, stop):
                return self._at_nested_call()
            undecided = grammar.nested.may_begin(source, stop)
        else:
            behind, ways = found.end(), (grammar.argument, grammar.tail)
            if any(each.match(source.text, behind) for each in ways):
                source.at = behind
                self._end_value()
                return None
            undecided = any(each.may_begin(source, behind) for each in ways)
        if not undecided:
            self._take(source, found.end())
        return None

    def _at_nested_call(self) -> Ended | None:
        if self.strict:
            return Ended(Ending.FAILED, 0)
        self._fault = f"ambiguous: another call begins inside {clipped(repr(self._key), 60)}. Write it otherwise"
        self._state = _State.TO_END
        return None

    def _take(self, source: Source, stop: int) -> None:
        """Add the text up to `stop` to the value; pass on what is certain to be of it."""
        piece = source.text[source.at : stop]
        source.at = stop
        if not piece:
            return
        self._value.append(piece)
        if not self._is_text:
            return
        padding = self._grammar.padding
        unsent = self._unsent + piece
        if self._at_start and padding:
            unsent = unsent.removeprefix(padding)
        self._at_start = False
        kept = padding if padding and unsent.endswith(padding) else ""
        self._pass_on(unsent[: len(unsent) - len(kept)])
        self._unsent = kept

    def _pass_on(self, text: str) -> None:
        if text:
            self.pieces.append(as_json(text)[1:-1])

    def _end_value(self) -> None:
        padding = self._grammar.padding
        text = "".join(self._value)
        if padding:
            text = text.removeprefix(padding).removesuffix(padding)
        value = self._schemas.read_value(self.name, self._key, text)
        self.values[self._key] = text
        self._arguments[self._key] = value
        self.pieces.append('"' if self._is_text else as_json(value))
        self._state = _State.BETWEEN

    def _to_tag(self, source: Source) -> Ended | None:
        start = source.text.find(CALL_CLOSE, source.at)
        if start >= 0:
            source.at = start + len(CALL_CLOSE)
            return Ended(Ending.CLOSED, source.since_mark(start))
        source.at = len(source.text) if source.final else beginning_at_end(source.text, source.at, CALL_CLOSE)
        return Ended(Ending.UNCLOSED, source.since_mark(source.at)) if source.final else None

    def _to_end(self, source: Source) -> Ended | None:
        source.at = len(source.text)
        return Ended(Ending.UNCLOSED, source.since_mark(source.at)) if source.final else None

    def _unclosed(self) -> Ending:
        return Ending.FAILED if self.strict else Ending.UNCLOSED

    def result(self, body: str, *, closed: bool, truncated: bool) -> Call:
        """The call.

        Raises:
            MalformedCallError: it is cut, broken or ambiguous.
        """
        if self._fault:
            raise MalformedCallError(self._fault)
        if self._broken_at >= 0:
            near = clipped(repr(body[self._broken_at : self._broken_at + 40]), 60)
            raise MalformedCallError(f"a call is written {self._grammar.expected}, not {near}")
        if not closed:
            raise not_closed(CALL_CLOSE)
        return Call(self.name, self._arguments)


_STEPS = {
    _State.HEAD: TaggedReader._head,
    _State.BETWEEN: TaggedReader._between,
    _State.VALUE: TaggedReader._in_value,
    _State.TO_TAG: TaggedReader._to_tag,
    _State.TO_END: TaggedReader._to_end,
}


class TaggedFormat(ToolFormat):
    """A format of that kind."""

    grammar: Grammar
    strays: re.Pattern[str]

    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """A reader by the grammar."""
        return TaggedReader(self.grammar, schemas, strict=strict)

    def checked(self, text: str, name: str, arguments: Mapping[str, Any]) -> str:
        """`text`, if reading it gives these arguments back, as texts.

        Raises:
            UsageError: it has another reading.
        """
        reader = TaggedReader(self.grammar, ToolSchemas(), strict=False)
        source = Source(text.removeprefix(CALL_OPEN), final=True)
        source.mark()
        ended = reader.read(source)
        wanted = {key: value_text(value) for key, value in arguments.items()}
        whole = ended is not None and ended.ending is Ending.CLOSED and not source.waiting
        if not whole or reader.name != name or reader.values != wanted:
            raise cannot_say(self, f"its text would be read otherwise: {text}")
        return text


def value_text(value: Any) -> str:
    """A value as it is written between tags: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)
