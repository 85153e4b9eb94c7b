"""Playing episodes and groups: token exactness, limits, lost episodes, seeds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scripted_runs import Adding, Scripted, ScriptedReply, call_text, pool_of, turn_of

import miles_agents as ma
from miles_agents.contracts import Draw, ResetResult, StepResult
from miles_agents.errors import EngineError, FailureCause, FailureRateError, SandboxError, UsageError
from miles_agents.evaluation import play_all
from miles_agents.rollout.buffer import BoundedStalenessBuffer
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.rollout.seeds import derive_seed
from miles_agents.rollout.source import TaskSource
from miles_agents.rollout.workers import rollouts
from miles_agents.types import (
    EpisodeStatus,
    GenerateRequest,
    Reply,
    StopReason,
    TrajectoryGroup,
    collate,
)


def _good(request: GenerateRequest) -> str:
    return call_text(a=1, b=1) if turn_of(request) == 0 else "2"


def _spec(index: int = 1, **fields: Any) -> EpisodeSpec:
    return EpisodeSpec(task=Adding().tasks("train")[index], group_id="d0", **fields)


def _draw(index: int = 0, task: int = 1) -> Draw:
    return Draw(index=index, task=Adding().tasks("train")[task], version=0)


async def test_every_prompt_begins_with_all_ids_before_it_and_trained_ids_are_the_sampled_ones() -> None:
    world = Scripted(_good)
    async with pool_of(Adding).lend() as env:
        trajectory = await world.player.play(env, _spec())
    assert trajectory.status is EpisodeStatus.COMPLETED
    assert (trajectory.reward, len(trajectory.turns)) == (1.0, 2)
    first, second = trajectory.turns
    start = np.concatenate([first.prompt_ids, first.completion_ids])
    assert np.array_equal(second.prompt_ids[: len(start)], start)
    assert [request.ids.tolist() for request in world.engine.requests] == [
        turn.prompt_ids.tolist() for turn in trajectory.turns
    ]
    [sample] = trajectory.samples()
    assert sample.mask.sum() == trajectory.sampled_tokens
    sampled = sample.ids[sample.mask == 1].tolist()
    assert sampled == [*first.completion_ids.tolist(), *second.completion_ids.tolist()]
    expected = np.concatenate([first.logprobs, second.logprobs])
    assert np.array_equal(sample.logprobs[sample.mask == 1], expected)
    # The whole conversation is what one full render of the template gives: no separator lost, none doubled.
    said = world.chat.decode(second.prompt_ids)
    assert said == world.chat.render(
        [*trajectory.prompt, world.chat.parse(first.completion_ids).message(), *first.observation],
        [tool.schema() for tool in Adding().all_tools()],
    )
    assert world.engine.ended_sessions == ["d0/0"]


async def test_an_episode_without_room_for_another_turn_is_truncated_and_graded() -> None:
    world = Scripted(_good, max_tokens=400)
    async with pool_of(Adding).lend() as env:
        whole = await world.player.play(env, _spec())
    first = whole.turns[0]
    just_short = len(whole.turns[1].prompt_ids)
    world = Scripted(_good, max_tokens=just_short)
    async with pool_of(Adding).lend() as env:
        trajectory = await world.player.play(env, _spec())
    assert trajectory.status is EpisodeStatus.TRUNCATED
    assert trajectory.truncated_by == "context"
    assert trajectory.reward == 0.0
    assert len(trajectory.turns) == 1  # the earlier turn is kept
    assert np.array_equal(trajectory.turns[0].completion_ids, first.completion_ids)


async def test_the_reward_of_a_truncation_is_added_whatever_else_the_environment_says_of_it() -> None:
    class Scored(Adding):
        async def step(self, action: Reply) -> StepResult:
            return (await super().step(action))._replace(reward=0.25)

        async def truncate(self, reason: str) -> StepResult:
            return StepResult((), 0.5, False, True, {})

    world = Scripted(_good)
    async with pool_of(Adding).lend() as env:
        whole = await world.player.play(env, _spec())
    world = Scripted(_good, max_tokens=len(whole.turns[1].prompt_ids))
    async with pool_of(Scored).lend() as env:
        assert (await world.player.play(env, _spec())).reward == 0.75


async def test_F04_a_reply_at_its_length_limit_is_truncated_and_graded_and_an_aborted_one_is_neither() -> None:
    # case F04: status × reward
    world = Scripted(lambda request: "2 and so on and so on", max_new=3)
    async with pool_of(Adding).lend() as env:
        cut = await world.player.play(env, _spec())
    assert (cut.status, cut.truncated_by, cut.reward) == (EpisodeStatus.TRUNCATED, "max_new_tokens", 0.0)
    assert cut.turns[0].stop_reason is StopReason.LENGTH

    world = Scripted(lambda request: ScriptedReply(text="2", delay_s=30.0))
    async with pool_of(Adding).lend() as env:
        playing = asyncio.create_task(world.player.play(env, _spec()))
        await asyncio.sleep(0.05)
        await world.engine.abort("d0/0/0")
        aborted = await playing
    assert (aborted.status, aborted.reward, aborted.cause) == (EpisodeStatus.ABORTED, None, None)

    group = TrajectoryGroup(id="d0", task_id="t", draw=0, version=0, trajectories=(cut, aborted))
    batch = collate([group])
    assert len(batch) == 1
    assert np.isfinite(batch.rewards).all()


class Failing(Adding):
    """Fails in the way its task's number says."""

    async def step(self, action: Reply) -> StepResult:
        """Raise, or go on."""
        match int(self._current().task.id.removeprefix("train")):
            case 2:
                raise ConnectionError("network down")
            case 3:
                raise KeyError("state")
            case 5:
                raise asyncio.CancelledError
            case 6:
                raise SandboxError("the sandbox was lost")
        return await super().step(action)

    async def reward(self, episode: ma.Episode) -> dict[str, float]:
        """Raise for one task."""
        if episode.task.id == "train4":
            raise ZeroDivisionError("grader bug")
        return await super().reward(episode)


