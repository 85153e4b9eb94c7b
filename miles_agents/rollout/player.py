"""Playing one episode: environment and engine, turn by turn, token by token.

```
reset → prompt ids ─► generate ─► completion ids ─► parse ─► step ─► observation ids ─┐
            ▲                                                                         │
            └──────────── prompt + completion + observation (append only) ◄───────────┘
```
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from miles_agents.chat import is_long
from miles_agents.contracts import Env, RolloutEngine, StepResult
from miles_agents.errors import EngineError, EpisodeError, FailureCause, UsageError
from miles_agents.rollout.environments import close_environment
from miles_agents.rollout.seeds import derive_seed
from miles_agents.types import (
    Completion,
    EpisodeStatus,
    GenerateRequest,
    IntArray,
    Message,
    Reply,
    SamplingParams,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

_SCORING_S = 60.0  # for scoring an episode that its deadline cut off
_NOTHING = StepResult((), 0.0, False, True, {})  # no answer came


class Chat(Protocol):
    """What the player needs of a chat format (`miles_agents.chat.ChatFormat`)."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> IntArray:
        """(P,) int32 ids of the conversation's beginning, generation prompt included."""
        ...

    def suffix(self, observation: Sequence[Message], *, completion_ids: IntArray) -> IntArray:
        """(O,) int32 ids to append after a completion: end of turn if it was not sampled, observation, prompt."""
        ...

    def parse(self, completion: IntArray, *, truncated: bool, first_call: int) -> Reply:
        """Read a completion; `first_call` numbers its first call."""
        ...

    def decode(self, ids: IntArray) -> str:
        """Text for people, control tokens shown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the policy samples; `max_new_tokens` is per turn, `max_tokens` per trajectory."""

    max_new_tokens: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


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


@dataclass(slots=True)
class _Progress:
    """What an episode has so far; kept when it is lost on the way."""

    phase: FailureCause = FailureCause.FRAMEWORK  # whose fault a deadline or a bug would be now
    ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int32))
    turns: list[Turn] = field(default_factory=list)
    unanswered: tuple[Completion, Reply] | None = None  # what the environment is working on
    timings: dict[str, float] = field(default_factory=lambda: {"setup": 0.0, "generate": 0.0, "env": 0.0})
    reward: float = 0.0
    calls: int = 0


