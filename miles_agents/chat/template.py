"""Rendering a Hugging Face chat template, with outside text kept out of it.

A template is rendered once per *shape* of a conversation (roles, number of calls, which texts are empty) with markers
in place of every outside text; the result is a skeleton of template text and holes. Texts are put into the holes
later, so nothing they say can steer the template, and rendering costs nothing per call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from miles_agents.errors import TemplateError, UsageError
from miles_agents.types import Message, TextPart

Tools = Sequence[Mapping[str, Any]]

# A marker is OPEN + numbers + CLOSE, padded with white space that shows how the template trims: `strip()` takes all of
# it, `strip("\n")` the newlines alone. Inside JSON the opening character is JSON_OPEN and there is no padding.
_OPEN, _CLOSE, _JSON_OPEN, _RAW = "\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3"
_MARKS = (_OPEN, _CLOSE, _JSON_OPEN, _RAW)
_NEWLINES = "\n" * 5  # more than any template writes before a text
_LEFT, _RIGHT = f"{_NEWLINES}\x0b\x0c", f"\x0c\x0b{_NEWLINES}"
_JSON_LEFT, _JSON_RIGHT = (json.dumps(pad)[1:-1] for pad in (_LEFT, _RIGHT))
_MARKER = re.compile(rf"({_LEFT}|\x0b\x0c)?([{_OPEN}{_JSON_OPEN}])(\d+)\.(\d+)\.(\d+){_CLOSE}({_RIGHT}|\x0c\x0b)?")
_TRIMS: dict[str, str | None] = {_LEFT: "", "\x0b\x0c": "\n", "": None, _RIGHT: "", "\x0c\x0b": "\n"}


class Shape(NamedTuple):
    """What a template may see of a message: everything but its texts."""

    role: str
    has_content: bool
    has_reasoning: bool
    calls: int
    has_name: bool
    has_call_id: bool


class Hole(NamedTuple):
    """A place for one outside text: `field` (number `call`) of message `message`.

    `in_json`: inside a JSON string. `left`, `right`: characters the template strips there; None means all white space.
    """

    message: int
    field: str
    call: int = 0
    in_json: bool = False
    left: str | None = ""
    right: str | None = ""

    def fill(self, messages: Sequence[Message]) -> str:
        """The text that belongs here."""
        text = _FIELDS[self.field](messages[self.message], self.call)
        if self.left != "":
            text = text.lstrip(self.left)
        if self.right != "":
            text = text.rstrip(self.right)
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.in_json else text


class Outside(NamedTuple):
    """Outside text that is the same for every conversation with these tools."""

    text: str


Piece = str | Outside | Hole

_FIELDS: dict[str, Callable[[Message, int], str]] = {
    "content": lambda message, _: message.text,
    "reasoning": lambda message, _: message.reasoning,
    "name": lambda message, _: message.name or "",
    "id": lambda message, _: message.tool_call_id or "",
    "call_name": lambda message, call: message.tool_calls[call].name,
    "call_id": lambda message, call: message.tool_calls[call].id,
    "call_arguments": lambda message, call: json.dumps(message.tool_calls[call].arguments, ensure_ascii=False),
}
_TOOL_TEXT = "tool_text"
_FIELD_NAMES = (*_FIELDS, _TOOL_TEXT)


class _Marked:
    """Stands for the arguments of a call; `tojson` and plain printing give its marker."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __str__(self) -> str:
        return self.marker