async def test_F02_lost_episodes_cost_their_siblings_nothing() -> None:
    # case F02: the others are kept; the lost ones have a cause, no reward, and are out of loss and baselines
    world = Scripted(lambda request: "2")
    workers = world.workers(pool_of(Failing), group_size=4)
    groups = [await workers.play_group(_draw(index, task)) for index, task in enumerate((1, 2, 3, 4, 5, 6, 7))]
    causes = [{trajectory.cause for trajectory in group.trajectories} for group in groups]
    assert causes == [
        {None},
        {FailureCause.FRAMEWORK},
        {FailureCause.FRAMEWORK},
        {FailureCause.GRADER},
        {FailureCause.FRAMEWORK},
        {FailureCause.SANDBOX},
        {None},
    ]
    for group in groups:
        world.ledger.count(group)
    batch = collate(groups)
    assert sorted(set(batch.group_ids.tolist())) == ["d0", "d6"]
    assert world.ledger.failures == {
        "policy": 0,
        "tool": 0,
        "sandbox": 4,
        "engine": 0,
        "grader": 4,
        "framework": 12,
    }
    assert world.ledger.episodes == 28


async def test_F02_one_lost_sample_leaves_the_group_of_its_siblings_as_without_it() -> None:
    failing = iter([True, False, False, False])

    def script(request: GenerateRequest) -> ScriptedReply:
        return ScriptedReply(error="engine gone") if next(failing) else ScriptedReply(text="2")

    group = await Scripted(script).workers(pool_of(Adding), group_size=4).play_group(_draw())
    assert [trajectory.status.is_valid for trajectory in group.trajectories] == [False, True, True, True]
    assert group.trajectories[0].cause is FailureCause.ENGINE
    assert len(collate([group])) == 3


async def test_F02_cancellation_from_outside_still_stops_the_run() -> None:
    world = Scripted(lambda request: ScriptedReply(text="2", delay_s=30.0))
    playing = asyncio.create_task(world.workers(pool_of(Adding)).play_group(_draw()))
    await asyncio.sleep(0.05)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


