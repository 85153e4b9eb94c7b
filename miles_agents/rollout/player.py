"""Playing one episode: environment and seats, turn by turn.

```
reset ─► seat.hear(prompt) ─► seat.generate ─► seat.read ─► env.step ─┐
                                   ▲                                  │ the seat to act next
                                   └──────── seat.hear(observation) ◄─┘
```

What a seat makes of what it hears is its policy's business (policy.py, token_policy.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from miles_agents.contracts import Env, StepResult
from miles_agents.errors import EpisodeError, FailureCause, UsageError
from miles_agents.rollout.environments import close_environment
from miles_agents.rollout.policy import EpisodeSpec, Policy, Sampled, Seat, SeatSpec
from miles_agents.rollout.seeds import derive_seed
from miles_agents.types import EpisodeStatus, Message, Reply, StopReason, Trajectory, Turn

__all__ = ["EpisodePlayer", "EpisodeSpec"]

_SCORING_S = 60.0  # for scoring an episode that its deadline cut off


@dataclass(slots=True, kw_only=True)
class _Seated:
    """One seat and what it has so far."""

    spec: SeatSpec
    policy: Policy
    seat: Seat
    prompt: tuple[Message, ...] = ()  # what it heard first
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0
    rewards: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0


@dataclass(slots=True)
class _Progress:
    """What an episode has so far; kept when it is lost on the way."""

    seats: dict[str, _Seated]
    acting: str
    phase: FailureCause = FailureCause.FRAMEWORK  # whose fault a deadline or a bug would be now
    unanswered: tuple[Turn, Reply] | None = None  # what the environment is working on
    timings: dict[str, float] = field(default_factory=lambda: {"setup": 0.0, "generate": 0.0, "env": 0.0})

    @property
    def actor(self) -> _Seated:
        """Whose turn it is."""
        return self.seats[self.acting]

    def pass_on(self, info: Mapping[str, Any]) -> None:
        """Let the seat act that the environment names."""
        name = info.get("seat", self.acting)
        if name not in self.seats:
            raise EpisodeError(f"the environment names a seat {name!r}; its seats are {', '.join(self.seats)}")
        self.acting = name


class EpisodePlayer:
    """Plays episodes. Holds no state between episodes.

    Args:
        policy: plays every seat that no other plays.
        deadline_s: wall time of one episode; then it is truncated and scored, or lost if it has no complete turn.
        others: by seat, who plays it instead.
    """

    def __init__(self, *, policy: Policy, deadline_s: float, others: Mapping[str, Policy] | None = None) -> None:
        self.policy = policy
        self.others = dict(others or {})
        self._deadline_s = deadline_s

    @property
    def sampled_tokens(self) -> int:
        """So far, in all episodes, by the policy."""
        return self.policy.sampled_tokens

    async def play(self, env: Env, spec: EpisodeSpec) -> Trajectory:
        """Play one episode to its end; the trajectory of the first seat that `policy` plays comes back.

        Lost episodes come back as failed trajectories with one cause; cancellation, operator errors and
        BaseExceptions pass through. The environment is closed in every case.
        """
        played = await self.play_seats(env, spec)
        return next((trajectory for trajectory in played if trajectory.seat not in self.others), played[0])

    async def play_seats(self, env: Env, spec: EpisodeSpec) -> tuple[Trajectory, ...]:
        """Play one episode to its end: one trajectory per seat, in the environment's order; see `play`."""
        started = time.perf_counter()
        progress = self._seated(env, spec)
        outcome = await self._outcome(env, spec, progress)
        timings = {**progress.timings, "total": time.perf_counter() - started}
        return tuple(_trajectory(each, progress, outcome, timings) for each in progress.seats.values())

    def _seated(self, env: Env, spec: EpisodeSpec) -> _Progress:
        unknown = sorted(set(self.others) - set(env.seats))
        if unknown:
            raise UsageError(f"no seat {unknown[0]!r} in this environment; its seats are {', '.join(env.seats)}")
        seats = {}
        for name in env.seats:
            policy = self.others.get(name, self.policy)
            seat = SeatSpec(episode=spec, name=name, alone=len(env.seats) == 1)
            seats[name] = _Seated(spec=seat, policy=policy, seat=policy.seat(seat))
        return _Progress(seats, acting=env.seats[0])

    async def _outcome(self, env: Env, spec: EpisodeSpec, progress: _Progress) -> _Outcome:
        try:
            result = await self._within_deadline(env, spec, progress)
        except UsageError:
            raise
        except EpisodeError as error:
            return _lost(error.cause, str(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the run is ending
            # An environment raised it by itself; let through, it would end a worker without a word.
            return _lost(progress.phase, "the environment raised CancelledError")
        except Exception as error:  # noqa: BLE001 — seam: a bug in an environment loses this episode, not the run
            return _lost(progress.phase, f"{type(error).__name__}: {error}")
        finally:
            for each in progress.seats.values():
                await each.seat.close()
            await close_environment(env)
        if result is None:
            return _Outcome(EpisodeStatus.ABORTED)
        if result.terminated:
            return _Outcome(EpisodeStatus.COMPLETED)
        return _Outcome(EpisodeStatus.TRUNCATED, truncated_by=str(result.info.get("truncated_by") or "env"))

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
        if not any(each.turns for each in progress.seats.values()):
            raise EpisodeError(late, cause=progress.phase)
        if progress.unanswered is not None:  # the environment has seen this reply, so the score is of it too
            turn, reply = progress.unanswered
            progress.actor.turns.append(replace(turn, info={**turn.info, **_reply_facts(reply)}))
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
        tools = info.get("tools", ())
        progress.pass_on(info)
        progress.actor.prompt = observation
        await progress.actor.seat.hear(observation, tools)
        progress.timings["setup"] = time.perf_counter() - began
        while True:
            sampled = await self._generate(progress)
            if sampled is None:
                return await _truncate(env, progress, "context")
            if sampled.turn.stop_reason is StopReason.ABORT:
                progress.actor.turns.append(sampled.turn)
                return None
            result = await self._step(env, progress, sampled)
            if result.terminated or result.truncated:
                return _cut_by_context(result) if sampled.fills_context else result
            await _hear(progress, result, tools)

    @staticmethod
    async def _generate(progress: _Progress) -> Sampled | None:
        progress.phase = FailureCause.ENGINE
        began = time.perf_counter()
        sampled = await progress.actor.seat.generate()
        progress.timings["generate"] += time.perf_counter() - began
        return sampled

    @staticmethod
    async def _step(env: Env, progress: _Progress, sampled: Sampled) -> StepResult:
        progress.phase = FailureCause.FRAMEWORK
        actor = progress.actor
        reply = actor.seat.read(sampled, first_call=actor.calls)
        actor.calls += len(reply.calls)
        progress.unanswered = sampled.turn, reply
        began = time.perf_counter()
        try:
            result = await env.step(reply)
        finally:
            progress.timings["env"] += time.perf_counter() - began
        progress.unanswered = None
        alone_or_over = result.info.get("seat", progress.acting) == progress.acting or result.terminated
        actor.turns.append(
            replace(
                sampled.turn,
                observation=tuple(result.observation) if alone_or_over or result.truncated else (),
                reward=float(result.reward),
                tool_events=tuple(result.info.get("tool_events", ())),
                info={**sampled.turn.info, **_reply_facts(reply)},
            )
        )
        _reward(progress, result)
        return result


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How an episode ended."""

    status: EpisodeStatus
    truncated_by: str = ""
    cause: FailureCause | None = None
    error: str = ""


async def _hear(progress: _Progress, result: StepResult, tools: Any) -> None:
    """Give the observation to the seat that acts next, and note it as the answer to that seat's last turn."""
    before = progress.acting
    progress.pass_on(result.info)
    actor, observation = progress.actor, tuple(result.observation)
    if progress.acting != before:
        if actor.turns:
            actor.turns[-1] = replace(actor.turns[-1], observation=observation)
        else:
            actor.prompt = observation
    await actor.seat.hear(observation, tools)


def _reward(progress: _Progress, result: StepResult) -> None:
    """Add a step's rewards to those who get them."""
    shares: Mapping[str, float] = result.info.get("seat_rewards", {progress.acting: result.reward})
    for name, reward in shares.items():
        progress.seats[name].reward += float(reward)
    components = result.info.get("seat_components", {progress.acting: result.info.get("rewards", {})})
    for name, rewards in components.items():
        progress.seats[name].rewards = dict(rewards) or progress.seats[name].rewards


async def _truncate(env: Env, progress: _Progress, reason: str) -> StepResult:
    """Have the environment score the episode as it stands."""
    result = await env.truncate(reason)
    _reward(progress, result)  # of no turn's own
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
        "calls_ending_reasoning": float(reply.calls_ending_reasoning),
    }


def _lost(cause: FailureCause, error: str) -> _Outcome:
    return _Outcome(EpisodeStatus.FAILED, cause=cause, error=" ".join(error.split())[:500])


def _trajectory(seated: _Seated, progress: _Progress, outcome: _Outcome, timings: Mapping[str, float]) -> Trajectory:
    spec = seated.spec.episode
    scored = outcome.status.is_valid
    return Trajectory(
        id=seated.spec.id,
        task_id=spec.task.id,
        group_id=seated.spec.group_id,
        turns=tuple(seated.turns),
        status=outcome.status,
        reward=seated.reward if scored else None,
        rewards=dict(seated.rewards) if scored else {},
        cause=outcome.cause,
        error=outcome.error,
        truncated_by=outcome.truncated_by,
        split=spec.task.split,
        seat=seated.spec.name,
        policy=seated.policy.name,
        sample_index=spec.sample_index,
        draw=spec.draw,
        seed=spec.seed,
        start_version=spec.version,
        prompt=spec.task.prompt if seated.spec.alone else seated.prompt,
        metadata={**spec.task.metadata, "answer": spec.task.answer},
        timings=dict(timings),
    )