class EpisodePlayer:
    """Plays episodes of one policy. Holds no state between episodes but the count of sampled tokens.

    Args:
        engine: where completions come from.
        chat: messages ⇄ ids of the engine's model.
        sampling: how to sample, and the token limits.
        deadline_s: wall time of one episode; then it is truncated and scored, or lost if it has no complete turn.
        request_deadline_s: of one generation.
    """

    def __init__(
        self,
        *,
        engine: RolloutEngine,
        chat: Chat,
        sampling: Sampling,
        deadline_s: float,
        request_deadline_s: float | None = None,
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._sampling = sampling
        self._deadline_s = deadline_s
        self._request_deadline_s = request_deadline_s or deadline_s
        self.sampled_tokens = 0  # so far, in all episodes

    async def play(self, env: Env, spec: EpisodeSpec) -> Trajectory:
        """Play one episode to its end.

        Lost episodes come back as failed trajectories with one cause; cancellation, operator errors and
        BaseExceptions pass through. The environment is closed in every case.
        """
        started = time.perf_counter()
        progress = _Progress()
        try:
            result = await self._within_deadline(env, spec, progress)
        except UsageError:
            raise
        except EpisodeError as error:
            return _lost(spec, progress, error.cause, str(error), started)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the run is ending
            # An environment raised it by itself; let through, it would end a worker without a word.
            return _lost(spec, progress, progress.phase, "the environment raised CancelledError", started)
        except Exception as error:  # noqa: BLE001 — seam: a bug in an environment loses this episode, not the run
            return _lost(spec, progress, progress.phase, f"{type(error).__name__}: {error}", started)
        finally:
            with suppress(EngineError):  # an engine that is lost holds no session
                await self._engine.end_session(spec.id)
            await close_environment(env)
        if result is None:
            return _trajectory(spec, progress, started, status=EpisodeStatus.ABORTED)
        return _finished(spec, progress, started, result)

    async def _within_deadline(self, env: Env, spec: EpisodeSpec, progress: _Progress) -> StepResult | None:
        deadline = asyncio.timeout(self._deadline_s)
        try:
            async with deadline:
                return await self._run(env, spec, progress)
        except TimeoutError:
            if not deadline.expired():
                raise  # the environment's own, a bug
            return await self._cut_off(env, progress)

    async def _cut_off(self, env: Env, progress: _Progress) -> StepResult:
        """End an episode at its deadline and score it: a policy must not escape its score by being slow.

        Raises:
            EpisodeError: it has no complete turn yet, or cannot be scored.
        """
        late = f"the episode took more than {self._deadline_s:g} s (rollout.episode_deadline_s)"
        if not progress.turns:
            raise EpisodeError(late, cause=progress.phase)
        if progress.unanswered is not None:  # the environment has seen this reply, so the score is of it too
            completion, reply = progress.unanswered
            progress.turns.append(self._turn(progress, completion, _NOTHING, reply))
        try:
            async with asyncio.timeout(_SCORING_S):
                return await _truncate(env, progress, "deadline")
        except EpisodeError as error:
            raise EpisodeError(f"{late} and could not be scored: {error}", cause=error.cause) from error
        except (UsageError, TimeoutError) as error:  # it was being scored already, or scoring hangs
            why = str(error) or f"scoring it took more than {_SCORING_S:g} s"
            raise EpisodeError(f"{late} and could not be scored: {why}", cause=progress.phase) from error

    async def _run(self, env: Env, spec: EpisodeSpec, progress: _Progress) -> StepResult | None:
        """Turns until the environment or a limit ends the episode; None: it was aborted."""
        began = time.perf_counter()
        observation, info = await env.reset(seed=derive_seed(spec.seed, "env"), options={"task": spec.task})
        progress.ids = await self._off_loop(
            observation, lambda: self._chat.first_prompt(observation, info.get("tools", ()))
        )
        progress.timings["setup"] = time.perf_counter() - began
        while True:
            room = self._sampling.max_tokens - len(progress.ids)
            if room <= 0:
                return await _truncate(env, progress, "context")
            completion = await self._generate(spec, progress, min(self._sampling.max_new_tokens, room))
            if completion.stop_reason is StopReason.ABORT:
                progress.turns.append(self._turn(progress, completion, _NOTHING, None))
                return None
            result = await self._step(env, progress, completion)
            if result.terminated or result.truncated:
                return _cut_by_context(result) if room < self._sampling.max_new_tokens else result
            said, ids = result.observation, completion.ids
            suffix = await self._off_loop(said, partial(self._chat.suffix, said, completion_ids=ids))
            progress.ids = np.concatenate([progress.ids, completion.ids, suffix]).astype(np.int32)

    @staticmethod
    async def _off_loop(messages: Sequence[Message], work: Callable[[], IntArray]) -> IntArray:
        """Tokenise; long texts in a thread, so that the event loop goes on."""
        return await asyncio.to_thread(work) if is_long(messages) else work()

    async def _generate(self, spec: EpisodeSpec, progress: _Progress, max_new_tokens: int) -> Completion:
        progress.phase = FailureCause.ENGINE
        turn = len(progress.turns)
        began = time.perf_counter()
        completion = await self._engine.generate(
            GenerateRequest(
                ids=progress.ids,
                params=SamplingParams(
                    max_new_tokens=max_new_tokens,
                    temperature=self._sampling.temperature,
                    top_p=self._sampling.top_p,
                    top_k=self._sampling.top_k,
                    stop_token_ids=self._chat.stop_token_ids,
                    seed=derive_seed(spec.seed, "sample", turn),
                ),
                request_id=f"{spec.id}/{turn}",
                session_id=spec.id,
                deadline_s=self._request_deadline_s,
            )
        )
        progress.timings["generate"] += time.perf_counter() - began
        self.sampled_tokens += len(completion.ids)
        return completion

    async def _step(self, env: Env, progress: _Progress, completion: Completion) -> StepResult:
        progress.phase = FailureCause.FRAMEWORK
        reply = self._chat.parse(
            completion.ids, truncated=completion.stop_reason is StopReason.LENGTH, first_call=progress.calls
        )
        progress.calls += len(reply.calls)
        progress.unanswered = completion, reply
        began = time.perf_counter()
        try:
            result = await env.step(reply)
        finally:
            progress.timings["env"] += time.perf_counter() - began
        progress.unanswered = None
        progress.turns.append(self._turn(progress, completion, result, reply))
        progress.reward += float(result.reward)
        return result

    def _turn(self, progress: _Progress, completion: Completion, result: StepResult, reply: Reply | None) -> Turn:
        return Turn(
            prompt_ids=progress.ids,
            completion_ids=completion.ids,
            logprobs=completion.logprobs,
            stop_reason=completion.stop_reason,
            versions=completion.versions,
            text=self._chat.decode(completion.ids),
            observation=tuple(result.observation),
            reward=float(result.reward),
            tool_events=tuple(result.info.get("tool_events", ())),
            timings=completion.timings,
            info={} if reply is None else _reply_facts(reply),
            routed_experts=completion.routed_experts,
        )


async def _truncate(env: Env, progress: _Progress, reason: str) -> StepResult:
    """Have the environment score the episode as it stands."""
    result = await env.truncate(reason)
    progress.reward += float(result.reward)  # of no turn's own
    info = {**result.info, "truncated_by": result.info.get("truncated_by") or reason}
    return result._replace(terminated=False, truncated=True, info=info)


def _cut_by_context(result: StepResult) -> StepResult:
    """What an environment says of a reply that was cut where the trajectory's tokens ended: it cannot know that."""
    if not result.truncated or result.info.get("truncated_by") != "max_new_tokens":
        return result
    return result._replace(info={**result.info, "truncated_by": "context"})


def _reply_facts(reply: Reply) -> dict[str, float]:
    return {
        "calls": float(len(reply.calls)),
        "malformed_calls": float(sum(call.error is not None for call in reply.calls)),
        "calls_in_reasoning": float(reply.calls_in_reasoning),
        "reasoning_unclosed": float(reply.reasoning_unclosed),
    }


def _trajectory(spec: EpisodeSpec, progress: _Progress, started: float, **outcome: Any) -> Trajectory:
    return Trajectory(
        id=spec.id,
        task_id=spec.task.id,
        group_id=spec.group_id,
        turns=tuple(progress.turns),
        split=spec.task.split,
        sample_index=spec.sample_index,
        draw=spec.draw,
        seed=spec.seed,
        start_version=spec.version,
        prompt=spec.task.prompt,
        metadata={**spec.task.metadata, "answer": spec.task.answer},
        timings={**progress.timings, "total": time.perf_counter() - started},
        **outcome,
    )


def _finished(spec: EpisodeSpec, progress: _Progress, started: float, result: StepResult) -> Trajectory:
    return _trajectory(
        spec,
        progress,
        started,
        status=EpisodeStatus.COMPLETED if result.terminated else EpisodeStatus.TRUNCATED,
        reward=progress.reward,
        rewards=dict(result.info.get("rewards", {})),
        truncated_by="" if result.terminated else str(result.info.get("truncated_by") or "env"),
    )


def _lost(spec: EpisodeSpec, progress: _Progress, cause: FailureCause, error: str, started: float) -> Trajectory:
    return _trajectory(
        spec, progress, started, status=EpisodeStatus.FAILED, cause=cause, error=" ".join(error.split())[:500]
    )
