"""An episode's deadline: what is scored as it stands, what is lost, and that nothing hangs."""

from __future__ import annotations

import asyncio

import pytest
from scripted_runs import Adding, Scripted, ScriptedReply, call_text, pool_of, turn_of

import miles_agents as ma
from miles_agents.contracts import Draw, StepResult
from miles_agents.errors import FailureCause
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.types import EpisodeStatus, GenerateRequest, Reply, collate


def _good(request: GenerateRequest) -> str:
    return call_text(a=1, b=1) if turn_of(request) == 0 else "2"


def _spec() -> EpisodeSpec:
    return EpisodeSpec(task=Adding().tasks("train")[1], group_id="d0")


async def test_a_hanging_environment_is_lost_at_the_episodes_deadline() -> None:
    class Hanging(Adding):
        async def step(self, action: Reply) -> StepResult:
            await asyncio.sleep(60)
            raise AssertionError

    world = Scripted(_good, deadline_s=0.2)
    async with pool_of(Hanging).lend() as env:
        trajectory = await world.player.play(env, _spec())
    assert trajectory.status is EpisodeStatus.FAILED
    assert "0.2 s" in trajectory.error


class Dawdling(Adding):
    """A tool that takes as long as the policy asks; a quarter of the reward for each call that was answered."""

    @ma.tool
    async def dawdle(self) -> str:
        """Much too long."""
        await asyncio.sleep(60)
        raise AssertionError

    async def reward(self, episode: ma.Episode) -> dict[str, float]:
        """As it stands."""
        return {"answer": 0.25 * len(episode.tool_events)}


def _slow_at_last(request: GenerateRequest) -> str:
    return call_text(a=1, b=1) if turn_of(request) < 2 else call_text("dawdle")


async def test_an_episode_cut_off_by_its_deadline_is_scored_as_it_stands_and_not_played_again() -> None:
    world = Scripted(_slow_at_last, deadline_s=0.3)
    group = await world.workers(pool_of(Dawdling), group_size=2, retries=1).play_group(
        Draw(index=0, task=Adding().tasks("train")[1], version=0)
    )
    for trajectory in group.trajectories:
        assert (trajectory.status, trajectory.truncated_by) == (EpisodeStatus.TRUNCATED, "deadline")
        assert (trajectory.reward, trajectory.rewards) == (0.5, {"answer": 0.5})
        # The reply that the environment was busy with is trained on too: it is what took the time.
        assert [len(turn.tool_events) for turn in trajectory.turns] == [1, 1, 0]
        assert "dawdle" in trajectory.turns[2].text
        assert trajectory.turns[2].info["calls"] == 1.0
        assert trajectory.timings["env"] > 0.1
    assert world.ledger.retried == 0
    assert collate([group]).trainable_tokens == sum(each.sampled_tokens for each in group.trajectories)


async def test_a_deadline_met_while_sampling_keeps_the_turns_before() -> None:
    def script(request: GenerateRequest) -> ScriptedReply:
        slow = turn_of(request) == 1
        return ScriptedReply(text="2" if slow else call_text(a=1, b=1), delay_s=30.0 if slow else 0.0)

    world = Scripted(script, deadline_s=0.2)
    async with pool_of(Dawdling).lend() as env:
        trajectory = await world.player.play(env, _spec())
    assert (trajectory.truncated_by, trajectory.reward, len(trajectory.turns)) == ("deadline", 0.25, 1)
    assert world.engine.ended_sessions == ["d0/0"]


async def test_an_episode_that_cannot_be_scored_after_its_deadline_is_lost_to_the_grader() -> None:
    class Broken(Dawdling):
        async def reward(self, episode: ma.Episode) -> dict[str, float]:
            raise KeyError("no key")

    async with pool_of(Broken).lend() as env:
        trajectory = await Scripted(_slow_at_last, deadline_s=0.2).player.play(env, _spec())
    assert (trajectory.status, trajectory.cause) == (EpisodeStatus.FAILED, FailureCause.GRADER)
    assert "0.2 s (rollout.episode_deadline_s)" in trajectory.error
    assert "no key" in trajectory.error


async def test_scoring_that_hangs_after_the_deadline_loses_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Dawdling):
        async def reward(self, episode: ma.Episode) -> dict[str, float]:
            await asyncio.sleep(60)
            raise AssertionError

    monkeypatch.setattr("miles_agents.rollout.player._SCORING_S", 0.05)
    async with pool_of(Endless).lend() as env:
        trajectory = await Scripted(_slow_at_last, deadline_s=0.2).player.play(env, _spec())
    assert (trajectory.status, trajectory.cause) == (EpisodeStatus.FAILED, FailureCause.FRAMEWORK)
    assert "could not be scored: scoring it took more than 0.05 s" in trajectory.error


async def test_a_deadline_met_while_the_last_reply_is_scored_loses_the_episode_and_not_the_run() -> None:
    class Pondering(Dawdling):
        async def reward(self, episode: ma.Episode) -> dict[str, float]:
            await asyncio.sleep(60)
            raise AssertionError

    async with pool_of(Pondering).lend() as env:
        trajectory = await Scripted(_good, deadline_s=0.2).player.play(env, _spec())
    assert (trajectory.status, trajectory.reward) == (EpisodeStatus.FAILED, None)
    assert "could not be scored" in trajectory.error


async def test_an_environments_own_timeout_is_not_taken_for_the_deadline() -> None:
    class Offline(Adding):
        async def step(self, action: Reply) -> StepResult:
            raise TimeoutError("no answer from the database")

    async with pool_of(Offline).lend() as env:
        trajectory = await Scripted(_good).player.play(env, _spec())
    assert trajectory.error == "TimeoutError: no answer from the database"


async def test_a_run_that_ends_while_an_episode_is_scored_after_its_deadline_ends_that_too() -> None:
    scoring = asyncio.Event()

    class Endless(Dawdling):
        async def reward(self, episode: ma.Episode) -> dict[str, float]:
            scoring.set()
            await asyncio.sleep(60)
            raise AssertionError

    async with pool_of(Endless).lend() as env:
        playing = asyncio.create_task(Scripted(_slow_at_last, deadline_s=0.2).player.play(env, _spec()))
        await scoring.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
