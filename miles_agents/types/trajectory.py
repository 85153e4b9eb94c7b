"""The record of an episode: turns, trajectories, groups and the samples trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miles_agents.errors import FailureCause, ToolErrorKind
from miles_agents.types.generation import FloatArray, IntArray, StopReason, VersionSpan
from miles_agents.types.messages import ImagePart, Message, ToolCall


class EpisodeStatus(StrEnum):
    """How an episode ended."""

    COMPLETED = "completed"  # the environment terminated it
    TRUNCATED = "truncated"  # a token, turn or context limit; graded as it stands
    ABORTED = "aborted"  # stopped from outside; not graded
    FAILED = "failed"  # lost to an EpisodeError; has a cause

    @property
    def is_valid(self) -> bool:
        """True if it counts for rewards, baselines and the loss."""
        return self in (EpisodeStatus.COMPLETED, EpisodeStatus.TRUNCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEvent:
    """One tool call and what came of it."""

    call: ToolCall
    result: str  # what the model is shown
    ok: bool  # False: the model is shown an error (bad call, tool error, timeout)
    error_kind: ToolErrorKind = ToolErrorKind.NONE  # what kind of error, if it is one
    duration_s: float = 0.0  # of the tool's own work, retries included
    wait_s: float = 0.0  # before it: for the sandbox to start, for its turn, for a free place
    info: Mapping[str, Any] = field(default_factory=dict)  # the tool's own facts (JSON), e.g. the sandbox status


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One call of the engine and what the environment answered.

    `prompt_ids` (P,) int32 is everything the engine was given, earlier turns included; `completion_ids` (C,) int32
    and `logprobs` (C,) float32 are what it sampled.
    """

    prompt_ids: IntArray
    completion_ids: IntArray
    logprobs: FloatArray
    stop_reason: StopReason
    versions: tuple[VersionSpan, ...]
    text: str = ""  # the completion decoded, for people
    observation: tuple[Message, ...] = ()  # what the environment answered, for people
    reward: float = 0.0
    tool_events: tuple[ToolEvent, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds: generate, queue, env
    info: Mapping[str, float] = field(default_factory=dict)  # counts, e.g. calls_in_reasoning
    routed_experts: NDArray[np.int16] | None = None
    media: tuple[ImagePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """The unit of training: one sequence of T tokens exactly as the engine saw them.

    `mask[t] == 1` iff token t was sampled; then `logprobs[t]` is its logprob and `versions[t]` the policy version
    that sampled it; elsewhere they are 0 and −1. `advantages` and the rest of the per-token columns come later.
    """

    ids: IntArray  # (T,)
    mask: NDArray[np.int8]  # (T,)
    logprobs: FloatArray  # (T,)
    versions: IntArray  # (T,)
    turn_index: IntArray  # (T,) index of the turn that sampled the token, −1 elsewhere
    routed_experts: NDArray[np.int16] | None = None
    media: tuple[ImagePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The record of one seat in one episode."""

    id: str
    task_id: str
    group_id: str
    turns: tuple[Turn, ...]
    status: EpisodeStatus
    reward: float | None = None  # None iff the status is not valid
    rewards: Mapping[str, float] = field(default_factory=dict)  # by name, before weighting
    cause: FailureCause | None = None  # set iff failed
    error: str = ""  # one line, for people
    truncated_by: str = ""  # "context", "max_new_tokens", "max_turns", "deadline", "env": set iff truncated
    split: str = "train"
    seat: str = "agent"
    policy: str = "policy"
    sample_index: int = 0  # which sibling of its group
    draw: int = 0  # which draw of the task source
    seed: int = 0  # the episode's seed
    start_version: int = 0  # policy version when the episode was admitted
    prompt: tuple[Message, ...] = ()  # for people
    metadata: Mapping[str, Any] = field(default_factory=dict)  # public facts: level, source file …
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds: total, setup, generate, tools

    def __post_init__(self) -> None:
        if self.status.is_valid != (self.reward is not None):
            raise ValueError(f"a {self.status} trajectory {'needs' if self.status.is_valid else 'has no'} reward")
        if (self.status is EpisodeStatus.FAILED) != (self.cause is not None):
            raise ValueError("a trajectory has a cause if and only if it failed")

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy sampled, over all turns: its ids, or what a model behind an API says it sampled."""
        return sum(_count(turn.completion_ids, turn, "completion_tokens") for turn in self.turns)

    @property
    def prompt_tokens(self) -> int:
        """Tokens the policy was given, over all turns; what a later turn is given again counts again."""
        return sum(_count(turn.prompt_ids, turn, "prompt_tokens") for turn in self.turns)

    @property
    def min_version(self) -> int:
        """The oldest policy version that sampled a token of it (`start_version` if there is none)."""
        return min((span.version for turn in self.turns for span in turn.versions), default=self.start_version)

    def tool_events(self) -> list[ToolEvent]:
        """The tool events of all turns, in order."""
        return [event for turn in self.turns for event in turn.tool_events]

    def samples(self) -> list[TrainingSample]:
        """Cut the trajectory into training samples.

        Consecutive turns share a sample as long as each prompt starts with all ids before it; where history was
        rewritten a new sample begins, with exactly the ids the engine was given. A sampled token that a later
        prompt repeats is trained once, in the sample that sampled it.
        """
        samples: list[TrainingSample] = []
        run: list[tuple[int, Turn]] = []
        for index, turn in enumerate(self.turns):
            if run and not _extends(run[-1][1], turn):
                samples.append(_merge(run))
                run = []
            run.append((index, turn))
        if run:
            samples.append(_merge(run))
        return samples


def _count(ids: IntArray, turn: Turn, name: str) -> int:
    return len(ids) or int(turn.info.get(name, 0))


def _extends(before: Turn, after: Turn) -> bool:
    prompt, completion = len(before.prompt_ids), len(before.completion_ids)
    if len(after.prompt_ids) < prompt + completion:
        return False
    return bool(
        np.array_equal(after.prompt_ids[:prompt], before.prompt_ids)
        and np.array_equal(after.prompt_ids[prompt : prompt + completion], before.completion_ids)
    )


def _merge(run: Sequence[tuple[int, Turn]]) -> TrainingSample:
    last = run[-1][1]
    ids = np.concatenate([last.prompt_ids, last.completion_ids]).astype(np.int32)
    mask = np.zeros(len(ids), np.int8)
    logprobs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    turn_index = np.full(len(ids), -1, np.int32)
    for index, turn in run:
        start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids)
        mask[start:end] = 1
        logprobs[start:end] = turn.logprobs
        turn_index[start:end] = index
        for span in turn.versions:
            versions[start + span.start : start + span.end] = span.version
    return TrainingSample(
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        versions=versions,
        turn_index=turn_index,
        routed_experts=last.routed_experts,
        media=last.media,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryGroup:
    """The siblings of one draw of one task and seat: the unit of advantage."""

    id: str
    task_id: str
    draw: int
    version: int  # policy version when the draw was admitted
    trajectories: tuple[Trajectory, ...]
    seat: str = "agent"

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The siblings that count for baselines and the loss."""
        return tuple(trajectory for trajectory in self.trajectories if trajectory.status.is_valid)
