"""The example environment with small tools keeps the contract, and its calculator trusts nobody."""

from pathlib import Path

import pytest

from miles_agents import ToolError
from miles_agents.checks.env import check_env
from miles_agents.contracts import ToolContext, as_tool
from miles_agents.registry import load_object

SHOP = str(Path(__file__).parents[1] / "examples/shop.py")


def of_example(name):
    return load_object(f"{SHOP}:{name}")


async def test_the_shop_keeps_the_contract_and_its_oracle_scores_full():
    await check_env(of_example("Shop")())


def test_an_enumeration_is_offered_as_its_values():
    (price,) = [tool for tool in of_example("Shop")().all_tools() if tool.name == "price"]
    parameters = price.schema()["function"]["parameters"]
    assert parameters["properties"]["fruit"] == {"$ref": "#/$defs/Fruit", "description": "which one."}
    assert parameters["$defs"]["Fruit"]["enum"] == ["apple", "mango", "pear"]


@pytest.mark.parametrize(("expression", "value"), [("3 * (4 + 5)", "27"), (" -2 - -3", "1"), (7, "7")])
async def test_the_calculator_reckons(expression, value):
    assert (await as_tool(of_example("calculator")).call({"expression": expression}, ToolContext())).text == value


@pytest.mark.parametrize(
    "expression", ["", "1 +", "2 ** 999", "__import__('os')", "'a' * 3", "True", "1" + "+1" * 200, "x", "1.5"]
)
async def test_what_is_no_sum_of_whole_numbers_is_the_models_error(expression):
    with pytest.raises(ToolError):
        await as_tool(of_example("calculator")).call({"expression": expression}, ToolContext())
