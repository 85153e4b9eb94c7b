"""Arguments drawn at random from a tool's JSON schema: well-formed calls that mean nothing."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour", "indigo", "juniper")
_MAX_DEPTH = 4  # of nested objects; below it what may be left out is left out
_FORMATS: Mapping[str, str] = {
    "date": "2001-02-03",
    "time": "04:05:06Z",
    "date-time": "2001-02-03T04:05:06Z",
    "duration": "P3D",
    "email": "amber@example.org",
    "uri": "https://example.org/amber",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
}


def draw_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Arguments for one call.

    Args:
        schema: the tool's, OpenAI-style.
        rng: decides what is drawn.

    Returns:
        By name: everything required, and some of what may be left out. Patterns are not kept: a tool that refuses such
        a call says so to the model.
    """
    parameters = schema.get("function", {}).get("parameters") or {}
    drawn = _Draw(parameters, rng).value(parameters, 0) if parameters else {}
    return drawn if isinstance(drawn, dict) else {}


def draw_text(rng: random.Random, words: Sequence[str] = _WORDS) -> str:
    """A few words and a number."""
    chosen = [rng.choice(words) for _ in range(rng.randint(1, 6))]
    return " ".join([*chosen, str(rng.randint(100_000, 999_999))])


class _Draw:
    """Values that fit a schema; `$ref` is looked up in `root`."""

    def __init__(self, root: Mapping[str, Any], rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self._kinds: dict[str, Callable[[Mapping[str, Any], int], Any]] = {
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": self._boolean,
            "null": self._null,
            "array": self._array,
            "object": self._object,
        }

    def value(self, schema: Mapping[str, Any], depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(list(schema["enum"]))
        for union in ("anyOf", "oneOf"):
            if schema.get(union):
                return self.value(self._rng.choice(self._flat_first(schema[union], depth)), depth)
        if schema.get("allOf"):
            merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                merged |= self._resolved(part)
            return self.value(merged, depth)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        kind = self._rng.choice(kind) if isinstance(kind, list) else kind
        draw: Callable[[Mapping[str, Any], int], Any] = self._kinds.get(kind, self._string)
        return draw(schema, depth)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(10):  # a chain of references; a circle of them is no schema
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            found: Any = self._root
            for part in reference[2:].split("/"):
                found = found.get(part, {}) if isinstance(found, Mapping) else {}
            schema = found
        return schema

    def _flat_first(self, options: Sequence[Mapping[str, Any]], depth: int) -> list[Mapping[str, Any]]:
        """All options, or far down only those that nest no further, if there are any."""
        flat = [each for each in options if self._resolved(each).get("type") not in ("object", "array")]
        return flat if depth >= _MAX_DEPTH and flat else list(options)

    def _boolean(self, schema: Mapping[str, Any], depth: int) -> bool:
        return self._rng.random() < 0.5

    def _null(self, schema: Mapping[str, Any], depth: int) -> None:
        return None

    def _string(self, schema: Mapping[str, Any], depth: int) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        text = draw_text(self._rng)
        shortest, longest = int(schema.get("minLength", 0)), int(schema.get("maxLength", max(len(text), 1)))
        filler = "".join(self._rng.choice(string.ascii_lowercase) for _ in range(max(0, shortest - len(text))))
        return (text + filler)[: max(longest, shortest)]

    def _integer(self, schema: Mapping[str, Any], depth: int) -> int:
        low, high = self._bounds(schema, 1)
        step = max(int(schema.get("multipleOf", 1)), 1)
        return self._rng.randint(-(-int(low) // step), max(int(high) // step, -(-int(low) // step))) * step

    def _number(self, schema: Mapping[str, Any], depth: int) -> float:
        low, high = self._bounds(schema, 1e-3)
        return round(self._rng.uniform(low, high), 3)

    def _bounds(self, schema: Mapping[str, Any], above: float) -> tuple[float, float]:
        low = schema.get("minimum", schema.get("exclusiveMinimum", None))
        high = schema.get("maximum", schema.get("exclusiveMaximum", None))
        if low is not None and "minimum" not in schema:
            low += above
        if high is not None and "maximum" not in schema:
            high -= above
        if low is None:
            low = -1000 if high is None else high - 2000
        return low, (low + 2000 if high is None else max(high, low))

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        if schema.get("prefixItems"):
            return [self.value(each, depth + 1) for each in schema["prefixItems"]]
        fewest = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(fewest, 0 if depth >= _MAX_DEPTH else 2)))
        return [self.value(schema.get("items") or {}, depth + 1) for _ in range(self._rng.randint(fewest, most))]

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        drawn = {
            name: self.value(each, depth + 1)
            for name, each in (schema.get("properties") or {}).items()
            if name in required or (depth < _MAX_DEPTH and self._rng.random() < 0.5)
        }
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping) and depth < _MAX_DEPTH:
            drawn.setdefault(self._rng.choice(_WORDS), self.value(more, depth + 1))
        return drawn
