"""Tools made from functions: schema, argument checking, results, methods."""

import asyncio
import time
import warnings
from typing import Annotated, Literal

import pytest
from pydantic import Field

from miles_agents import ToolError, ToolOutput, tool
from miles_agents.contracts import FunctionTool, ToolContext, as_tool
from miles_agents.contracts.tools import marked_methods
from miles_agents.errors import ToolErrorKind, UsageError

CONTEXT = ToolContext()


@tool
async def temperature(city: str, unit: Literal["C", "F"] = "C") -> str:
    """Temperature now,
    in whole degrees.

    It is measured at noon.

    Args:
        city: name of the city,
            in English.
        unit (str): of the answer.

    Returns:
        text: not an argument.
    """
    return f"21 {unit} in {city}"


def test_the_schema_comes_from_signature_and_docstring():
    assert as_tool(temperature).schema() == {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "Temperature now, in whole degrees.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "name of the city, in English."},
                    "unit": {"type": "string", "enum": ["C", "F"], "default": "C", "description": "of the answer."},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }


def test_changing_a_schema_changes_no_other():
    as_tool(temperature).schema()["function"]["parameters"]["properties"].clear()
    assert "city" in as_tool(temperature).schema()["function"]["parameters"]["properties"]


async def test_a_marked_function_stays_an_ordinary_function():
    assert await temperature("Oslo") == "21 C in Oslo"


async def test_async_and_plain_functions_are_called_with_checked_arguments():
    def double(n: int, times: int = 1) -> int:
        return n * 2**times

    assert (await as_tool(temperature).call({"city": "Rome", "unit": "F"}, CONTEXT)).text == "21 F in Rome"
    assert (await as_tool(double).call({"n": "4"}, CONTEXT)).text == "8"
    assert (await as_tool(double).call({"n": 4, "times": 3}, CONTEXT)).text == "32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "'city' is missing"),
        ({"city": ["Rome"]}, "'city' must be a string, got [\"Rome\"]"),
        ({"city": "Rome", "unit": "K"}, "'unit' must be 'C' or 'F', got \"K\""),
        ({"city": "Rome", "unt": "C"}, "'unt' is no argument. Did you mean 'unit'? Allowed: city, unit"),
        ({"city": "Rome", "argument_0": "Oslo"}, "'argument_0' is no argument. Allowed: city, unit"),
        ({"unit": 3}, "'city' is missing; 'unit' must be 'C' or 'F', got 3"),
    ],
)
async def test_bad_arguments_are_a_short_message_for_the_model(arguments, message):
    with pytest.raises(ToolError) as caught:
        await as_tool(temperature).call(arguments, CONTEXT)
    assert str(caught.value) == f"bad arguments for 'temperature': {message}"
    assert caught.value.kind is ToolErrorKind.BAD_ARGUMENTS


async def test_arguments_may_have_names_that_pydantic_keeps_for_itself():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        @tool
        def keep(json: str, copy: int, model_config: str, _hidden: str, schema: str = "s") -> str:
            """Keep."""
            return f"{json} {copy} {model_config} {_hidden} {schema}"

    schema = as_tool(keep).schema()["function"]["parameters"]
    assert list(schema["properties"]) == ["json", "copy", "model_config", "_hidden", "schema"]
    output = await as_tool(keep).call({"json": "j", "copy": 1, "model_config": "m", "_hidden": "h"}, CONTEXT)
    assert output.text == "j 1 m h s"


async def test_annotated_arguments_keep_their_limits():
    def pick(n: Annotated[int, Field(ge=1, le=3)]) -> str:
        return str(n)

    assert as_tool(pick).schema()["function"]["parameters"]["properties"]["n"]["maximum"] == 3
    with pytest.raises(ToolError, match="'n' must be at most 3, got 4"):
        await as_tool(pick).call({"n": 4}, CONTEXT)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (3.0, "3.0"),
        ({"a": [1, "ü"]}, '{"a": [1, "ü"]}'),
        ([1, 2], "[1, 2]"),
        (None, "None"),
        (ToolOutput("own", ok=False), "own"),
    ],
)
async def test_results_become_text(result, text):
    def give() -> object:
        return result

    assert (await as_tool(give).call({}, CONTEXT)).text == text


async def test_a_plain_function_that_returns_a_coroutine_is_awaited():
    async def later() -> str:
        return "later"

    def give() -> object:
        return later()

    assert (await as_tool(give).call({}, CONTEXT)).text == "later"


async def test_blocking_functions_do_not_queue_behind_each_other():
    def slow(n: int) -> int:
        time.sleep(0.2)
        return n

    started = time.perf_counter()
    outputs = await asyncio.gather(*(as_tool(slow).call({"n": n}, CONTEXT) for n in range(64)))
    assert [output.text for output in outputs] == [str(n) for n in range(64)]
    assert time.perf_counter() - started < 2.0  # 0.2 s if all run at once; 12.8 s one after another


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration("end")])
async def test_a_plain_function_cannot_end_the_process_or_hang_its_caller(error):
    def leave() -> str:
        raise error

    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match=type(error).__name__):
            await as_tool(leave).call({}, CONTEXT)


def test_functions_that_cannot_be_described_are_refused():
    def untyped(x): ...
    def variadic(*args: int): ...
    def positional(x: int, /): ...
    def unknown(x: "Missing"): ...  # noqa: F821

    for function, message in [
        (untyped, "give argument 'x' a type"),
        (variadic, "takes \\*args or \\*\\*kwargs"),
        (positional, "positional-only"),
        (unknown, "cannot read its types"),
        (len, "positional-only"),
    ]:
        with pytest.raises(UsageError, match=message):
            tool(function)
    with pytest.raises(UsageError, match="is no tool"):
        as_tool(3)


class Notebook:
    def __init__(self):
        self.lines = []

    @tool
    def write(self, text: str) -> int:
        """Write a line."""
        self.lines.append(text)
        return len(self.lines)

    @tool(name="count")
    async def how_many(self) -> int:
        """Count the lines."""
        return len(self.lines)

    @staticmethod
    @tool
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()


async def test_marked_methods_share_the_state_of_their_own_object():
    first, second = Notebook(), Notebook()
    tools = {each.name: each for each in marked_methods(first)}
    assert list(tools) == ["write", "count", "shout"]
    await tools["write"].call({"text": "a"}, CONTEXT)
    assert (await tools["count"].call({}, CONTEXT)).text == "1"
    assert (await tools["shout"].call({"text": "hi"}, CONTEXT)).text == "HI"
    assert (await marked_methods(second)[1].call({}, CONTEXT)).text == "0"
    assert "self" not in tools["write"].schema()["function"]["parameters"]["properties"]


async def test_an_overriding_method_counts_as_a_tool_only_if_marked():
    class Louder(Notebook):
        @tool
        def write(self, text: str) -> str:
            """Write it loudly."""
            return text.upper()

    class Silent(Notebook):
        def write(self, text: str) -> int:
            return 0

    tools = {each.name: each for each in marked_methods(Louder())}
    assert (await tools["write"].call({"text": "a"}, CONTEXT)).text == "A"
    assert [each.name for each in marked_methods(Silent())] == ["count", "shout"]


def test_a_function_tool_is_made_once():
    def plain(x: int) -> int:
        return x

    assert as_tool(plain) is as_tool(plain)
    own = FunctionTool(plain, name="mine")
    assert as_tool(own) is own
