"""Reading a call that is one JSON object, piece by piece: where it ends, its name, its arguments as they come.

Only the structure is followed here (strings, brackets, the keys of the outermost object); whether it is strict JSON is
decided when it is complete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from miles_agents.chat.arguments import MalformedCallError, as_arguments, clipped, read_json
from miles_agents.chat.formats.base import Call, CallReader, Ended, Ending, not_closed
from miles_agents.chat.source import Source, beginning_at_end

_STRING = re.compile(r'"(?:[^"\\\n]|\\[^\n])*+"')
_INSIDE = re.compile(r'(?:[^"\\\n]|\\[^\n])*+')
_MAX_NAME_CHARS = 1000
_MAX_STRICT_DEPTH = 16  # of a call inside thinking: what begins inside another such object is read again

_Step = tuple[Ended | None, bool]  # the end, if it was reached; and False if more text is needed


@cache
def _tokens(closing: str, strict: bool) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns of what matters outside strings: in the outermost object, and deeper."""
    tag = f"|{re.escape(closing)}" + ("|<" if strict else "") if closing else ""
    outer, inner = (rf'\\.|["{{}}\[\]{more}]{tag}' for more in (",:", ""))
    return re.compile(outer, re.DOTALL), re.compile(inner, re.DOTALL)