async def test_F02_above_the_failure_rate_the_run_stops_and_says_why() -> None:
    world = Scripted(lambda request: ScriptedReply(error="connection refused"))
    workers = world.workers(pool_of(Adding), group_size=4, max_failure_rate=0.5)
    source = TaskSource(Adding().tasks("train"), seed=0)
    buffer = BoundedStalenessBuffer(source, groups_per_step=8, max_staleness=0)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(10):
            async with rollouts(workers, buffer):
                await buffer.take(8)
    error, *_ = [leaf for leaf in _leaves(caught.value) if isinstance(leaf, FailureRateError)]
    assert "max_failure_rate=0.5" in str(error)
    assert "connection refused" in str(error)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def test_an_operators_error_inside_an_episode_stops_the_run() -> None:
    class Unusable(Adding):
        async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
            raise UsageError("set env.key")

    async with pool_of(Unusable).lend() as env:
        with pytest.raises(UsageError, match="set env.key"):
            await Scripted(_good).player.play(env, _spec())
    with pytest.raises(UsageError, match="set env.key"):  # itself, not inside an exception group
        tasks = Adding().tasks("test")
        await play_all(Scripted(_good).player, pool_of(Unusable), tasks, samples=2, seed=0, concurrency=4)


async def test_a_reply_cut_where_the_trajectorys_tokens_end_says_so_and_not_that_it_was_too_long() -> None:
    long = Scripted(lambda request: "2 and so on and so on", max_new=60)
    async with pool_of(Adding).lend() as env:
        prompt = len((await long.player.play(env, _spec())).turns[0].prompt_ids)
    for room, max_new, reason in ((5, 60, "context"), (60, 5, "max_new_tokens"), (5, 5, "max_new_tokens")):
        world = Scripted(lambda request: "2 and so on and so on", max_tokens=prompt + room, max_new=max_new)
        async with pool_of(Adding).lend() as env:
            cut = await world.player.play(env, _spec())
        assert (cut.status, cut.truncated_by) == (EpisodeStatus.TRUNCATED, reason)
        assert cut.turns[0].stop_reason is StopReason.LENGTH
        assert cut.sampled_tokens == 5


async def test_an_environment_whose_close_fails_or_hangs_costs_no_episode_and_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clinging(Adding):
        made = 0

        def __init__(self) -> None:
            type(self).made += 1
            self.name = self.made
            self.ended = False

        async def step(self, action: Reply) -> StepResult:
            result = await super().step(action)
            self.ended = result.terminated
            return result

        async def close(self) -> None:
            if self.ended and self.name == 2:
                raise OSError("no such process")
            if self.ended and self.name == 3:
                await asyncio.sleep(60)
            await super().close()

    monkeypatch.setattr("miles_agents.rollout.environments._CLOSE_S", 0.05)
    pool = pool_of(Clinging)  # makes one to ask for tasks
    for names in (2, 3, 4, 4):
        async with pool.lend() as env:
            assert (await Scripted(_good).player.play(env, _spec())).reward == 1.0
            assert env.name == names  # type: ignore[attr-defined]


async def test_an_environment_in_which_a_tool_was_given_up_is_not_used_again() -> None:
    class Noting(Adding):
        tool_timeout_s = 0.05
        notes = 0

        @ma.tool
        def note(self) -> str:
            """Write it down, slowly."""
            time.sleep(0.2)
            self.notes += 1
            return "noted"

    pool = pool_of(Noting)
    slow = Scripted(lambda request: call_text("note") if turn_of(request) == 0 else "2")
    async with pool.lend() as first:
        assert (await slow.player.play(first, _spec())).reward == 1.0
    async with pool.lend() as second:
        await asyncio.sleep(0.3)
        assert (first.notes, second.notes) == (1, 0)  # type: ignore[attr-defined]
        await Scripted(_good).player.play(second, _spec())
    async with pool.lend() as third:
        assert third is second


