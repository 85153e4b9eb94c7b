"""Strict JSON for tool calls: whatever is wrong with it becomes one short line for the model.

Stricter than `json.loads`: NaN, infinities (also written `1e999`), duplicate keys, unpaired surrogates and very deep
nesting are refused, because a tool, a log file or a template further on would fail on them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from miles_agents.errors import ToolError

MAX_DEPTH = 64
MAX_ERROR_CHARS = 300


class MalformedCallError(ToolError):
    """The model wrote a call that cannot be understood; the message says what is wrong, in a bounded line."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message, MAX_ERROR_CHARS))


class JsonValue(NamedTuple):
    """A JSON value and the offset just behind it."""

    value: Any
    end: int


def clipped(text: str, limit: int) -> str:
    """`text`, shortened to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def read_json(text: str) -> JsonValue:
    """Read the JSON value that `text` begins with (after white space).

    Braces, tags and quotes inside its strings are data. Linear in what it reads.

    Raises:
        MalformedCallError: it begins with no strict JSON value.
    """
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        where = clipped(repr(text[max(start, error.pos - 10) : error.pos + 10]), 60)
        raise MalformedCallError(f"not valid JSON: {error.msg} (character {error.pos - start}, near {where})") from None
    except RecursionError:
        raise MalformedCallError("not valid JSON: nested too deeply") from None
    except ValueError:  # Python's limit on converting integers
        raise MalformedCallError("a number has too many digits") from None
    raw = text[start:end]
    if raw.count("{") + raw.count("[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise MalformedCallError(f"nested more than {MAX_DEPTH} deep")
    if "\\ud" in raw or "\\uD" in raw:
        _refuse_unpaired_surrogates(value)
    return JsonValue(value, end)


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a call written as a string, OpenAI-style. An empty string means no arguments: `{}`.

    Raises:
        MalformedCallError: anything but one JSON object.
    """
    if not text.strip():
        return {}
    value, end = read_json(text)
    if text[end:].strip():
        raise MalformedCallError(f"text after the arguments: {clipped(repr(text[end:]), 60)}")
    return as_arguments(value)


def as_arguments(value: Any) -> dict[str, Any]:
    """A decoded `arguments` value as a dict; a string is parsed once more.

    Raises:
        MalformedCallError: it is no object.
    """
    if isinstance(value, str):
        return parse_arguments(value)
    if not isinstance(value, Mapping):
        shown = clipped(json.dumps(value), 60)
        raise MalformedCallError(f"arguments must be a JSON object such as {{}}, got {shown}")
    return dict(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise MalformedCallError(f"key {clipped(repr(twice), 60)} is given twice")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise MalformedCallError(f"{clipped(number, 40)} is too large")
    return value


def _refuse_constant(name: str) -> None:
    raise MalformedCallError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        nested: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                nested.extend(each.values())
            elif isinstance(each, list):
                nested.extend(each)
        level = [each for each in nested if isinstance(each, (dict, list))]
    return deepest


def _refuse_unpaired_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise MalformedCallError("a string holds an unpaired \\ud… escape") from None
