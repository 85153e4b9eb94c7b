"""What the values between tags are, by the schemas of the tools."""

from __future__ import annotations

from typing import Any

import pytest
from tool_call_texts import TEXTUAL, WRITE, counting, qwen, tool

from miles_agents.chat import ThinkingPolicy, get_format, parse_reply

# --- types of values between tags -------------------------------------------------------------------------------------

TYPED = {
    "int": ({"type": "integer"}, "42", 42),
    "int spelled": ({"type": "integer"}, "forty", "forty"),
    "int as number": ({"type": "number"}, "42", 42),
    "number": ({"type": "number"}, "-1.5e3", -1500.0),
    "too large": ({"type": "number"}, "1e999", "1e999"),
    "fraction for int": ({"type": "integer"}, "1.5", "1.5"),
    "text": ({"type": "string"}, "42", "42"),
    "quoted text": ({"type": "string"}, '"42"', '"42"'),
    "true": ({"type": "boolean"}, "true", True),
    "True": ({"type": "boolean"}, "True", True),
    "True as text": ({"type": "string"}, "True", "True"),
    "bool as int": ({"type": "integer"}, "true", "true"),
    "null": ({"type": ["integer", "null"]}, "null", None),
    "None": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
    "nullable": ({"type": "string", "nullable": True}, "null", None),
    "nullable text": ({"type": ["string", "null"]}, "nil", "nil"),
    "null for int": ({"type": "integer"}, "null", "null"),
    "list": ({"type": "array", "items": {"type": "integer"}}, " [1, 2]\n", [1, 2]),
    "broken list": ({"type": "array"}, "[1, 2", "[1, 2"),
    "object": ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
    "python object": ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
    "twice": ({"type": "object"}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    "union": ({"type": ["string", "integer"]}, "42", 42),
    "union text": ({"type": ["string", "integer"]}, "42a", "42a"),
    "union quoted": ({"type": ["string", "integer"]}, '"42"', '"42"'),
    "enum of texts": ({"enum": ["1", "2"]}, "1", "1"),
    "enum of numbers": ({"type": "number", "enum": [1, 2.5]}, "1", 1),
    "const": ({"const": 3}, "3", 3),
    "reference": ({"$ref": "#/$defs/Level"}, "3", 3),
    "reference to nothing": ({"$ref": "#/$defs/None"}, "3", 3),
    "allOf": ({"allOf": [{"$ref": "#/$defs/Level"}]}, "3", 3),
    "any": ({}, "[1]", [1]),
    "any text": ({}, "hello", "hello"),
    "true schema": (True, "3", "3"),
}


@pytest.mark.parametrize("style", TEXTUAL)
@pytest.mark.parametrize("kind", TYPED)
def test_the_schema_decides_what_a_written_value_is(style: str, kind: str) -> None:
    schema, written, value = TYPED[kind]
    tools = [tool("g", {"v": schema}, **{"$defs": {"Level": {"type": "integer"}}})]
    (call,) = parse_reply(WRITE[style]("g", v=written), format=style, tools=tools).calls
    assert call.arguments == {"v": value}
    assert type(call.arguments["v"]) is type(value)


@pytest.mark.parametrize("style", TEXTUAL)
def test_without_a_schema_a_value_is_text(style: str) -> None:
    text = WRITE[style]("g", v="42")
    assert parse_reply(text, format=style).calls[0].arguments == {"v": "42"}
    assert parse_reply(text, format=style, tools=[tool("g", {})]).calls[0].arguments == {"v": "42"}
    schema = tool("g", {}, additionalProperties={"type": "integer"})
    assert parse_reply(text, format=style, tools=[schema]).calls[0].arguments == {"v": 42}
    assert parse_reply(text, format=style, tools=[schema["function"]]).calls[0].arguments == {"v": 42}


async def test_a_value_that_does_not_fit_its_type_is_reported_by_validation() -> None:
    env, tools = await counting()
    reply = parse_reply(qwen("run", x="three"), format="qwen3_coder", tools=tools)
    (answer,) = (await env.step(reply)).observation
    assert "'x' must be an integer, got \"three\"" in answer.text


VALID = [
    ({"type": "object", "required": ["a"]}, {"a": 1}, True),
    ({"type": "object", "required": ["a"]}, {}, False),
    ({"properties": {"a": {"enum": [1, "x"]}}}, {"a": 1}, True),
    ({"properties": {"a": {"enum": [1, "x"]}}}, {"a": True}, False),
    ({"properties": {"a": {"const": 1}}}, {"a": 2}, False),
    ({"properties": {}, "additionalProperties": False}, {"a": 2}, False),
    ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, False),
    ({"properties": {"a": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}}}, {"a": ["x", 1]}, True),
    ({"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "array"}]}}}, {"a": {}}, False),
    ({"properties": {"a": {"nullable": True, "type": "integer"}}}, {"a": None}, True),
    ({"properties": {"a": {"allOf": [{"required": ["b"]}]}}}, {"a": {}}, False),
    ({"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}, "required": ["t"]}}}, {}, False),
    ({"$ref": "#"}, {"a": 1}, True),
]


@pytest.mark.parametrize(("schema", "arguments", "valid"), VALID)
def test_a_call_ends_thinking_exactly_if_its_arguments_are_valid(
    schema: dict[str, Any], arguments: dict[str, Any], valid: bool
) -> None:
    tools = [{"name": "g", "parameters": schema}]
    text = f"<think>{get_format('hermes').render_call('g', arguments)}</think>"
    assert len(parse_reply(text, tools=tools, thinking=ThinkingPolicy.END_THINKING).calls) == int(valid)
