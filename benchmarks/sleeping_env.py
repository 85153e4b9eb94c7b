"""Environments whose tools do nothing but take time: what overlaps with what can then be read off the clock."""

from __future__ import annotations

import ast
import asyncio
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import miles_agents as ma
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.tools.python import PythonTool
from miles_agents.types import ToolCall

SLEEP_S = 0.05
_PRINT = re.compile(r"print\(([\d+\-*() ]+)\)")  # checked first: `ast` warns about text such as 12if
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


class Sleeper(ma.ToolEnv):
    """Asks for `yes`; its tool sleeps. For scripted policies."""

    configurable: ClassVar = (*ma.ToolEnv.configurable, "sleep_s")
    sleep_s: float = SLEEP_S

    @ma.tool
    async def look(self, place: int) -> str:
        """Look somewhere.

        Args:
            place: where.
        """
        await asyncio.sleep(self.sleep_s)
        return f"nothing at {place}"

    def tasks(self, split: str) -> list[ma.Task]:
        """Sixty-four times the same question."""
        ask = ma.Message.user("Look, look again, then say yes.")
        return [ma.Task(id=f"{split}{n}", prompt=(ask,), answer="yes", split=split) for n in range(64)]

    async def reward(self, episode: ma.Episode) -> float:
        """1 for `yes`."""
        return float(episode.final.content == episode.task.answer)


class Arithmetic:
    """Looks like the `python` tool; understands `print(…)` of sums, differences and products of integers alone."""

    name = PythonTool.name
    needs_sandbox = False

    def schema(self) -> dict[str, Any]:
        """That of the real tool."""
        return PythonTool().schema()

    async def call(self, arguments: Mapping[str, Any], context: ma.ToolContext) -> ma.ToolOutput:
        """The value, or an error."""
        try:
            return ma.ToolOutput(str(printed_value(str(arguments.get("code")))))
        except (SyntaxError, ValueError) as error:
            return ma.ToolOutput(f"Error: {error}", ok=False)


class SleepingMath(PythonMath):
    """`python_math` whose `python` tool sleeps, then answers right (or "busy", at level 3), without a sandbox.

    The policy sees the same tool, so that the starter model calls it as it was taught to.
    """

    configurable: ClassVar = (*PythonMath.configurable, "sleep_s")
    sleep_s: float = SLEEP_S

    def all_tools(self) -> tuple[ma.Tool, ...]:
        """The interpreter that is none."""
        return (Arithmetic(),)

    async def call_tool(self, tool: ma.Tool, call: ToolCall, context: ma.ToolContext) -> ma.ToolOutput:
        """Sleep, then answer."""
        await asyncio.sleep(self.sleep_s)
        return await super().call_tool(tool, call, context)


def printed_value(code: str) -> int:
    """What `print(EXPRESSION)` prints.

    Raises:
        SyntaxError: no Python.
        ValueError: anything but one `print` of integers, + - * and brackets.
    """
    match = _PRINT.fullmatch(code.strip())
    if match is None:
        raise ValueError("only print(…) of integers, + - * and brackets is understood")
    return _value(ast.parse(match[1].strip(), mode="eval").body)


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case _:
            raise ValueError(f"only integers and + - * are understood, not {ast.unparse(node)}")
