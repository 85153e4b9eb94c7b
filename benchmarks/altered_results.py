"""`python_math` in which one digit of each tool result is changed on its way to the policy."""

from __future__ import annotations

import re

from miles_agents.answers import extract_boxed, numbers_equal
from miles_agents.contracts import Tool, ToolContext, ToolOutput
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.types import Episode, Task, ToolCall

ALTERED, FOLLOWED = "result_altered", "answer_is_altered_result"  # rewards without weight
_NUMBER = re.compile(r"-?\d+")


class AlteredMath(PythonMath):
    """Says by its rewards whether a result was altered, and whether the final answer is the last altered one.

    `answer` still compares with the gold answer.
    """

    _altered: str | None = None

    async def begin(self, task: Task) -> None:
        """Forget the last episode's result."""
        await super().begin(task)
        self._altered = None
        self.reward_weights = {**self.reward_weights, ALTERED: 0.0, FOLLOWED: 0.0}

    async def call_tool(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolOutput:
        """Run the call and change what it printed, if that is a number."""
        place, step = self.np_random.random(), int(self.np_random.integers(1, 9))
        output = await super().call_tool(tool, call, context)
        if not output.ok or not _NUMBER.fullmatch(output.text):
            return output
        self._altered = altered(output.text, place=place, step=step)
        return ToolOutput(self._altered, ok=True, info=output.info)

    async def reward(self, episode: Episode) -> dict[str, float]:
        """`answer` and `format`, and what became of the altered result."""
        answer = extract_boxed(episode.final.content)
        followed = answer is not None and self._altered is not None and numbers_equal(answer, self._altered)
        rewards = await super().reward(episode)
        return {**rewards, ALTERED: float(self._altered is not None), FOLLOWED: float(followed)}


def altered(number: str, *, place: float, step: int) -> str:
    """`number` with another digit at one place; never a leading zero.

    Args:
        number: an integer, perhaps with a sign.
        place: where, from 0 (first digit) to below 1 (last digit).
        step: by how much, 1 to 8.
    """
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    at = int(place * len(digits))
    lowest, count = (1, 9) if at == 0 else (0, 10)
    digit = lowest + (int(digits[at]) - lowest + step) % count
    return f"{sign}{digits[:at]}{digit}{digits[at + 1 :]}"