class ChatTemplate:
    """A chat template in Jinja.

    Args:
        source: the template.
        special: texts of special tokens by name, which templates use (`bos_token`).
        variables: further variables the template takes, e.g. `{"enable_thinking": True}`.
        is_outside: tells which strings of a tool schema must be kept out of the template.
    """

    def __init__(
        self,
        source: str,
        *,
        special: Mapping[str, str],
        variables: Mapping[str, Any],
        is_outside: Callable[[str], bool],
    ) -> None:
        self._variables = {**special, **variables}
        self._is_outside = is_outside
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is not valid Jinja: {error}") from error

    def render(self, messages: Sequence[Message], tools: Tools, *, generation_prompt: bool) -> str:
        """The text of a conversation, texts put in by the template itself. For people and for checks."""
        return self._run([_as_dict(message) for message in messages], list(tools), generation_prompt)

    def skeleton(self, shapes: Sequence[Shape], tools: Tools, *, generation_prompt: bool) -> str:
        """The text of a conversation of these shapes with markers in place of all texts; see `pieces`."""
        hidden: list[str] = []
        shown = self._hide(list(tools), hidden)
        messages = [_as_markers(index, shape) for index, shape in enumerate(shapes)]
        return self._run(messages, shown, generation_prompt)

    def pieces(self, skeleton: str, tools: Tools) -> list[Piece]:
        """Cut (a part of) a skeleton into template text, holes and hidden strings of the tool schemas."""
        hidden: list[str] = []
        self._hide(list(tools), hidden)
        pieces: list[Piece] = []
        at = 0
        for match in _MARKER.finditer(skeleton):
            pieces += [skeleton[at : match.start()], _hole(match, hidden)]
            at = match.end()
        pieces.append(skeleton[at:])
        return [piece for piece in pieces if piece != ""]

    def _run(self, messages: list[dict[str, Any]], tools: list[Any], generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            reason = str(error).rstrip(".")
            raise TemplateError(
                f"the chat template cannot render ({roles}): {reason}. Use a template that takes these roles"
            ) from error

    def _hide(self, value: Any, hidden: list[str]) -> Any:
        """A copy of a schema in which strings that could pass for control tokens are markers, in reading order."""
        if isinstance(value, Mapping):
            return {self._hide(key, hidden): self._hide(entry, hidden) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._hide(entry, hidden) for entry in value]
        if isinstance(value, str) and (self._is_outside(value) or any(mark in value for mark in _MARKS)):
            hidden.append(value)
            return _marker(len(hidden) - 1, _TOOL_TEXT)
        return value


def shape_of(message: Message) -> Shape:
    """The shape of a message.

    Raises:
        UsageError: it holds an image, or a malformed call, which has no arguments to render.
    """
    if any(type(part) is not TextPart for part in message.parts):
        raise UsageError("this chat format takes text only; the message holds an image")
    if any(call.arguments is None for call in message.tool_calls):
        raise UsageError("a malformed call cannot be rendered; write the message's text as it was sampled instead")
    return Shape(
        message.role.value,
        bool(message.text),
        bool(message.reasoning),
        len(message.tool_calls),
        message.name is not None,
        message.tool_call_id is not None,
    )


def _hole(match: re.Match[str], hidden: Sequence[str]) -> Hole | Outside:
    left, opening, owner, number, call, right = match.groups(default="")
    field = _FIELD_NAMES[int(number)]
    in_json = opening == _JSON_OPEN
    if field == _TOOL_TEXT:
        text = hidden[int(owner)]
        return Outside(json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text)
    if in_json or field == "call_arguments":
        return Hole(int(owner), field, int(call), in_json)
    return Hole(int(owner), field, int(call), in_json, _TRIMS[left], _TRIMS[right])


def _marker(owner: int, field: str, call: int = 0) -> str:
    marker = f"{_OPEN}{owner}.{_FIELD_NAMES.index(field)}.{call}{_CLOSE}"
    return marker if field == "call_arguments" else f"{_LEFT}{marker}{_RIGHT}"


def _as_markers(index: int, shape: Shape) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": shape.role,
        "content": _marker(index, "content") if shape.has_content else "",
    }
    if shape.has_reasoning:
        message["reasoning_content"] = _marker(index, "reasoning")
    if shape.has_name:
        message["name"] = _marker(index, "name")
    if shape.has_call_id:
        message["tool_call_id"] = _marker(index, "id")
    if shape.calls:
        message["tool_calls"] = [
            _call_dict(
                _marker(index, "call_id", call),
                _marker(index, "call_name", call),
                _Marked(_marker(index, "call_arguments", call)),
            )
            for call in range(shape.calls)
        ]
    return message


def _as_dict(message: Message) -> dict[str, Any]:
    shape = shape_of(message)
    found: dict[str, Any] = {"role": shape.role, "content": message.text}
    if shape.has_reasoning:
        found["reasoning_content"] = message.reasoning
    if shape.has_name:
        found["name"] = message.name
    if shape.has_call_id:
        found["tool_call_id"] = message.tool_call_id
    if shape.calls:
        found["tool_calls"] = [_call_dict(call.id, call.name, call.arguments) for call in message.tool_calls]
    return found


def _call_dict(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` of transformers: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012 — Jinja's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up; the date is frozen, so that a run's prompts do not change at midnight."""
    now = datetime.now().astimezone()
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Iterable[str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, _Marked):
        return value.marker
    between: Any = None if separators is None else tuple(separators)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=between,
        sort_keys=sort_keys,
        default=_raw_marker,
    )
    if ensure_ascii:
        for mark in (_OPEN, _CLOSE, _RAW):
            text = text.replace(json.dumps(mark)[1:-1], mark)
    text = text.replace(f"{_JSON_LEFT}{_OPEN}", _JSON_OPEN).replace(f"{_CLOSE}{_JSON_RIGHT}", _CLOSE)
    return text.replace(f'"{_RAW}', "").replace(f'{_RAW}"', "")


def _raw_marker(value: Any) -> str:
    """For a whole call printed by `tojson`: its arguments are JSON already, so the quotes around them go again."""
    if isinstance(value, _Marked):
        return f"{_RAW}{value.marker}{_RAW}"
    raise TypeError(f"{value!r} is no JSON value")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
