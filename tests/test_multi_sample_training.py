"""Several samples per trajectory, from a template that rewrites history to the loss. Case C02."""

from __future__ import annotations

import numpy as np
import pytest
from chat_episodes import play_dialogue
from chat_families import family_format

from miles_agents.algorithms import GRPO
from miles_agents.rollout.policy import EpisodeSpec
from miles_agents.types import Batch, Message, Task, Trajectory, TrajectoryGroup, collate

NAME = "qwen3-split"


async def played(sibling: int, questions: int, reward: float) -> Trajectory:
    """One sample per question: each further one has the thinking before it stripped."""
    said = ["<think>\nwhy\n</think>\n\nA"] * questions
    heard = [[Message.user(f"q{at}")] for at in range(2, questions + 1)]
    task = Task(id="d", prompt=(Message.user("q1"),))
    spec = EpisodeSpec(task=task, group_id="g", sample_index=sibling)
    trajectory, _ = await play_dialogue(family_format(NAME), said, heard, spec=spec, reward=reward)
    assert len(trajectory.samples()) == questions
    return trajectory


async def group_batch(*siblings: tuple[int, float]) -> Batch:
    """The batch of one group; each sibling is given by (questions, reward)."""
    trajectories = [await played(at, questions, reward) for at, (questions, reward) in enumerate(siblings)]
    group = TrajectoryGroup(id="g", task_id="d", draw=0, version=0, trajectories=tuple(trajectories))
    return collate([group])


def advantages_by_sample(batch: Batch) -> list[list[float]]:
    """The distinct values on each sample's trainable tokens."""
    starts = zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
    return [sorted(set(batch.advantages[a:b][batch.mask[a:b] == 1].tolist())) for a, b in starts]


async def test_C02_samples_of_one_trajectory_share_its_advantage_and_count_once_in_the_baseline() -> None:
    # rewards [1, 0, 0, 0], whatever the number of samples: mean 1/4, sample std 1/2 (case D03). Counting the winner's
    # three samples would give a mean of 3/6 and advantages of ±0.91.
    batch = await group_batch((3, 1.0), (1, 0.0), (1, 0.0), (1, 0.0))
    assert len(batch) == 6
    metrics = GRPO().advantages(batch)
    assert advantages_by_sample(batch) == [[1.5]] * 3 + [[-0.5]] * 3
    assert not batch.advantages[batch.mask == 0].any()
    assert metrics["advantage_abs_mean"] == pytest.approx((1.5 + 3 * 0.5) / 4)  # over trajectories, not samples


async def test_C02_each_sampled_token_is_trained_once() -> None:
    batch = await group_batch((3, 1.0), (2, 0.0))
    said = len(family_format(NAME).encode_reply("<think>\nwhy\n</think>\n\nA"))
    assert batch.trainable_tokens == 5 * said
    for trajectory_id, questions in (("g/0", 3), ("g/1", 2)):
        samples = np.flatnonzero(batch.trajectory_ids == trajectory_id)
        tokens = np.concatenate([np.arange(batch.offsets[s], batch.offsets[s + 1]) for s in samples])
        turns = batch.turn_index[tokens][batch.mask[tokens] == 1]
        assert np.bincount(turns).tolist() == [said] * questions


async def test_C02_loss_weights_count_tokens_or_trajectories_never_samples() -> None:
    batch = await group_batch((3, 1.0), (1, 0.0))
    of_first = np.repeat(batch.trajectory_ids == "g/0", batch.lengths)
    by_token = GRPO().token_weights(batch)
    assert by_token[batch.mask == 1] == pytest.approx(1 / batch.trainable_tokens)
    by_trajectory = GRPO(aggregation="sequence").token_weights(batch)
    assert by_trajectory[of_first].sum() == pytest.approx(0.5)  # three samples weigh as much as the other's one
    assert by_trajectory[~of_first].sum() == pytest.approx(0.5)


async def test_C02_minibatches_keep_the_samples_of_a_trajectory_together_and_shuffling_changes_nothing() -> None:
    batch = await group_batch((3, 1.0), (2, 0.0), (1, 0.0), (2, 0.0))
    GRPO().advantages(batch)
    expected = {
        (trajectory_id, tuple(values))
        for trajectory_id, values in zip(batch.trajectory_ids.tolist(), advantages_by_sample(batch), strict=True)
    }
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(batch))
        shuffled = batch.select(order)
        GRPO().advantages(shuffled)
        parts = shuffled.minibatches(2, rng=np.random.default_rng(seed))
        owners = [set(part.trajectory_ids.tolist()) for part in parts]
        assert owners[0].isdisjoint(owners[1])
        found = {
            (trajectory_id, tuple(values))
            for part in parts
            for trajectory_id, values in zip(part.trajectory_ids.tolist(), advantages_by_sample(part), strict=True)
        }
        assert found == expected


async def test_C02_a_group_of_equal_rewards_is_skipped_with_all_its_samples() -> None:
    batch = await group_batch((3, 1.0), (2, 1.0))
    GRPO().advantages(batch)
    assert not batch.advantages.any()
    assert GRPO().keeps(batch) is None
