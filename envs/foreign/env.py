"""`ForeignEnv`: a game written by others as an environment; its seeds are the tasks."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from miles_agents.contracts import Env, ResetResult, StepResult
from miles_agents.contracts.threads import run_in_thread
from miles_agents.envs.foreign.game import TextGame
from miles_agents.envs.foreign.isolation import Isolation
from miles_agents.errors import ConfigError, EpisodeError, GraderError, UsageError, did_you_mean
from miles_agents.types import Message, Reply, Task

R = TypeVar("R")

_SPLIT_SEEDS = 10_000_000  # seeds of a split: train 0 …, validation 10,000,000 …, test 20,000,000 …
_OPEN_S = 300.0  # to import the library and make the first game


class ForeignEnv(Env):
    """An episode: the game's first text, then replies and answers until the game or a limit ends it.

    A task is a seed; the splits have seeds of their own, so no two tasks are the same game (which does not say that
    two games never ask the same question: a game of few positions repeats them). The task's seed fixes the game and
    what it draws at its reset; what it draws later from the global generators follows from the episode's seed.

    A reply's content (no thinking, no calls) is the move. A reply cut by a token limit, or the last allowed turn,
    truncates the episode; what the game gave so far is the reward. All calls run in threads, one foreign call at a
    time in a process (see `isolation`). What a game raises, a deadline it misses, and an answer that is no text lose
    the episode (`EpisodeError`); a reward that is no finite number is a `GraderError`.

    Args:
        game: which game, in the words of its library; "" is `usual_game`.
        arguments: of the game, on top of its defaults.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        max_turns: replies in one episode.
        step_timeout_s: seconds one call of the game may take.
        reward_low: the least reward of an episode; None: what is usual for the library (`usual_rewards`).
        reward_high: the reward of an episode that counts as solved, the most there is; None: what is usual.
        system_prompt: a system message before the game's first text; "" gives none.

    Raises:
        ConfigError: a value out of its range, or no game.
    """

    usual_game: ClassVar[str] = ""  # "": one has to be given
    usual_rewards: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(
        self,
        *,
        game: str = "",
        arguments: Mapping[str, Any] | None = None,
        train_size: int = 4096,
        validation_size: int = 128,
        test_size: int = 256,
        max_turns: int = 64,
        step_timeout_s: float = 30.0,
        reward_low: float | None = None,
        reward_high: float | None = None,
        system_prompt: str = "",
    ) -> None:
        self.game = game or self.usual_game
        self.arguments = dict(arguments or {})
        self.system_prompt = system_prompt
        self.max_turns = max_turns
        self.step_timeout_s = step_timeout_s
        low, high = self.usual_rewards
        self.reward_range = (low if reward_low is None else reward_low, high if reward_high is None else reward_high)
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        self._check_ranges()
        self._isolation = Isolation()
        self._game: TextGame | None = None
        self._turns = 0
        self._total = 0.0
        self._opened = False

    @abstractmethod
    def make_game(self) -> TextGame:
        """Make one game. Runs in a thread, isolated; may import the library.

        Raises:
            UsageError: no such game or library, or a game that cannot be played alone; the message says what to type.
        """

    def tasks(self, split: str) -> Iterator[Task]:
        """One task per seed of the split. Its prompt names the game for people; the policy sees the game's own words.

        Raises:
            ConfigError: no such split.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        return self._tasks_of(split)

    def _tasks_of(self, split: str) -> Iterator[Task]:
        first = self.splits.index(split) * _SPLIT_SEEDS
        for number in range(self._sizes[split]):
            yield Task(
                id=f"{self.game}/{split}/{number}",
                prompt=(Message.user(f"{self.game}, seed {first + number}"),),
                metadata={"game": self.game, "seed": first + number},
                split=split,
            )

    async def open_shared(self) -> None:
        """Make a game and begin it, so that a wrong name or a missing library is told before the first episode."""
        if self._opened:
            return
        isolation = Isolation()
        game = await self._call(f"making {self.game}", self.make_game, isolation=isolation, limit_s=_OPEN_S)
        await self._call(f"the first reset() of {self.game}", partial(game.reset, 0), isolation=isolation)
        await self._call(f"close() of {self.game}", game.close, isolation=isolation)
        self._opened = True

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin the game of `options["task"]`.

        Raises:
            UsageError: no task was given, or one of another environment; no such game.
            EpisodeError: the game failed.
        """
        await self.close()
        task = (options or {}).get("task")
        if not isinstance(task, Task) or not isinstance(task.metadata.get("seed"), int):
            raise UsageError("reset() needs options={'task': Task(…)} with a seed: one of tasks(split)")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        await self.open_shared()
        game_seed = int(task.metadata["seed"])
        self._isolation.seed(game_seed)
        # A new one: a game may remember the ones before.
        self._game = await self._call(f"making {self.game}", self.make_game)
        text = self._text(await self._call(f"reset() of {self.game}", partial(self._game.reset, game_seed)))
        self._isolation.seed(int(self.np_random.integers(2**32)))
        self._turns, self._total = 0, 0.0
        system = (Message.system(self.system_prompt),) if self.system_prompt else ()
        return ResetResult((*system, Message.user(text)), {"tools": []})

    async def step(self, action: Reply) -> StepResult:
        """Make the move that the reply's content is.

        Raises:
            UsageError: no episode is running.
            EpisodeError: the game failed.
        """
        game = self._current()
        if action.truncated:
            return await self._end((), 0.0, "max_new_tokens")
        move = await self._call(f"a move of {self.game}", partial(game.move, action.content.strip()))
        text, reward = self._text(move.observation), self._finite(move.reward)
        self._turns += 1
        self._total += reward
        last = self._turns >= self.max_turns
        if move.terminated or move.truncated or last:
            observation = (Message.user(text),) if text else ()
            truncated_by = "" if move.terminated else "env" if move.truncated else "max_turns"
            return await self._end(observation, reward, truncated_by)
        return StepResult((Message.user(text),), reward, False, False, {})

    async def truncate(self, reason: str) -> StepResult:
        """End the game; what it gave so far is the reward."""
        self._current()
        return await self._end((), 0.0, reason)

    async def close(self) -> None:
        """End the game."""
        game, self._game = self._game, None
        if game is not None:
            await self._call(f"close() of {self.game}", game.close)

    async def _end(self, observation: tuple[Message, ...], reward: float, truncated_by: str) -> StepResult:
        await self.close()
        info = {"rewards": {"game": self._total}, "truncated_by": truncated_by}
        return StepResult(observation, reward, not truncated_by, bool(truncated_by), info)

    async def _call(
        self, what: str, function: Callable[[], R], *, isolation: Isolation | None = None, limit_s: float | None = None
    ) -> R:
        """Run a blocking call in a thread; its time counts from when no other foreign call is in the way."""
        seconds = limit_s or self.step_timeout_s
        loop = asyncio.get_running_loop()
        deadline = asyncio.timeout(None)

        def begin() -> None:
            if waiting:
                deadline.reschedule(loop.time() + seconds)

        waiting = True
        try:
            async with deadline:
                return await run_in_thread(
                    (isolation or self._isolation).run, seconds, lambda: _soon(loop, begin), function
                )
        except BaseException as error:
            self._game, self.reusable = None, False  # it may still be running, or be in any state
            if deadline.expired():
                raise EpisodeError(f"{what} took more than {seconds:g} s") from error
            if not isinstance(error, Exception) or isinstance(error, (UsageError, EpisodeError)):
                raise
            raise EpisodeError(f"{what} raised {type(error).__name__}: {error}") from error
        finally:
            waiting = False

    def _current(self) -> TextGame:
        if self._game is None:
            raise UsageError("step() before reset(), or after the episode ended: call reset() first")
        return self._game

    def _text(self, said: Any) -> str:
        if not isinstance(said, str):
            raise EpisodeError(f"{self.game} gave an observation of type {type(said).__name__}, not a text")
        return said

    def _finite(self, reward: Any) -> float:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise GraderError(f"{self.game} gave the reward {reward!r:.80}, not a finite number")
        return number

    def _check_ranges(self) -> None:
        if not self.game:
            raise ConfigError("env.game is not given: say which game, e.g. env.game=./my_game.py:MyGame")
        low, high = self.reward_range
        checks = [
            *((f"{split}_size", size, 1 <= size <= _SPLIT_SEEDS) for split, size in self._sizes.items()),
            ("max_turns", self.max_turns, self.max_turns >= 1),
            ("step_timeout_s", self.step_timeout_s, 0 < self.step_timeout_s < math.inf),
            ("reward_low", low, -math.inf < low < high < math.inf),
        ]
        wrong = [f"env.{name}={value} is out of its range" for name, value, fine in checks if not fine]
        if wrong:
            raise ConfigError(
                f"{'; '.join(wrong)}: sizes 1 to {_SPLIT_SEEDS:,}, times above 0, reward_low < reward_high"
            )


def _soon(loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
        loop.call_soon_threadsafe(begin)
