"""Collating, cutting and packing batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import batch_of, random_batch, sample

from miles_agents.algorithms import GRPO
from miles_agents.errors import FailureCause, NoTrainableTokensError
from miles_agents.types import (
    Batch,
    EpisodeStatus,
    StopReason,
    TrainingSample,
    Trajectory,
    TrajectoryGroup,
    Turn,
    VersionSpan,
    collate,
)


def trajectory(
    name: str, reward: float | None, *, status: EpisodeStatus = EpisodeStatus.COMPLETED, turns: int = 1
) -> Trajectory:
    turn = Turn(
        prompt_ids=np.array([5, 6], np.int32),
        completion_ids=np.array([7, 8, 9], np.int32),
        logprobs=np.array([-1, -2, -3], np.float32),
        stop_reason=StopReason.STOP,
        versions=(VersionSpan(version=4, start=0, end=3),),
    )
    return Trajectory(
        id=name,
        task_id="task",
        group_id="g",
        turns=(turn,) * turns,
        status=status,
        reward=reward,
        cause=FailureCause.SANDBOX if status is EpisodeStatus.FAILED else None,
    )


def group(*trajectories: Trajectory, name: str = "g") -> TrajectoryGroup:
    return TrajectoryGroup(id=name, task_id="task", draw=0, version=4, trajectories=trajectories)


def test_F04_lost_samples_enter_neither_loss_nor_baseline():
    # case F04: of 8 siblings one lost its sandbox, one was aborted; the baseline is the mean of the other six
    rewards = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    kept = [trajectory(f"t{index}", reward) for index, reward in enumerate(rewards)]
    lost = trajectory("lost", None, status=EpisodeStatus.FAILED)
    aborted = trajectory("aborted", None, status=EpisodeStatus.ABORTED)
    batch = collate([group(lost, *kept[:3], aborted, *kept[3:])])
    assert batch.trajectory_ids.tolist() == ["t0", "t1", "t2", "t3", "t4", "t5"]
    GRPO(normalize="none").advantages(batch)
    per_sample = batch.advantages[batch.offsets[1:] - 1]
    assert per_sample.tolist() == pytest.approx([1 / 3, -2 / 3, -2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert np.isfinite(batch.rewards).all()


def test_F04_a_truncated_sample_is_graded_and_trained():
    # case F04: cut exactly at the length limit
    batch = collate([group(trajectory("cut", 0.0, status=EpisodeStatus.TRUNCATED), trajectory("whole", 1.0))])
    assert batch.trajectory_ids.tolist() == ["cut", "whole"]
    assert batch.rewards.tolist() == [0.0, 1.0]


def test_F04_a_group_that_was_lost_whole_leaves_the_others():
    # case F04
    lost = group(*(trajectory(f"l{index}", None, status=EpisodeStatus.ABORTED) for index in range(8)), name="lost")
    batch = collate([lost, group(trajectory("t", 1.0))])
    assert batch.trajectory_ids.tolist() == ["t"]
    with pytest.raises(NoTrainableTokensError, match="valid trajectory"):
        collate([lost])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_F04_a_reward_that_is_not_finite_reaches_no_batch(reward):
    # case F04: the trajectory is named
    with pytest.raises(ValueError, match="trajectory t7"):
        collate([group(trajectory("t7", reward))])


def test_a_trajectory_that_ended_before_its_first_turn_counts_in_the_baseline():
    # rewards 1 and 0, the second without a turn: mean 1/2, not 1
    batch = collate([group(trajectory("played", 1.0), trajectory("no room", 0.0, turns=0))])
    GRPO(normalize="none").advantages(batch)
    assert batch.lengths.tolist() == [5, 0]
    assert batch.advantages.tolist() == [0, 0, 0.5, 0.5, 0.5]


def test_columns_are_carried_token_by_token():
    batch = collate([group(trajectory("a", 1.0), trajectory("b", 0.0))])
    assert batch.ids.tolist() == [5, 6, 7, 8, 9] * 2
    assert batch.mask.tolist() == [0, 0, 1, 1, 1] * 2
    assert batch.rollout_logprobs.tolist() == [0, 0, -1, -2, -3] * 2
    assert batch.versions.tolist() == [-1, -1, 4, 4, 4] * 2
    assert batch.offsets.tolist() == [0, 5, 10]
    assert batch.trainable_tokens == 6


def test_a_batch_without_a_sampled_token_is_refused():
    with pytest.raises(NoTrainableTokensError):
        batch_of([sample([1, 2], [0, 0])], [1.0])


def test_samples_that_cannot_be_trained_on_are_refused():
    whole = sample([5, 6, 7], [0, 1, 1])
    with pytest.raises(ValueError, match="nothing predicts it"):
        batch_of([sample([5, 6], [1, 1])], [1.0])
    with pytest.raises(ValueError, match="finite logprob"):
        batch_of([sample([5, 6], [0, 1], [0.0, -math.inf])], [1.0])
    short = TrainingSample(
        ids=whole.ids,
        mask=whole.mask[:2],
        logprobs=whole.logprobs,
        versions=whole.versions,
        turn_index=whole.turn_index,
    )
    with pytest.raises(ValueError, match="differ in length"):
        batch_of([short], [1.0])


def test_select_takes_whole_samples_in_the_given_order():
    batch = random_batch()
    GRPO().advantages(batch)
    picked = batch.select([3, 0])
    for place, index in enumerate((3, 0)):
        span = slice(batch.offsets[index], batch.offsets[index + 1])
        own = slice(picked.offsets[place], picked.offsets[place + 1])
        for column in ("ids", "mask", "rollout_logprobs", "versions", "turn_index", "advantages"):
            assert np.array_equal(getattr(picked, column)[own], getattr(batch, column)[span])
    assert picked.trajectory_ids.tolist() == ["t3", "t0"]


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_minibatches_cut_the_batch_without_loss_and_keep_trajectories_whole(count, seed):
    batch = random_batch(samples=9)
    batch.trajectory_ids = np.asarray(["t0", "t0", "t1", "t2", "t2", "t2", "t3", "t4", "t5"])
    parts = batch.minibatches(count, rng=np.random.default_rng(seed))
    assert len(parts) == min(count, 6)
    owners = [set(part.trajectory_ids.tolist()) for part in parts]
    assert sum(len(owner) for owner in owners) == 6
    assert sorted(_rows(batch)) == sorted(row for part in parts for row in _rows(part))


def test_minibatches_depend_on_the_generator_alone():
    first, again, other = (
        [part.trajectory_ids.tolist() for part in random_batch().minibatches(2, rng=np.random.default_rng(seed))]
        for seed in (1, 1, 2)
    )
    assert first == again != other


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 60))
def test_packs_hold_every_sample_once_and_keep_the_budget(lengths, budget):
    batch = batch_of([sample([1] * (n + 1), [0] + [1] * n) for n in lengths], [0.0] * len(lengths))
    packs = batch.packs(budget)
    assert sorted(np.concatenate(packs).tolist()) == list(range(len(lengths)))
    for pack in packs:
        assert batch.lengths[pack].sum() <= budget or len(pack) == 1


def _rows(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(batch.ids[start:end].tolist()) for start, end in zip(batch.offsets, batch.offsets[1:], strict=False)]
