"""Environments without a sandbox, for the tests of the Gymnasium door."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from miles_agents import Env, EpisodeError, Message, Reply, Task, ToolEnv, tool
from miles_agents.contracts import ResetResult, StepResult
from miles_agents.errors import UsageError
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
    async def roll(self) -> str:  # async: the calls of one reply draw in the order written, not in that of threads
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


class Duel(Env):
    """Two seats speak in turn, `white` first, until one says "stop"; each gets the length of what it said."""

    seats = ("white", "black")
    reward_range = (0.0, 100.0)
    opponents = {"parrot": lambda text, rng: text, "dice": lambda text, rng: str(rng.integers(10**9))}  # noqa: RUF012

    def __init__(self, *, first: str = "white") -> None:
        self.first = first
        self.acting: str | None = None

    def tasks(self, split: str) -> list[Task]:
        return [Task(id=f"{split}-{n}", prompt=(Message.user(f"duel {n}"),), split=split) for n in range(3)]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        self.acting = self.first
        self.paid = dict.fromkeys(self.seats, 0.0)
        return ResetResult((options or {})["task"].prompt, {"tools": [], "seat": self.first})

    async def step(self, action: Reply) -> StepResult:
        if self.acting is None:
            raise UsageError("call reset() first")
        if action.content == "crash":
            raise EpisodeError("the table broke")
        acting = self.acting
        self.paid[acting] += len(action.content)
        other = self.seats[self.seats.index(acting) - 1]
        rewards = {acting: float(len(action.content)), other: 0.0}
        if action.content == "stop":
            self.acting = None
            components = {seat: {"letters": letters} for seat, letters in self.paid.items()}
            info = {"seat_rewards": rewards, "seat_components": components, "rewards": components[acting]}
            return StepResult((Message.user(f"{acting}, it is over"),), rewards[acting], True, False, info)
        self.acting = other
        return StepResult((Message.user(action.content),), rewards[acting], False, False, {"seat": other})

    async def truncate(self, reason: str) -> StepResult:
        self.acting = None
        rewards = {"white": 1.0, "black": 2.0}
        components = {seat: {"cut": reward} for seat, reward in rewards.items()}
        info = {"seat_rewards": rewards, "seat_components": components, "truncated_by": reason}
        return StepResult((), 0.0, False, True, info)