async def test_when_the_engine_is_lost_episodes_are_failures_of_the_engine() -> None:
    world = Scripted(_good)

    async def lost(session_id: str) -> None:
        raise EngineError("the engine is gone")

    world.engine.end_session = lost  # type: ignore[method-assign]
    await world.engine.close()
    async with pool_of(Adding).lend() as env:
        trajectory = await world.player.play(env, _spec())
    assert (trajectory.status, trajectory.cause) == (EpisodeStatus.FAILED, FailureCause.ENGINE)


async def test_a_lost_episode_is_played_again_with_the_same_seed() -> None:
    attempts: list[int] = []

    def script(request: GenerateRequest) -> ScriptedReply:
        attempts.append(request.params.seed)
        return ScriptedReply(error="hiccup") if len(attempts) == 1 else ScriptedReply(text="2")

    world = Scripted(script)
    group = await world.workers(pool_of(Adding), group_size=1, retries=1).play_group(_draw())
    assert group.trajectories[0].reward == 1.0
    assert attempts[0] == attempts[1]
    assert world.ledger.retried == 1


async def test_B01_malformed_calls_are_answered_not_executed_and_the_episode_goes_on() -> None:
    # case B01, inside a real rollout
    Adding.calls.clear()
    texts = ['<tool_call>\n{"name": "add", "arguments": {"a": 1</tool_call>', call_text(a=1, b=1), "2"]
    world = Scripted(lambda request: texts[turn_of(request)])
    async with pool_of(Adding).lend() as env:
        trajectory = await world.player.play(env, _spec())
    assert trajectory.reward == 1.0
    assert Adding.calls == [(1, 1)]
    [event] = trajectory.turns[0].tool_events
    assert not event.ok
    assert event.result.startswith("Error: ")
    assert len(event.result) < 500
    assert trajectory.turns[0].observation[0].tool_call_id == event.call.id
    assert trajectory.turns[0].text.startswith(texts[0])  # the raw tokens are unchanged
    ids = [event.call.id for event in trajectory.tool_events()]
    assert len(set(ids)) == len(ids)


# case H05: one base seed, different streams


async def _seeds(base: int, *, concurrency: int = 64, draws: tuple[tuple[int, int], ...] = ((0, 1),)) -> list[int]:
    seen: dict[str, int] = {}

    def script(request: GenerateRequest) -> ScriptedReply:
        seen[request.request_id] = request.params.seed
        return ScriptedReply(text="2", delay_s=0.001 * (request.params.seed % 3))

    workers = Scripted(script).workers(pool_of(Adding), group_size=4, concurrency=concurrency, seed=base)
    await asyncio.gather(*(workers.play_group(_draw(index, task)) for index, task in draws))
    return [seen[request_id] for request_id in sorted(seen)]


async def test_H05_siblings_tasks_and_base_seeds_have_streams_of_their_own_whatever_the_schedule() -> None:
    seven = await _seeds(7)
    assert len(set(seven)) == 4
    assert await _seeds(7) == seven
    assert await _seeds(7, concurrency=1) == seven
    both = await _seeds(7, draws=((0, 1), (1, 2)))
    assert len(set(both)) == 8
    assert await _seeds(7, draws=((1, 2), (0, 1)), concurrency=2) == both
    assert not set(await _seeds(8)) & set(seven)
    again = await _seeds(7, draws=((4, 1),))  # the same task drawn again is another group
    assert not set(again) & set(seven)


def test_H05_seeds_are_63_bit_and_depend_on_every_part() -> None:
    seeds = {
        derive_seed(base, "episode", draw, task, n)
        for base in (7, 8)
        for draw in (0, 1)
        for task in "ab"
        for n in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(7, "1", "1") != derive_seed(7, 1, 1)
    assert derive_seed(7, "a", "b") != derive_seed(7, "ab")


async def test_refused_tools_are_answered_and_never_run() -> None:
    Adding.calls.clear()
    async with pool_of(Adding).refusing_tools().lend() as env:
        trajectory = await Scripted(_good).player.play(env, _spec())
    assert Adding.calls == []
    assert "refused" in trajectory.turns[0].observation[0].text
    assert len(trajectory.turns) == 2
