r"""Shapes, holes and markers: how a template is rendered without being shown one outside text.

A marker stands for a text while the template runs; afterwards it is found again and becomes a `Hole`. It is padded with
white space that shows how the template trims: `strip()` takes all of it, `strip("\n")` the newlines alone. Inside JSON
its opening character is another one and there is no padding.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from miles_agents.errors import UsageError
from miles_agents.types import Message, TextPart

_OPEN, _CLOSE, _JSON_OPEN, _RAW = "\ue0f0", "\ue0f1", "\ue0f2", "\ue0f3"
MARKS = (_OPEN, _CLOSE, _JSON_OPEN, _RAW)
_NEWLINES = "\n" * 5  # more than any template writes before a text
_LEFT, _RIGHT = f"{_NEWLINES}\x0b\x0c", f"\x0c\x0b{_NEWLINES}"
_JSON_LEFT, _JSON_RIGHT = (json.dumps(pad)[1:-1] for pad in (_LEFT, _RIGHT))
_MARKER = re.compile(
    rf"({_LEFT}|\x0b\x0c)?([{_OPEN}{_JSON_OPEN}])(\d+)\.(\d+)\.(\d+)\.(\d+){_CLOSE}({_RIGHT}|\x0c\x0b)?"
)
_TRIMS: dict[str, str | None] = {_LEFT: "", "\x0b\x0c": "\n", "": None, _RIGHT: "", "\x0c\x0b": "\n"}
_MAX_BLANK_CHARS = 8

# What templates ask about an argument: true, false and null are given as they are, of others the kind alone.
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
TEXT, NUMBER, MAPPING, LIST = "text", "number", "mapping", "list"


class Shape(NamedTuple):
    """What a template may see of a message: everything but its texts.

    `content`, `reasoning`: None is a text, put in later; a short blank one, which templates look for, stands as it is.
    `calls`: the kinds of each call's arguments.
    """

    role: str
    content: str | None
    reasoning: str | None
    calls: tuple[tuple[str, ...], ...]
    has_name: bool
    has_call_id: bool


class Hole(NamedTuple):
    """A place for one outside text: `field` of message `message`, of its call `call`, of that one's `argument`.

    `in_json`: inside a JSON string. `left`, `right`: characters the template strips there; None means all white space.
    """

    message: int
    field: str
    call: int = 0
    argument: int = 0
    in_json: bool = False
    left: str | None = ""
    right: str | None = ""

    def fill(self, messages: Sequence[Message]) -> str:
        """The text that belongs here."""
        text = _FIELDS[self.field](messages[self.message], self.call, self.argument)
        if self.left != "":
            text = text.lstrip(self.left)
        if self.right != "":
            text = text.rstrip(self.right)
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.in_json else text


class Outside(NamedTuple):
    """Outside text that is the same for every conversation with these tools."""

    text: str


Piece = str | Outside | Hole


def _argument(message: Message, call: int, argument: int) -> tuple[str, Any]:
    return list((message.tool_calls[call].arguments or {}).items())[argument]


_FIELDS: dict[str, Callable[[Message, int, int], str]] = {
    "content": lambda message, *_: message.text,
    "reasoning": lambda message, *_: message.reasoning,
    "name": lambda message, *_: message.name or "",
    "id": lambda message, *_: message.tool_call_id or "",
    "call_name": lambda message, call, _: message.tool_calls[call].name,
    "call_id": lambda message, call, _: message.tool_calls[call].id,
    "call_arguments": lambda message, call, _: json.dumps(message.tool_calls[call].arguments, ensure_ascii=False),
    "argument_name": lambda *at: _argument(*at)[0],
    "argument_text": lambda *at: str(_argument(*at)[1]),
    "argument_json": lambda *at: json.dumps(_argument(*at)[1], ensure_ascii=False),
}
_VALUE_FIELDS = ("argument_text", "argument_json")
_TOOL_TEXT = "tool_text"
_FIELD_NAMES = (*_FIELDS, _TOOL_TEXT)
_UNPADDED = ("call_arguments", "argument_json")


def shape_of(message: Message, *, by_argument: bool = True) -> Shape:
    """The shape of a message.

    Args:
        message: the message.
        by_argument: tell the kinds of arguments apart; False where the template prints them as one JSON object.

    Raises:
        UsageError: it holds an image, or a malformed call, which has no arguments to render.
    """
    if any(type(part) is not TextPart for part in message.parts):
        raise UsageError("this chat format takes text only; the message holds an image")
    if any(call.arguments is None for call in message.tool_calls):
        raise UsageError("a malformed call cannot be rendered; write the message's text as it was sampled instead")
    return Shape(
        message.role.value,
        _blank(message.text),
        _blank(message.reasoning),
        tuple(_kinds(call.arguments or {}, by_argument) for call in message.tool_calls),
        message.name is not None,
        message.tool_call_id is not None,
    )


def _blank(text: str) -> str | None:
    short = len(text) <= _MAX_BLANK_CHARS and not text.strip(" \n\r\t")
    return text if short else None


def _kinds(arguments: Mapping[str, Any], by_argument: bool) -> tuple[str, ...]:
    if not by_argument:
        return (TEXT,) if arguments else ()
    return tuple(_kind(value) for value in arguments.values())


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return TEXT
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return MAPPING if isinstance(value, Mapping) else LIST if isinstance(value, (list, tuple)) else NUMBER


class _Value:
    """An argument that is no text: printed one way by `tojson`, another way by itself."""

    def __init__(self, plain: str, in_json: str) -> None:
        self._plain = plain
        self.in_json = in_json

    def __str__(self) -> str:
        return self._plain


class _MappingValue(_Value, Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1  # taken as not empty; what is inside cannot be asked


class _ListValue(_Value, Sequence[Any]):
    def __getitem__(self, index: Any) -> Any:
        raise IndexError(index)

    def __len__(self) -> int:
        return 1


class _Arguments(_Value, Mapping[str, Any]):
    """All arguments of a call; `tojson` and plain printing give the marker of the whole."""

    def __init__(self, whole: str, each: Mapping[str, Any]) -> None:
        super().__init__(whole, whole)
        self._each = each

    def __getitem__(self, key: str) -> Any:
        return self._each[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._each)

    def __len__(self) -> int:
        return len(self._each)


_VALUES: dict[str, type[_Value]] = {NUMBER: _Value, MAPPING: _MappingValue, LIST: _ListValue}


def tool_text_marker(number: int) -> str:
    """The marker of the `number`-th hidden string of the tool schemas."""
    return _marker(number, _TOOL_TEXT)


def with_markers(index: int, shape: Shape) -> dict[str, Any]:
    """Message `index` as a template is given it, markers in place of its texts."""
    message: dict[str, Any] = {
        "role": shape.role,
        "content": _marker(index, "content") if shape.content is None else shape.content,
    }
    if shape.reasoning != "":
        message["reasoning_content"] = _marker(index, "reasoning") if shape.reasoning is None else shape.reasoning
    if shape.has_name:
        message["name"] = _marker(index, "name")
    if shape.has_call_id:
        message["tool_call_id"] = _marker(index, "id")
    if shape.calls:
        message["tool_calls"] = [
            _call_dict(
                _marker(index, "call_id", call), _marker(index, "call_name", call), _arguments(index, call, kinds)
            )
            for call, kinds in enumerate(shape.calls)
        ]
    return message


def with_texts(message: Message) -> dict[str, Any]:
    """A message as a template is given it by transformers.

    Raises:
        UsageError: see `shape_of`.
    """
    shape = shape_of(message)
    found: dict[str, Any] = {"role": shape.role, "content": message.text}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if shape.has_name:
        found["name"] = message.name
    if shape.has_call_id:
        found["tool_call_id"] = message.tool_call_id
    if shape.calls:
        found["tool_calls"] = [_call_dict(call.id, call.name, call.arguments) for call in message.tool_calls]
    return found


def cut_at_markers(skeleton: str, hidden: Sequence[str]) -> list[Piece]:
    """Cut rendered text into template text, holes and hidden strings."""
    pieces: list[Piece] = []
    at = 0
    for match in _MARKER.finditer(skeleton):
        pieces += [skeleton[at : match.start()], _hole(match, hidden)]
        at = match.end()
    pieces.append(skeleton[at:])
    return [piece for piece in pieces if piece != ""]


class Misprint(NamedTuple):
    """A text that a template does not print exactly once."""

    message: int
    field: str
    times: int


def first_misprint(
    pieces: Iterable[Piece], shapes: Sequence[Shape], *, may_drop: Sequence[str] = ()
) -> Misprint | None:
    """The first text that does not stand exactly once; those of the fields `may_drop` may be missing."""
    written: Counter[tuple[int, str, int, int]] = Counter(
        (piece.message, "argument" if piece.field in _VALUE_FIELDS else piece.field, piece.call, piece.argument)
        for piece in pieces
        if isinstance(piece, Hole)
    )
    for index, shape in enumerate(shapes):
        for field, call, argument in _expected(shape, index, written):
            times = written[index, field, call, argument]
            if times != 1 and not (times == 0 and field in may_drop):
                return Misprint(index, field, times)
    return None


def _expected(
    shape: Shape, index: int, written: Mapping[tuple[int, str, int, int], int]
) -> Iterator[tuple[str, int, int]]:
    if shape.content is None:
        yield "content", 0, 0
    if shape.reasoning is None:
        yield "reasoning", 0, 0
    for call, kinds in enumerate(shape.calls):
        yield "call_name", call, 0
        one_by_one = written[index, "call_arguments", call, 0] == 0 and (
            not kinds or any(written[index, "argument_name", call, argument] for argument in range(len(kinds)))
        )
        if not one_by_one:
            yield "call_arguments", call, 0
            continue
        for argument, kind in enumerate(kinds):
            yield "argument_name", call, argument
            if kind not in _LITERALS:
                yield "argument", call, argument


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Iterable[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's filter as transformers has it."""
    between: Any = None if separators is None else tuple(separators)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=between,
        sort_keys=sort_keys,
        default=_raw_marker,
    )


