"""Small tools of an environment's own: `python -m miles_agents.train env=./examples/shop.py:Shop`."""

import ast
import operator
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import miles_agents as ma
from miles_agents.tools import SubmitTool
from miles_agents.types import ToolCall

_SIGNS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
}


class Fruit(StrEnum):
    """What the shop sells."""

    APPLE = "apple"
    MANGO = "mango"
    PEAR = "pear"


PRICES = {Fruit.APPLE: 35, Fruit.MANGO: 240, Fruit.PEAR: 42}  # in cents


@ma.tool
def calculator(expression: str) -> int:
    """Work out a whole number.

    Args:
        expression: numbers, + - * and brackets, e.g. "3 * (4 + 5)".
    """
    if len(expression) > 200:  # what a model writes is never trusted: `eval` would run anything, and for ever
        raise ma.ToolError("at most 200 characters")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise ma.ToolError(f"{expression!r} is no sum; write e.g. 3 * (4 + 5)") from None


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _SIGNS:
            return int(_SIGNS[type(sign)](_value(inner)))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return int(_SIGNS[type(sign)](_value(left), _value(right)))
    raise ma.ToolError("only whole numbers, + - * and brackets can be worked out")


@ma.register("shop-v0")
class Shop(ma.ToolEnv):
    """What does it all cost? The prices must be asked for, and the sum is too large to do in one's head."""

    tools = [calculator, SubmitTool(description="Hand in the sum in cents. This ends the task.")]  # noqa: RUF012
    max_turns = 6

    @ma.tool
    def price(self, fruit: Fruit) -> str:
        """The price of one piece.

        Args:
            fruit: which one.
        """
        return f"{PRICES[fruit]} cents"

    def tasks(self, split: str) -> Iterator[ma.Task]:
        """Every third basket is for validation, every third for testing."""
        for number in range({"train": 0, "validation": 1, "test": 2}[split], 3000, 3):
            basket = {Fruit.APPLE: 11 + number // 100, Fruit.MANGO: 2 + number % 100}
            wanted = " and ".join(f"{count} {fruit}s" for fruit, count in basket.items())
            yield ma.Task(
                id=f"basket-{number}",
                prompt=(ma.Message.user(f"What do {wanted} cost, in cents?"),),
                answer=str(sum(PRICES[fruit] * count for fruit, count in basket.items())),
                metadata={"sum": " + ".join(f"{PRICES[fruit]} * {count}" for fruit, count in basket.items())},
                split=split,
            )

    def reward(self, episode: ma.Episode) -> float:
        """1 for the right sum, handed in."""
        return float((episode.submitted or "").strip() == episode.task.answer)

    def oracle(self, task: ma.Task) -> list[ma.Reply]:
        """Ask, reckon, hand in."""
        return [
            _calling("price", fruit="apple"),
            _calling("price", fruit="mango"),
            _calling("calculator", expression=task.metadata["sum"]),
            _calling("submit", answer=task.answer),
        ]


def _calling(name: str, **arguments: Any) -> ma.Reply:
    return ma.Reply(text="…", calls=(ToolCall(id="call_0", name=name, arguments=arguments, raw="…"),))
