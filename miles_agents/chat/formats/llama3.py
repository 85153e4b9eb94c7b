"""Llama 3.1 to 3.3: `{"name": …, "parameters": {…}}`, and built-in tools as `<|python_tag|>tool.call(key="value")`.

Format: "Prompt formats" of Meta's documentation for Llama 3.1 and the models' chat template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from miles_agents.chat.arguments import MalformedCallError, clipped
from miles_agents.chat.formats.base import Call, CallReader, Ended, Ending, ToolFormat, cannot_say
from miles_agents.chat.formats.json_object import JsonCallReader, call_of_object
from miles_agents.chat.schemas import ToolSchemas, as_json
from miles_agents.chat.source import Source, beginning_at_end, beginnings

PYTHON_TAG = "<|python_tag|>"

_KEYS = ("parameters", "arguments")
_FIRST_KEY = r'\{\s{0,32}"(?:name|type|parameters|arguments)"\s{0,8}:'
_PART_OF_FIRST_KEY = r'(?:\{\s{0,32}(?:"(?:[a-z]{0,10}"?)\s{0,8})?)?'
_LINE = r"(?:(?<![^\n])|(?<=</think>))[ \t]{0,8}"
_BEHIND_CALL = r"(?<=[})])\s{0,8};\s{0,8}"

_BUILT_IN = re.compile(r"\s*([\w-]{1,128})\.call\((.*)\)\Z", re.DOTALL)
_ARGUMENT = re.compile(r'\s*(\w{1,128})\s*=\s*"([^"]*)"\s*(,|\Z)', re.DOTALL)
_QUOTE_OR_END = re.compile(rf'[")]|{re.escape(PYTHON_TAG)}')
_HOW = f'after {PYTHON_TAG} comes {{"name": "…", "parameters": {{…}}}} or tool.call(key="value")'


class Llama3Format(ToolFormat):
    """A JSON object that begins a line (or follows another call and `;`) and names a known tool, or follows the tag.

    JSON that is no call of a known tool stays content. Where no tools are given, any object with a name and parameters
    is a call. Values of built-in tools stand between quotes as they are; one that holds a quote is an error.
    """

    name = "llama3"
    opening = re.compile(rf"{re.escape(PYTHON_TAG)}|(?:{_LINE}|{_BEHIND_CALL})(?={_FIRST_KEY})")
    unfinished = re.compile(
        rf"{beginnings(PYTHON_TAG)}|{_LINE}{_PART_OF_FIRST_KEY}\Z|(?<=[}})])\s{{0,8}}(?:;\s{{0,8}}{_PART_OF_FIRST_KEY})?\Z"
    )

    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """A reader of what follows the tag, or of the object."""
        tagged = opening == PYTHON_TAG
        return _TaggedReader(schemas, strict=strict) if tagged else _ObjectReader(schemas, tagged=False, strict=strict)

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The call as a JSON object on one line."""
        return f'{{"name": {as_json(name)}, "parameters": {as_json(arguments)}}}'

    def render_built_in_call(self, name: str, arguments: Mapping[str, str]) -> str:
        """The call of a built-in tool.

        Raises:
            UsageError: a value holds a quote, or a name is no word.
        """
        written = ", ".join(f'{key}="{value}"' for key, value in arguments.items())
        body = f"{name}.call({written})"
        try:
            read = _built_in(body)
        except MalformedCallError as error:
            raise cannot_say(self, str(error)) from error
        if read != Call(name, dict(arguments)):
            raise cannot_say(self, body)
        return PYTHON_TAG + body


class _ObjectReader(JsonCallReader):
    """One JSON object; a call if it names a known tool."""

    def __init__(self, schemas: ToolSchemas, *, tagged: bool, strict: bool) -> None:
        super().__init__(closing="", keys=_KEYS, strict=strict)
        self._schemas = schemas
        self._tagged = tagged

    def is_certain(self, name: str, has_arguments: bool) -> bool:
        """Known by its name; without tools, by its two keys."""
        return self._tagged or (self._schemas.knows(name) if self._schemas else has_arguments)

    def at_object_end(self, source: Source, ending: Ending) -> Ended:
        """The end of the object: of a call, or of JSON that is none."""
        certain = self._tagged or bool(self.name)
        return Ended(ending if certain else Ending.NO_CALL, source.since_mark(source.at))

    def call_of(self, value: Any) -> Call:
        """The call; `"type": "function"` may stand beside its name."""
        return call_of_object(value, _KEYS, others=("type",))


class _TaggedReader(CallReader):
    """What follows the tag: an object, or `tool.call(…)`."""

    def __init__(self, schemas: ToolSchemas, *, strict: bool) -> None:
        super().__init__(strict=strict)
        self._object = _ObjectReader(schemas, tagged=True, strict=strict)
        self._is_object: bool | None = None
        self._quoted = False

    def read(self, source: Source) -> Ended | None:
        if self._is_object is None:
            while source.waiting and source.text[source.at].isspace():
                source.at += 1
            if source.waiting:
                self._is_object = source.text[source.at] == "{"
            elif not source.final:
                return None
        ended = self._object.read(source) if self._is_object else self._read_call(source)
        if self._is_object:
            self.name, self.pieces = self._object.name, self._object.pieces
        return ended

    def _read_call(self, source: Source) -> Ended | None:
        while found := _QUOTE_OR_END.search(source.text, source.at):
            source.at = found.end()
            if found[0] == '"':
                self._quoted = not self._quoted
            elif found[0] == ")" and not self._quoted:
                return Ended(Ending.CLOSED, source.since_mark(source.at))
            elif found[0] == PYTHON_TAG and self.strict:
                return Ended(Ending.FAILED, 0)
        if source.final:
            source.at = len(source.text)
            return Ended(Ending.FAILED if self.strict else Ending.UNCLOSED, source.since_mark(source.at))
        source.at = beginning_at_end(source.text, source.at, PYTHON_TAG)
        return None

    def result(self, body: str, *, closed: bool, truncated: bool) -> Call:
        if self._is_object:
            return self._object.result(body, closed=closed, truncated=truncated)
        return _built_in(body)


def _built_in(body: str) -> Call:
    """The call in `tool.call(key="value", …)`."""
    found = _BUILT_IN.match(body)
    if found is None:
        raise MalformedCallError(f"{_HOW}, got {clipped(repr(body.strip()), 60)}")
    name, written = found[1], found[2].strip()
    arguments: dict[str, Any] = {}
    at = 0
    comma = ""
    while at < len(written) or comma == ",":
        argument = _ARGUMENT.match(written, at)
        if argument is None:
            near = clipped(repr(written[at : at + 60]), 60)
            raise MalformedCallError(f'arguments are written key="value", a value holds no quote; got {near}')
        if argument[1] in arguments:
            raise MalformedCallError(f"argument {argument[1]!r} is given twice")
        arguments[argument[1]] = argument[2]
        at, comma = argument.end(), argument[3]
    return Call(name, arguments)