class JsonCallReader(CallReader):
    """Reads `{"name": …, "arguments": {…}}`.

    Args:
        closing: the tag that ends the call, or "" if it ends with its object. A tag inside a JSON string is data; if a
            string is not closed on its line, the first tag behind its quote ends the call.
        keys: the keys that may hold the arguments.
        strict: give up where the text cannot be one JSON object and its closing tag.
    """

    def __init__(self, *, closing: str, keys: tuple[str, ...], strict: bool) -> None:
        super().__init__(strict=strict)
        self._closing = closing
        self._keys = keys
        self._outer_token, self._inner_token = _tokens(closing, strict)
        self._depth = 0
        self._complete = False  # the outermost object was closed
        self._quote: int | None = None  # where the string began that is being read
        self._raw = False  # only the closing tag is looked for
        self._string: list[str] = []  # the last string of the outermost object
        self._key = ""
        self._seen_name: str | None = None
        self._seen_arguments = False
        self._sent = -1  # up to where arguments were passed on; -1: they are not being read
        self._at_key = False  # an object was opened just now
        self._passed_on = False  # arguments were
        self._started = False

    def is_certain(self, name: str, has_arguments: bool) -> bool:
        """True if an object with this name is a call, whatever follows. `has_arguments`: their key was read, too."""
        return True

    def read(self, source: Source) -> Ended | None:
        """Read on, see `CallReader`."""
        if self._sent >= 0:
            self._sent = source.at
        ended = self._read(source)
        if self._sent >= 0:
            self.pieces.append(source.text[self._sent : source.at])
        return ended

    def _read(self, source: Source) -> Ended | None:
        if self.strict and not self._started and not self._begins(source):
            return Ended(Ending.FAILED, 0) if source.waiting or source.final else None
        while True:
            if self._raw:
                return self._read_to_tag(source)
            if self._quote is None:
                ended, ready = self._read_token(source)
            else:
                ended, ready = self._read_string(source)
            if ended is not None or not ready:
                return ended

    def _begins(self, source: Source) -> bool:
        """Skip white space; true if an object begins behind it."""
        while source.waiting and source.text[source.at] in " \t\r\n":
            source.at += 1
        self._started = source.waiting > 0 and source.text[source.at] == "{"
        return self._started

    def _read_token(self, source: Source) -> _Step:
        """Read on outside strings."""
        token = (self._outer_token if self._depth <= 1 else self._inner_token).search(source.text, source.at)
        if token is None:
            return self._wait(source), False
        if token[0] != "<":
            return self._take(source, token), True
        if not source.final and self._closing.startswith(
            source.text[token.start() : token.start() + len(self._closing)]
        ):
            return self._wait(source), False
        return Ended(Ending.FAILED, 0), True

    def _take(self, source: Source, token: re.Match[str]) -> Ended | None:
        source.at = token.end()
        mark = token[0]
        if self.strict and self._at_key and mark not in '"}':
            return Ended(Ending.FAILED, 0)
        self._at_key = mark == "{"
        if mark == self._closing:
            return self._at_tag(source, token.start())
        if mark == '"':
            whole = _STRING.match(source.text, token.start())
            if whole is None:
                self._quote = source.since_mark(token.start())
                self._string = ['"']
            else:
                source.at = whole.end()
                if self._depth == 1:
                    self._string = [whole[0]]
        elif mark in "{[":
            return self._open(token)
        elif mark in "}]":
            return self._close(source, token)
        elif mark == ":":
            self._key = self._last_string() or ""
            self._seen_arguments |= self._key in self._keys
            self._string = []
            self._decide()
        elif mark == ",":
            self._end_of_value()
        return None

    def _at_tag(self, source: Source, start: int) -> Ended:
        if self.strict and not self._complete:
            return Ended(Ending.FAILED, 0)
        return Ended(Ending.CLOSED, source.since_mark(start))

    def _open(self, token: re.Match[str]) -> Ended | None:
        if token[0] == "{" and self._depth == 1 and self._key in self._keys and self.name and not self._passed_on:
            self._sent = token.start()
            self._passed_on = True
        self._depth += 1
        if self.strict and self._depth > _MAX_STRICT_DEPTH:
            return Ended(Ending.FAILED, 0)
        return None

    def _close(self, source: Source, token: re.Match[str]) -> Ended | None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 1 and self._sent >= 0:
            self.pieces.append(source.text[self._sent : token.end()])
            self._sent = -1
        if self._depth > 0:
            return None
        self._end_of_value()
        self._complete = True
        return None if self._closing else self.at_object_end(source, Ending.CLOSED)

    def _end_of_value(self) -> None:
        if self._key == "name" and self._seen_name is None and not self._complete:
            self._seen_name = self._last_string()
            self._decide()
        self._key = ""
        self._string = []

    def _decide(self) -> None:
        if self._seen_name and not self.name and self.is_certain(self._seen_name, self._seen_arguments):
            self.name = self._seen_name

    def _last_string(self) -> str | None:
        raw = "".join(self._string)
        if not raw or len(raw) > _MAX_NAME_CHARS:
            return None
        try:
            found = read_json(raw).value
        except MalformedCallError:
            return None
        return found if isinstance(found, str) else None

    def _read_string(self, source: Source) -> _Step:
        """Read on inside a string."""
        text = source.text
        stop = _INSIDE.match(text, source.at).end()  # type: ignore[union-attr] # it matches anything
        if self._depth == 1:
            self._string.append(text[source.at : stop])
        source.at = stop
        left = len(text) - stop
        cut = left == 0 or (left == 1 and text[stop] == "\\")
        if cut and not source.final:
            return None, False
        if not cut and text[stop] == '"':
            self._string.append('"')
            source.at = stop + 1
            self._quote = None
            return None, True
        if self.strict:
            return Ended(Ending.FAILED, 0), True
        return self._at_broken_string(source)

    def _at_broken_string(self, source: Source) -> _Step:
        """A string is not closed on its line: this is no JSON any more."""
        if not self._closing:
            if source.final and source.waiting == 1 and source.text[source.at] == "\\":
                source.at += 1
            return self.at_object_end(source, Ending.UNCLOSED), True
        quote, self._quote, self._raw, self._sent = self._quote or 0, None, True, -1
        source.back_to(quote + 1)
        return None, True

    def at_object_end(self, source: Source, ending: Ending) -> Ended:
        """The end of a call that ends with its object."""
        return Ended(ending, source.since_mark(source.at))

    def _read_to_tag(self, source: Source) -> Ended | None:
        start = source.text.find(self._closing, source.at)
        if start >= 0:
            source.at = start + len(self._closing)
            return Ended(Ending.CLOSED, source.since_mark(start))
        return self._wait(source)

    def _wait(self, source: Source) -> Ended | None:
        end = len(source.text)
        if source.final:
            source.at = end
            if self.strict:
                return Ended(Ending.FAILED, 0)
            return self.at_object_end(source, Ending.UNCLOSED)
        at = beginning_at_end(source.text, source.at, self._closing) if self._closing else end
        if not self._raw and source.text.endswith("\\") and source.at < end:
            at = min(at, end - 1)
        source.at = at
        return None

    def result(self, body: str, *, closed: bool, truncated: bool) -> Call:
        """The call, by strict JSON.

        Raises:
            MalformedCallError: it is cut, no strict JSON, or no call.
        """
        if not closed and self._closing:
            raise not_closed(self._closing)
        value, end = read_json(body)
        if body[end:].strip():
            raise MalformedCallError(f"text after the JSON object: {clipped(repr(body[end:].strip()), 60)}")
        return self.call_of(value)

    def call_of(self, value: Any) -> Call:
        """The call that this JSON value says.

        Raises:
            MalformedCallError: it says none.
        """
        return call_of_object(value, self._keys)


def call_of_object(value: Any, keys: tuple[str, ...], others: tuple[str, ...] = ()) -> Call:
    """The call in a decoded object: `name`, and the arguments under one of `keys`; `others` may be there, too.

    Raises:
        MalformedCallError: it holds something else.
    """
    expected = f'{{"name": "…", "{keys[0]}": {{…}}}}'
    if not isinstance(value, Mapping):
        raise MalformedCallError(f"a call is a JSON object, {expected}")
    unknown = sorted(set(value) - {"name", *keys, *others})
    if unknown:
        raise MalformedCallError(f"unknown key {clipped(repr(unknown[0]), 60)}; a call is {expected}")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise MalformedCallError(f"no tool name; a call is {expected}")
    given = [key for key in keys if key in value]
    if len(given) > 1:
        raise MalformedCallError(f"both {given[0]!r} and {given[1]!r} are given; a call is {expected}")
    return Call(name, as_arguments(value[given[0]] if given else {}))
