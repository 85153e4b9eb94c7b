"""What the JSON schemas of tools say about arguments: the type of a value written as text, and whether a call is valid.

Looked at are `type`, `nullable`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref`, `properties`, `required`,
`additionalProperties`, `items` and `prefixItems`. Limits (lengths, ranges, patterns) are left to the tool itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miles_agents.chat.arguments import MalformedCallError, read_json

Tools = Sequence[Mapping[str, Any]]
Schema = Mapping[str, Any]

_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_SPELLED = {"True": True, "False": False, "None": None}  # as templates print Python's values
_MAX_DEPTH = 32  # of references and nesting; beyond it everything is allowed


class ToolSchemas:
    """The tools a reply may call.

    Args:
        tools: OpenAI-style schemas, `{"type": "function", "function": {"name", "parameters"}}` or the inner part
            alone. None given means that nothing is known: any name may be a tool's.
    """

    def __init__(self, tools: Tools = ()) -> None:
        self._parameters: dict[str, Schema] = {}
        for tool in tools:
            inner = tool.get("function", tool)
            if isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
                parameters = inner.get("parameters")
                self._parameters[inner["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __bool__(self) -> bool:
        """True if any tool is known."""
        return bool(self._parameters)

    def knows(self, name: str) -> bool:
        """True if a tool of that name is given."""
        return name in self._parameters

    def is_text(self, tool: str, key: str) -> bool:
        """True if this argument is a string whatever it says: its type is string alone, or nothing is known of it."""
        schema = self._schema_of(tool, key)
        return schema is None or _types(schema, self._parameters[tool]) == {"string"}

    def read_value(self, tool: str, key: str, text: str) -> Any:
        """The value that `text` is, by the type its schema gives it.

        A string is the text. Any other type is read as strict JSON (also `True`, `False`, `None`). Where the schema
        allows a string and other types, the JSON reading wins if it fits one of the others. What does not fit stays
        text: validation says so.
        """
        schema = self._schema_of(tool, key)
        if schema is None or self.is_text(tool, key):
            return text
        types = _types(schema, self._parameters[tool])
        bare = text.strip(" \t\r\n")
        if bare in _SPELLED:
            value = _SPELLED[bare]
        else:
            try:
                value, end = read_json(bare)
            except MalformedCallError:
                return text
            if end != len(bare):
                return text
        return value if not isinstance(value, str) and _type_of(value) in types else text

    def accepts(self, tool: str, arguments: Mapping[str, Any]) -> bool:
        """True if the tool is known and these arguments are valid by its schema."""
        if tool not in self._parameters:
            return False
        schema = self._parameters[tool]
        return _is_valid(arguments, schema, schema, 0)

    def _schema_of(self, tool: str, key: str) -> Schema | None:
        schema = self._parameters.get(tool)
        if schema is None:
            return None
        found = _property(schema, schema, key, 0)
        return found if isinstance(found, Mapping) else None


def _property(schema: Schema, root: Schema, key: str, depth: int) -> Any:
    """The schema of one property, through references and compositions; None if it says nothing."""
    schema = _resolved(schema, root)
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    if depth < _MAX_DEPTH:
        for part in _parts(schema, ("allOf", "anyOf", "oneOf")):
            found = _property(part, root, key, depth + 1)
            if found is not None:
                return found
    return schema.get("additionalProperties")


def _parts(schema: Schema, keys: Iterable[str]) -> list[Schema]:
    found: list[Schema] = []
    for key in keys:
        entry = schema.get(key)
        if isinstance(entry, Sequence) and not isinstance(entry, str):
            found.extend(part for part in entry if isinstance(part, Mapping))
    return found


def _resolved(schema: Schema, root: Schema) -> Schema:
    """`schema` with a reference into the same document followed; `{}` if it leads nowhere."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root
        for step in reference.removeprefix("#").strip("/").split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if step and isinstance(found, Mapping) else found
        schema = found if isinstance(found, Mapping) else {}
    return {}


def _types(schema: Schema, root: Schema, depth: int = 0) -> set[str]:
    """The JSON types that a schema allows; all of them if it does not say."""
    schema = _resolved(schema, root)
    if depth > _MAX_DEPTH:
        return set(_TYPES)
    allowed = set(_TYPES)
    named = schema.get("type")
    if isinstance(named, (str, Sequence)):
        names = {named} if isinstance(named, str) else set(named)
        allowed &= names | {"integer"} if "number" in names else names
    if "enum" in schema and isinstance(schema["enum"], Sequence):
        allowed &= {_type_of(value) for value in schema["enum"]}
    if "const" in schema:
        allowed &= {_type_of(schema["const"])}
    for key in ("anyOf", "oneOf"):
        if parts := _parts(schema, (key,)):
            allowed &= set().union(*(_types(part, root, depth + 1) for part in parts))
    for part in _parts(schema, ("allOf",)):
        allowed &= _types(part, root, depth + 1)
    if schema.get("nullable") is True:
        allowed |= {"null"}
    return allowed


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _is_valid(value: Any, schema: Any, root: Schema, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return schema is not False
    schema = _resolved(schema, root)
    if _type_of(value) not in _types(schema, root):
        return False
    if value is None and schema.get("nullable") is True:
        return True
    return _is_among(value, schema, root, depth) and _has_valid_entries(value, schema, root, depth)


def _is_among(value: Any, schema: Schema, root: Schema, depth: int) -> bool:
    if isinstance(schema.get("enum"), Sequence) and not any(_same(value, each) for each in schema["enum"]):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    for key in ("anyOf", "oneOf"):
        parts = _parts(schema, (key,))
        if parts and not any(_is_valid(value, part, root, depth + 1) for part in parts):
            return False
    return all(_is_valid(value, part, root, depth + 1) for part in _parts(schema, ("allOf",)))


def _has_valid_entries(value: Any, schema: Schema, root: Schema, depth: int) -> bool:
    if isinstance(value, Mapping):
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        others = schema.get("additionalProperties", True)
        return all(key in value for key in schema.get("required") or ()) and all(
            _is_valid(entry, properties.get(key, others), root, depth + 1) for key, entry in value.items()
        )
    if isinstance(value, list):
        first = _parts(schema, ("prefixItems",))
        rest = schema.get("items", True)
        return all(
            _is_valid(entry, first[place] if place < len(first) else rest, root, depth + 1)
            for place, entry in enumerate(value)
        )
    return True


def _same(value: Any, other: Any) -> bool:
    return _type_of(value) == _type_of(other) and bool(value == other)


def as_json(value: Any) -> str:
    """`value` as models write it: one line of JSON, other scripts as they are."""
    return json.dumps(value, ensure_ascii=False)