def tojson_of_markers(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """The same for a template that is shown markers, which stay markers."""
    if isinstance(value, _Value):
        return value.in_json
    text = tojson(value, ensure_ascii, **layout)
    if ensure_ascii:
        for mark in (_OPEN, _CLOSE, _RAW):
            text = text.replace(json.dumps(mark)[1:-1], mark)
    text = text.replace(f"{_JSON_LEFT}{_OPEN}", _JSON_OPEN).replace(f"{_CLOSE}{_JSON_RIGHT}", _CLOSE)
    return text.replace(f'"{_RAW}', "").replace(f'{_RAW}"', "")


def _raw_marker(value: Any) -> str:
    """For what is JSON already: the quotes around it go again."""
    if isinstance(value, _Value):
        return f"{_RAW}{value.in_json}{_RAW}"
    raise TypeError(f"{value!r} is no JSON value")


def _arguments(index: int, call: int, kinds: Sequence[str]) -> _Arguments:
    each = {
        _marker(index, "argument_name", call, at): _argument_marker(index, call, at, kind)
        for at, kind in enumerate(kinds)
    }
    return _Arguments(_marker(index, "call_arguments", call), each)


def _argument_marker(index: int, call: int, argument: int, kind: str) -> Any:
    if kind in _LITERALS:
        return _LITERALS[kind]
    plain = _marker(index, "argument_text", call, argument)
    if kind == TEXT:
        return plain
    return _VALUES[kind](plain, _marker(index, "argument_json", call, argument))


def _call_dict(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _marker(owner: int, field: str, call: int = 0, argument: int = 0) -> str:
    marker = f"{_OPEN}{owner}.{_FIELD_NAMES.index(field)}.{call}.{argument}{_CLOSE}"
    return marker if field in _UNPADDED else f"{_LEFT}{marker}{_RIGHT}"


def _hole(match: re.Match[str], hidden: Sequence[str]) -> Hole | Outside:
    left, opening, owner, number, call, argument, right = match.groups(default="")
    field = _FIELD_NAMES[int(number)]
    in_json = opening == _JSON_OPEN
    if field == _TOOL_TEXT:
        text = hidden[int(owner)]
        return Outside(json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text)
    at = (int(owner), field, int(call), int(argument))
    if in_json or field in _UNPADDED:
        return Hole(*at, in_json)
    return Hole(*at, in_json, _TRIMS[left], _TRIMS[right])
