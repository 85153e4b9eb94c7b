"""What plays a seat: a `Policy` gives each episode a `Seat`, which hears messages and answers them.

`TokenPolicy` (token_policy.py) samples from an engine and can be trained; `ScriptedPolicy`, here, answers from a plain
function, as an opponent or in a test.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from miles_agents.rollout.seeds import derive_seed
from miles_agents.types import Message, Reply, StopReason, Task, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSpec:
    """Which episode to play. The seed decides the environment's randomness and the sampling."""

    task: Task
    group_id: str
    sample_index: int = 0
    draw: int = 0
    seed: int = 0
    version: int = 0  # policy version at admission

    @property
    def id(self) -> str:
        """Unique within a run."""
        return f"{self.group_id}/{self.sample_index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSpec:
    """One seat of an episode."""

    episode: EpisodeSpec
    name: str = "agent"
    alone: bool = True  # the environment has no other seat: then ids and seeds do not name it

    @property
    def id(self) -> str:
        """Unique within a run; the trajectory's id."""
        return self.episode.id if self.alone else f"{self.episode.id}/{self.name}"

    @property
    def group_id(self) -> str:
        """Of the siblings of this seat."""
        return self.episode.group_id if self.alone else f"{self.episode.group_id}/{self.name}"

    def seed(self, *names: str | int) -> int:
        """The seed of the stream `names` of this seat."""
        return derive_seed(self.episode.seed, *names, *(() if self.alone else (self.name,)))


class Sampled(NamedTuple):
    """What a seat said, before the environment has seen it."""

    turn: Turn  # what was sampled; the environment's answer is added later
    fills_context: bool = False  # no more tokens were left than it was allowed: a cut is the context's end


class Seat(ABC):
    """One seat in one episode: `hear`, `generate`, `read`, `hear`, … , `close`."""

    @abstractmethod
    async def hear(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Take in what the environment says: first the prompt, then each observation.

        Args:
            messages: the new ones.
            tools: schemas of what the episode offers, OpenAI-style.
        """

    @abstractmethod
    async def generate(self) -> Sampled | None:
        """Say something. None: there is no room left for another turn.

        Raises:
            EpisodeError: the engine failed, or its deadline passed.
        """

    @abstractmethod
    def read(self, sampled: Sampled, *, first_call: int) -> Reply:
        """The reply that was sampled last; `first_call` numbers its first call."""

    async def close(self) -> None:
        """Free what the seat holds in the engine. Nothing by default."""


class Policy(ABC):
    """Gives seats. Holds no state between episodes but counts."""

    name: str = "policy"
    trained: bool = False  # its trajectories hold the exact tokens and logprobs that training needs
    sampled_tokens: int = 0  # so far, in all episodes

    @abstractmethod
    def seat(self, spec: SeatSpec) -> Seat:
        """A seat in one episode."""


Answer = Callable[[Sequence[Message], np.random.Generator], Any]
"""(all messages so far, the seat's own generator) → a `Reply` or text, or an awaitable of one."""


class ScriptedPolicy(Policy):
    """Answers from a function.

    Args:
        answer: see `Answer`; plain functions must be quick, they run on the event loop.
        name: shown in trajectories.
    """

    def __init__(self, answer: Answer, *, name: str = "scripted") -> None:
        self.name = name
        self._answer = answer

    def seat(self, spec: SeatSpec) -> Seat:
        """A seat in one episode, with a generator seeded by the episode's seed."""
        return _ScriptedSeat(self._answer, np.random.default_rng(spec.seed("script")))


class _ScriptedSeat(Seat):
    def __init__(self, answer: Answer, rng: np.random.Generator) -> None:
        self._answer = answer
        self._rng = rng
        self._messages: list[Message] = []
        self._reply = Reply.of("")

    async def hear(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        self._messages.extend(messages)

    async def generate(self) -> Sampled:
        said = self._answer(tuple(self._messages), self._rng)
        if inspect.isawaitable(said):
            said = await said
        else:
            await asyncio.sleep(0)  # an endless game between two scripts must not hold the event loop
        self._reply = Reply.of(said) if isinstance(said, str) else said
        self._messages.append(self._reply.message())
        return Sampled(untrained_turn(self._reply.text))

    def read(self, sampled: Sampled, *, first_call: int) -> Reply:
        return self._reply


_NO_IDS, _NO_LOGPROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)  # without elements: all turns share them


def untrained_turn(text: str, *, stop_reason: StopReason = StopReason.STOP, info: Mapping[str, float] = {}) -> Turn:
    """A turn of which no token ids are known; it can be scored, never trained on."""
    return Turn(
        prompt_ids=_NO_IDS,
        completion_ids=_NO_IDS,
        logprobs=_NO_LOGPROBS,
        stop_reason=stop_reason,
        versions=(),
        text=text,
        info=dict(info),
    )
