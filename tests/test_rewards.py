"""Rewards: components with weights, turn by turn and at the end, shaping, and comparisons of siblings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scripted_runs import Adding, Scripted, call_text, pool_of, turn_of

import miles_agents as ma
from miles_agents.configs.compose import env_schema, parse_overrides
from miles_agents.contracts import Draw
from miles_agents.errors import ConfigError, FailureCause, GraderError, UsageError
from miles_agents.evaluation import is_success
from miles_agents.rollout.metrics import rollout_metrics
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.types import Episode, EpisodeStatus, GenerateRequest, Reply, ToolCall, Trajectory


def _good(request: GenerateRequest) -> str:
    return call_text(a=1, b=1) if turn_of(request) == 0 else "2"


def _spec() -> EpisodeSpec:
    return EpisodeSpec(task=Adding().tasks("train")[1], group_id="d0")


async def _played(make: type[ma.Env], script: Any = _good, **attributes: Any) -> Trajectory:
    def made() -> ma.Env:
        env = make()
        for name, value in attributes.items():
            setattr(env, name, value)
        return env

    async with pool_of(made).lend() as env:
        return await Scripted(script).player.play(env, _spec())


def brief(episode: Episode) -> float:
    """1 for a final reply of one character."""
    return float(len(episode.final.content) == 1)


class Composed(Adding):
    """1·answer + 0.25·brief + 0.5·careful + 0·seen, and 0.1·called after each turn."""

    rewards = (ma.Reward(name="brief", function=brief, weight=0.25),)

    @ma.reward(weight=0.5)
    async def careful(self, episode: Episode) -> float:
        await asyncio.sleep(0)
        return float(bool(episode.tool_events))

    @ma.reward(weight=0.0)
    def seen(self, episode: Episode) -> int:
        return 7

    @ma.reward(weight=0.1, per_turn=True)
    def called(self, episode: Episode) -> float:
        return float(len(episode.replies[-1].calls))


async def test_components_are_weighted_summed_and_recorded_unweighted() -> None:
    trajectory = await _played(Composed)
    assert trajectory.rewards == {"answer": 1.0, "brief": 1.0, "careful": 1.0, "seen": 7.0, "called": 1.0}
    assert trajectory.reward == pytest.approx(1 + 0.25 + 0.5 + 0 + 0.1, abs=1e-12)


async def test_a_turns_reward_is_that_turns_and_the_final_one_the_last_turns() -> None:
    trajectory = await _played(Composed)
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.1, 1.75], abs=1e-12)


async def test_weights_of_the_environment_go_before_those_of_the_components() -> None:
    trajectory = await _played(Composed, reward_weights={"brief": 2.0, "answer": 0.0, "called": -1.0})
    assert trajectory.reward == pytest.approx(2 + 0.5 - 1, abs=1e-12)


async def test_rewards_alone_are_enough() -> None:
    class Only(Adding):
        reward = ma.ToolEnv.reward
        rewards = (brief,)

    assert (await _played(Only)).rewards == {"brief": 1.0}


async def test_an_environment_without_any_reward_is_refused_when_it_is_opened() -> None:
    class Nothing(Adding):
        reward = ma.ToolEnv.reward

    with pytest.raises(UsageError, match="Nothing has no reward: define reward"):
        await Nothing().open_shared()


async def test_two_components_of_one_name_are_refused() -> None:
    class Twice(Adding):
        rewards = (brief, ma.Reward(name="brief", function=brief))

    class Clash(Adding):
        rewards = (ma.Reward(name="answer", function=brief),)

    with pytest.raises(UsageError, match="two rewards named 'brief'"):
        await Twice().open_shared()
    lost = await _played(Clash)
    assert (lost.status, lost.cause) == (EpisodeStatus.FAILED, FailureCause.GRADER)
    assert "two rewards are named 'answer'" in lost.error


async def test_a_component_that_raises_or_gives_no_number_loses_the_episode_and_is_never_zero() -> None:
    for value, said in ((math.nan, "not a finite number"), (None, "not a finite number"), ("1", "not a finite")):

        class Wrong(Adding):
            rewards = (ma.Reward(name="odd", function=lambda _, value=value: value),)

        lost = await _played(Wrong)
        assert (lost.status, lost.cause) == (EpisodeStatus.FAILED, FailureCause.GRADER)
        assert said in lost.error
        assert "'odd'" in lost.error

    class Raising(Adding):
        @ma.reward(per_turn=True)
        def odd(self, episode: Episode) -> float:
            raise KeyError("x")

    lost = await _played(Raising)
    assert lost.cause is FailureCause.GRADER
    assert "reward 'odd' raised KeyError" in lost.error


async def test_shaping_counts_in_the_turn_where_it_happens() -> None:
    def script(request: GenerateRequest) -> str:
        return [call_text("nothing") + call_text(a=1, b=1), call_text(a=1, b=2), "2"][turn_of(request)]

    shaping = {"per_tool_error": -0.5, "per_turn": -0.01, "per_tool_call": 0.1}
    trajectory = await _played(Adding, script, shaping=shaping)
    # Turn 1: two calls, one an error; turn 2: one call; turn 3: the answer.
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([-0.31, 0.09, 0.99], abs=1e-12)
    assert trajectory.rewards == {"answer": 1.0, "per_tool_error": 1.0, "per_turn": 3.0, "per_tool_call": 3.0}


async def test_shaping_of_a_truncated_episode_and_of_malformed_calls() -> None:
    def script(request: GenerateRequest) -> str:
        return '<tool_call>{"name": </tool_call>' if turn_of(request) == 0 else call_text(a=1, b=1)

    trajectory = await _played(Adding, script, max_turns=2, shaping={"if_truncated": -1.0, "per_malformed_call": -0.25})
    assert trajectory.truncated_by == "max_turns"
    assert trajectory.reward == pytest.approx(-1.25, abs=1e-12)


async def test_a_shaped_episode_that_solves_its_task_still_counts_as_solved() -> None:
    class Plain(Adding):
        async def reward(self, episode: Episode) -> float:  # type: ignore[override]
            return float(episode.final.content == "2")

    trajectory = await _played(Plain, shaping={"per_turn": -0.1})
    assert trajectory.reward == pytest.approx(0.8)
    env = Plain()
    env.shaping = {"per_turn": -0.1}
    assert is_success(env, trajectory)
    assert not is_success(Plain(), trajectory)


async def test_unknown_shaping_is_refused_with_the_nearest_name() -> None:
    env = Adding()
    env.shaping = {"per_tool_eror": -1.0}
    with pytest.raises(ConfigError, match="Did you mean 'per_tool_error'"):
        await env.open_shared()
    env.shaping = {"per_turn": math.inf}
    with pytest.raises(ConfigError, match="finite"):
        await env.open_shared()


def test_weights_and_shaping_are_keys_of_every_tool_environment() -> None:
    fields = {field.name for field in __import__("dataclasses").fields(env_schema(Adding, "adding"))}
    assert {"shaping", "reward_weights"} <= fields
    assert parse_overrides(["env.shaping={per_turn: -0.1}"])[0].value == "{per_turn: -0.1}"


class Ranked(Adding):
    """The shortest of the siblings gets a bonus."""

    reward_weights = {"shortest": 0.5}  # noqa: RUF012

    async def group_rewards(self, group: Sequence[Trajectory]) -> Sequence[Mapping[str, float]]:
        lengths = [len(trajectory.turns[-1].text) for trajectory in group]
        return [{"shortest": float(length == min(lengths))} for length in lengths]


def _of_sibling(request: GenerateRequest) -> str:
    return "2" + "!" * int(request.request_id.split("/")[-2])


async def _group(make: type[ma.Env], script: Any = _of_sibling) -> Any:
    workers = Scripted(script).workers(pool_of(make), group_size=3)
    return await workers.play_group(Draw(index=0, task=Adding().tasks("train")[1], version=0))


async def test_group_rewards_compare_siblings_and_are_added_with_their_weight() -> None:
    group = await _group(Ranked)
    assert [trajectory.reward for trajectory in group.trajectories] == [1.5, 0.0, 0.0]
    assert [trajectory.rewards["shortest"] for trajectory in group.trajectories] == [1.0, 0.0, 0.0]
    assert rollout_metrics([group], trainer_version=0)["reward/shortest"] == pytest.approx(1 / 3)


async def test_group_rewards_see_valid_siblings_alone_and_leave_lost_ones_lost() -> None:
    class Fragile(Ranked):
        async def reward(self, episode: Episode) -> dict[str, float]:
            if episode.final.content == "2":
                raise GraderError("no verdict")
            return {"answer": 0.0}

    group = await _group(Fragile)
    assert [trajectory.status for trajectory in group.trajectories] == ["failed", "completed", "completed"]
    assert [trajectory.reward for trajectory in group.trajectories] == [None, 0.5, 0.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"x": 1.0}], "1 mappings for 3"),
        ([{"x": math.nan}] * 3, "not finite"),
        ([{"answer": 1.0}] * 3, "'answer' is the episode's own"),
    ],
)
async def test_group_rewards_that_are_wrong_lose_the_group_with_one_cause(given: Any, said: str) -> None:
    class Wrong(Adding):
        async def group_rewards(self, group: Sequence[Trajectory]) -> Any:
            return given

    group = await _group(Wrong)
    assert not group.valid
    assert {trajectory.cause for trajectory in group.trajectories} == {FailureCause.GRADER}
    assert said in group.trajectories[0].error


async def test_one_slow_component_holds_up_no_other() -> None:
    started: list[float] = []

    class Slow(Adding):
        @ma.reward
        async def one(self, episode: Episode) -> float:
            started.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.05)
            return 1.0

        @ma.reward
        async def two(self, episode: Episode) -> float:
            return await self.one(episode)

    await _played(Slow)
    assert started[1] - started[0] < 0.04


async def test_a_bad_call_still_counts_once_when_the_turn_is_scored() -> None:
    env = Adding()
    env.shaping = {"per_malformed_call": -1.0}
    await env.reset(seed=0, options={"task": _spec().task})
    call = ToolCall(id="c0", name="add", arguments=None, raw="{", error="bad")
    first = await env.step(Reply(text="x", calls=(call,)))
    last = await env.step(Reply.of("2"))
    assert (first.reward, last.reward) == (-1.0, 1.0)
    await env.close()
