"""Environments without a sandbox, for the tests of the Gymnasium door."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from miles_agents import Env, EpisodeError, Message, Reply, Task, ToolEnv, tool
from miles_agents.contracts import ResetResult, StepResult
from miles_agents.types import ToolCall

ROLL = '<tool_call>{"name": "roll", "arguments": {}}</tool_call>'
PRINT_42 = '<tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>'


def calling(name: str, **arguments: Any) -> Reply:
    return Reply(text="…", calls=(ToolCall(id="call_0", name=name, arguments=arguments, raw="…"),))


class Dice(ToolEnv):
    """Roll, then say what was rolled. The dice are the environment's own randomness."""

    max_turns = 5

    def __init__(self, *, sides: int = 1000) -> None:
        self.sides = sides
        self.rolled = 0

    @tool
    def roll(self) -> str:
        """Roll the dice."""
        self.rolled = int(self.np_random.integers(1, self.sides + 1))
        return f"rolled {self.rolled}"

    async def begin(self, task: Task) -> None:
        self.rolled = 0

    def tasks(self, split: str) -> Iterator[Task]:
        for number in range(40):
            prompt = (Message.system("Be brief."), Message.user(f"{split} roll {number}, please."))
            yield Task(id=f"{split}/{number}", prompt=prompt, split=split)

    def reward(self, episode: Any) -> Mapping[str, float]:
        right = self.rolled > 0 and episode.final.content.strip() == str(self.rolled)
        return {"right": float(right), "short": 0.0}

    def oracle(self, task: Task) -> Iterator[Reply]:
        observation = yield calling("roll")
        yield Reply.of(observation[0].text.removeprefix("rolled "))


class Echo(Env):
    """No `ToolEnv`: says everything back, ends at "stop", and pays 0.25 a turn."""

    reward_range = (0.0, 10.0)

    def __init__(self) -> None:
        self.turns = 0
        self.running = False
        self.closed = 0
        self.opened: list[str] = []
        self.loops: set[int] = set()

    async def open_shared(self) -> None:
        self.opened.append("open")

    async def close_shared(self) -> None:
        self.opened.append("close")

    def tasks(self, split: str) -> list[Task]:
        return [Task(id=f"{split}-{n}", prompt=(Message.user(f"say {n}"),), split=split) for n in range(3)]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        self.loops.add(id(asyncio.get_running_loop()))
        self.turns, self.running = 0, True
        return ResetResult((options or {})["task"].prompt, {})

    async def step(self, action: Reply) -> StepResult:
        self.loops.add(id(asyncio.get_running_loop()))
        if action.content == "crash":
            raise EpisodeError("the world ended")
        self.turns += 1
        done = action.content == "stop"
        said = (Message.user(f"you said {action.content}"),)
        return StepResult(said, 0.25, done, False, {"truncated_by": ""})

    async def truncate(self, reason: str) -> StepResult:
        return StepResult((), 0.5, False, True, {"truncated_by": reason, "rewards": {"so far": 0.5}})

    async def close(self) -> None:
        self.closed += 1
        self.running = False
