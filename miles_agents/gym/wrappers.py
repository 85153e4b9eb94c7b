"""Wrappers for environments of texts; Gymnasium's own (`TimeLimit`, `RecordEpisodeStatistics`, …) work as well."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from miles_agents.errors import UsageError
from miles_agents.gym.environment import TextEnv
from miles_agents.gym.texts import CutText
from miles_agents.types import Message

Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]


class TokenBudget(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Truncates the episode when its actions together are longer than a budget.

    The action that goes beyond it is handed on as a reply that was cut by a token limit: the environment runs none of
    its calls, and scores the episode as it stands. `info["budget_left"]` says how much is left.

    Args:
        env: what to wrap.
        budget: tokens of all actions of an episode.
        count: how many tokens a text has, e.g. `lambda text: len(tokenizer.encode(text))`; by default its characters.

    Raises:
        UsageError: the budget is below 1.
    """

    def __init__(self, env: gymnasium.Env[str, str], budget: int, count: Callable[[str], int] = len) -> None:
        if budget < 1:
            raise UsageError(f"budget={budget}: it must be at least 1")
        RecordConstructorArgs.__init__(self, budget=budget, count=count)
        gymnasium.Wrapper.__init__(self, env)
        self._budget = budget
        self._count = count
        self._left = budget

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The whole budget is left."""
        self._left = self._budget
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "budget_left": self._left}

    def step(self, action: str) -> Step:
        """The wrapped step; with a text that is cut if it goes beyond the budget."""
        self._left -= self._count(action)
        cut = self._left < 0
        result = super().step(CutText(action, "token_budget") if cut else action)
        observation, reward, terminated, truncated, info = result
        return observation, reward, terminated, truncated, {**info, "budget_left": max(0, self._left)}


class ScaleReward(gymnasium.RewardWrapper[str, str], RecordConstructorArgs):
    """Multiplies every reward by `factor`.

    Args:
        env: what to wrap.
        factor: any finite number.

    Raises:
        UsageError: the factor is not finite.
    """

    def __init__(self, env: gymnasium.Env[str, str], factor: float) -> None:
        if not math.isfinite(factor):
            raise UsageError(f"factor={factor}: it must be a finite number")
        RecordConstructorArgs.__init__(self, factor=factor)
        gymnasium.RewardWrapper.__init__(self, env)
        self._factor = factor

    def reward(self, reward: SupportsFloat) -> float:
        """The scaled reward."""
        return self._factor * float(reward)


class RecordTrajectory(gymnasium.Wrapper[str, str, str, str], RecordConstructorArgs):
    """Appends every episode to a JSONL file, one line each, when it ends (or is left by `reset` or `close`).

    A line holds `task_id`, `seed` (the one given to `reset`), `messages`, `rewards` (of each step), `reward` (their
    sum), `terminated`, `truncated` and `truncated_by`; an episode that was left is neither terminated nor truncated.

    Args:
        env: what to wrap: a `TextEnv`, inside other wrappers or not.
        path: the file; it and its folder are made if need be.

    Raises:
        UsageError: there is no `TextEnv` inside.
    """

    def __init__(self, env: gymnasium.Env[str, str], path: str | Path) -> None:
        if not isinstance(env.unwrapped, TextEnv):
            raise UsageError(f"RecordTrajectory wraps environments of miles_agents, not {type(env.unwrapped).__name__}")
        RecordConstructorArgs.__init__(self, path=str(path))
        gymnasium.Wrapper.__init__(self, env)
        self._path = Path(path)
        self._inner = env.unwrapped
        self._line: dict[str, Any] | None = None  # of the episode under way

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Writes the episode that is left, and begins another."""
        self._write()
        observation, info = super().reset(seed=seed, options=options)
        self._line = {"task_id": info["task_id"], "seed": seed, "messages": [], "rewards": [], "reward": 0.0}
        self._line |= {"terminated": False, "truncated": False, "truncated_by": ""}
        return observation, info

    def step(self, action: str) -> Step:
        """The wrapped step; writes the episode if it ends."""
        result = super().step(action)
        _, reward, terminated, truncated, info = result
        if self._line is not None:
            self._line["rewards"].append(float(reward))
            self._line |= {"terminated": bool(terminated), "truncated": bool(truncated)}
            self._line["truncated_by"] = str(info.get("truncated_by", ""))
            if terminated or truncated:
                self._write()
        return result

    def close(self) -> None:
        """Writes the episode that is left."""
        self._write()
        super().close()

    def _write(self) -> None:
        line, self._line = self._line, None
        if line is None:
            return
        line["messages"] = [_as_json(message) for message in self._inner.conversation]
        line["reward"] = math.fsum(line["rewards"])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _as_json(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": str(message.role), "content": message.text}
    if message.reasoning:
        said["reasoning"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments, "raw": call.raw, "error": call.error}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        said |= {"tool_call_id": message.tool_call_id, "name": message.name}
    if message.images:
        said["images"] = [image.media_type for image in message.images]
    return said
