"""The environment contract: asynchronous, Gymnasium-style, one episode at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from miles_agents.contracts.sandbox import SandboxProvider
from miles_agents.contracts.tools import Tool
from miles_agents.types import Message, Reply, Task, Trajectory

Observation = tuple[Message, ...]


class ResetResult(NamedTuple):
    """The first messages, and facts; `info["tools"]` lists the tool schemas."""

    observation: Observation
    info: dict[str, Any]


class StepResult(NamedTuple):
    """One step's outcome, in Gymnasium's order.

    `observation` holds the new messages only (the terminal ones included). `info` may hold `tool_events` (a tuple of
    `ToolEvent`), `rewards` (by name, at the end) and `truncated_by`. Where several seats play it holds `seat`, the one
    to act next, which the observation is for; and where others than the acting one get a reward, `seat_rewards` (this
    step's, by seat, the acting one's too) and at the end `seat_components` (by seat, then by name).
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvResources:
    """What the run lends an environment; each may be missing."""

    sandboxes: SandboxProvider | None = None


class Env(ABC):
    """One instance plays one episode at a time: `reset`, then `step` until terminated or truncated, then `close`.

    Randomness comes from `self.np_random`, seeded by `reset(seed=…)`, never from global generators.
    """

    configurable: ClassVar[tuple[str, ...]] = ()  # class attributes that `env.NAME=…` may set besides `__init__`'s
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")
    seats: tuple[str, ...] = (
        "agent",
    )  # who plays; `info["seat"]` of reset and step names the one to act (else the first)
    reward_range: tuple[float, float] = (0.0, 1.0)  # of a whole episode, both ends included
    modalities: ClassVar[frozenset[str]] = frozenset({"text"})  # of its messages' parts: "text", "image"

    resources: EnvResources = EnvResources()
    reusable: bool = True  # False: what an episode left running (a blocking function) may still change this instance
    _np_random: np.random.Generator | None = None

    @property
    def np_random(self) -> np.random.Generator:
        """This environment's own generator; seeded at random where no `reset(seed=…)` came before."""
        if self._np_random is None:
            self._np_random = np.random.default_rng()
        return self._np_random

    @np_random.setter
    def np_random(self, generator: np.random.Generator) -> None:
        self._np_random = generator

    def bind(self, resources: EnvResources) -> None:
        """Lend the run's resources; called once, before the first reset."""
        self.resources = resources

    def all_tools(self) -> tuple[Tool, ...]:
        """The tools an episode offers; none by default."""
        return ()

    async def open_shared(self) -> None:
        """Make ready what all instances share, e.g. connections of tools: before `all_tools` and the first `reset`.

        May be called again, by other instances, too.

        Raises:
            UsageError: it cannot be made ready as it is set up.
            EpisodeError: it cannot be reached now.
        """

    async def close_shared(self) -> None:
        """Free what all instances share, at the end of the run; the next `open_shared` makes it ready again."""

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, always the same and in the same order."""

    @abstractmethod
    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin an episode of `options["task"]`; ends the one before."""

    @abstractmethod
    async def step(self, action: Reply) -> StepResult:
        """Answer the policy's reply.

        Raises:
            UsageError: no episode is running: before `reset`, after the end, after `close`.
        """

    async def truncate(self, reason: str) -> StepResult:
        """The run has no tokens, turns or time left for this episode: score it as it stands. No reward by default.

        At a deadline the `step` under way was cancelled before.
        """
        return StepResult((), 0.0, False, True, {"truncated_by": reason})

    async def group_rewards(self, group: Sequence[Trajectory]) -> Sequence[Mapping[str, float]] | None:
        """Rewards that compare siblings: called once all episodes of a draw (and seat) are over.

        Args:
            group: the siblings that were scored, in the order of their sample index.

        Returns:
            Rewards by name, one mapping for each of `group`; they are added to its reward, times `reward_weights`
            where the environment has them. None: it has no such rewards.

        Raises:
            EpisodeError: they cannot be worked out; the whole group is lost.
        """
        return None

    async def close(self) -> None:
        """Free what the episode holds. May be called twice."""
