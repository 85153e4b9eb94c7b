"""`guess_number-v0`: a game of several turns without tools, written straight on `Env`."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import numpy as np

from miles_agents.contracts import Env, Observation, ResetResult, StepResult
from miles_agents.envs.splits import split_of
from miles_agents.errors import ConfigError, UsageError, did_you_mean
from miles_agents.registry import environments
from miles_agents.types import Message, Reply, Task

_SEED = 0  # the tasks of a split are always the same
_LOWS = range(100, 20_000)  # where the range of a task may begin; none of its numbers is small talk
_NUMBER = re.compile(r"(?<![\w.,])\d{1,9}(?![\w]|[.,]\d)")


@environments.register("guess_number-v0")
class GuessNumber(Env):
    """Find the number; each guess is answered "too low" or "too high".

    The guess is the last whole number of a reply. A reply without one, or with one outside the range, is told so and
    counts. Rewards: `solved`, 1 if the number was found; `spared`, the share of guesses that were left when it was.

    Args:
        size: how many numbers the range has.
        max_guesses: replies that may be given; with 10 every number of 1000 can be found.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        spared_weight: weight of the reward `spared`; 0 records it without training on it.

    Raises:
        ConfigError: a value out of its range.
    """

    def __init__(
        self,
        *,
        size: int = 1000,
        max_guesses: int = 10,
        train_size: int = 4096,
        validation_size: int = 256,
        test_size: int = 512,
        spared_weight: float = 0.0,
    ) -> None:
        self.size = size
        self.max_guesses = max_guesses
        self.spared_weight = spared_weight
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        checks = [
            ("size", size, 100 <= size <= 1_000_000, "from 100 to 1000000"),
            ("max_guesses", max_guesses, max_guesses >= 1, "at least 1"),
            ("spared_weight", spared_weight, math.isfinite(spared_weight), "a finite number"),
            *((f"{name}_size", each, 1 <= each <= 1500, "from 1 to 1500") for name, each in self._held_out()),
            ("train_size", train_size, 1 <= train_size <= 12_000, "from 1 to 12000"),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))
        self.reward_range = (min(spared_weight, 0.0), 1.0 + max(spared_weight, 0.0))
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._task: Task | None = None
        self._guesses = 0

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split: ranges and secrets that no other split has.

        Raises:
            ConfigError: no such split.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = tuple(self._generated(split))
        return self._tasks[split]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin an episode of `options["task"]`.

        Raises:
            UsageError: no task was given.
        """
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError("reset() needs options={'task': Task(…)}")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._task = task
        self._guesses = 0
        return ResetResult(task.prompt, {"tools": []})

    async def step(self, action: Reply) -> StepResult:
        """Answer a guess."""
        task = self._current()
        if action.truncated:
            return self._end(solved=False, truncated_by="max_new_tokens")
        self._guesses += 1
        low, high, secret = (int(task.answer[name]) for name in ("low", "high", "secret"))
        guess = read_guess(action.content)
        if guess == secret:
            return self._end(solved=True, said=f"{guess} is right.")
        if guess is None:
            said = "There is no whole number in that reply. It counts as a guess."
        elif not low <= guess <= high:
            said = f"{guess} is not from {low} to {high}. It counts as a guess."
        else:
            said = f"{guess} is too {'low' if guess < secret else 'high'}."
        left = self.max_guesses - self._guesses
        if left == 0:
            return self._end(solved=False, said=f"{said} That was the last guess.")
        said = f"{said} {left} {'guess' if left == 1 else 'guesses'} left."
        return StepResult((Message.user(said),), 0.0, False, False, {})

    async def truncate(self, reason: str) -> StepResult:
        """Not found."""
        self._current()
        return self._end(solved=False, truncated_by=reason)

    async def close(self) -> None:
        """End the episode."""
        self._task = None

    def oracle(self, task: Task) -> Generator[Reply, Observation, None]:
        """Halve the range; it knows the rules and not the secret."""
        low, high = (int(number) for number in re.findall(r"from (\d+) to (\d+)", task.prompt[0].text)[0])
        while True:
            guess = (low + high) // 2
            (said,) = yield Reply.of(str(guess))
            if "too low" in said.text:
                low = guess + 1
            else:
                high = guess - 1

    def _held_out(self) -> list[tuple[str, int]]:
        return [(name, self._sizes[name]) for name in ("validation", "test")]

    def _current(self) -> Task:
        if self._task is None:
            raise UsageError("step() before reset(), or after the episode ended: call reset() first")
        return self._task

    def _end(self, *, solved: bool, said: str = "", truncated_by: str = "") -> StepResult:
        self._task = None
        spared = (self.max_guesses - self._guesses) / self.max_guesses if solved else 0.0
        rewards = {"solved": float(solved), "spared": spared}
        info = {"rewards": rewards, "truncated_by": truncated_by}
        observation = (Message.user(said),) if said else ()
        total = rewards["solved"] + self.spared_weight * spared
        return StepResult(observation, total, not truncated_by, bool(truncated_by), info)

    def _generated(self, split: str) -> Iterator[Task]:
        rng = random.Random(f"{_SEED}/{self.size}/{split}")
        lows = [low for low in _LOWS if split_of(f"guess_number low {low}") == split]
        for number, low in enumerate(rng.sample(lows, self._sizes[split])):
            high = low + self.size - 1
            secret = rng.randint(low, high)
            while split_of(f"guess_number secret {secret}") != split:
                secret = rng.randint(low, high)
            text = (
                f"I am thinking of a whole number from {low} to {high}. Find it with at most {self.max_guesses} "
                "guesses. Give one number in each reply; I say whether it is too low or too high."
            )
            yield Task(
                id=f"{split}/{number}",
                prompt=(Message.user(text),),
                answer={"low": low, "high": high, "secret": secret},
                split=split,
            )


def read_guess(text: str) -> int | None:
    """The last whole number of a text, written in at most nine digits without separators; None if there is none."""
    found = _NUMBER.findall(text)
    return int(found[-1]) if found else None
