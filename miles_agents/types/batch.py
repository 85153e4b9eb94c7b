"""A training batch: samples laid end to end as flat numpy arrays, cut into minibatches and packs.

Shape legend: N tokens of all samples laid end to end, S samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from miles_agents.errors import NoTrainableTokensError
from miles_agents.types.generation import FloatArray, IntArray
from miles_agents.types.messages import ImagePart
from miles_agents.types.trajectory import TrainingSample, TrajectoryGroup


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """Collated samples. `annotate` and `advantages` fill the per-token columns in place.

    A sample's tokens are `offsets[s]:offsets[s + 1]`. Group statistics use `group_ids` and `trajectory_ids`, never
    positions: shuffling samples changes no sample's advantage.
    """

    ids: IntArray  # (N,)
    mask: NDArray[np.int8]  # (N,) 1 iff sampled
    rollout_logprobs: FloatArray  # (N,) as sampled
    versions: IntArray  # (N,)
    turn_index: IntArray  # (N,)
    offsets: NDArray[np.int64]  # (S + 1,)
    group_ids: NDArray[np.str_]  # (S,)
    trajectory_ids: NDArray[np.str_]  # (S,)
    rewards: NDArray[np.float64]  # (S,) of the sample's trajectory
    advantages: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))  # (N,) once filled
    old_logprobs: FloatArray | None = None  # (N,)
    reference_logprobs: FloatArray | None = None  # (N,)
    values: FloatArray | None = None  # (N,)
    routed_experts: list[NDArray[np.int16] | None] = field(default_factory=list)
    media: list[tuple[ImagePart, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(S,) tokens per sample."""
        return np.diff(self.offsets)

    @property
    def trainable_tokens(self) -> int:
        """How many tokens were sampled."""
        return int(self.mask.sum())

    def select(self, samples: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The batch of the samples with these indices, in this order."""
        index = np.asarray(samples, np.int64)
        spans = [np.arange(self.offsets[s], self.offsets[s + 1]) for s in index]
        tokens = np.concatenate(spans) if spans else np.zeros(0, np.int64)

        def cut(column: FloatArray | None) -> FloatArray | None:
            return None if column is None else column[tokens]

        return Batch(
            ids=self.ids[tokens],
            mask=self.mask[tokens],
            rollout_logprobs=self.rollout_logprobs[tokens],
            versions=self.versions[tokens],
            turn_index=self.turn_index[tokens],
            offsets=np.concatenate([[0], np.cumsum(self.lengths[index])]).astype(np.int64),
            group_ids=self.group_ids[index],
            trajectory_ids=self.trajectory_ids[index],
            rewards=self.rewards[index],
            advantages=self.advantages[tokens] if len(self.advantages) else self.advantages,
            old_logprobs=cut(self.old_logprobs),
            reference_logprobs=cut(self.reference_logprobs),
            values=cut(self.values),
            routed_experts=[self.routed_experts[s] for s in index] if self.routed_experts else [],
            media=[self.media[s] for s in index] if self.media else [],
        )

    def minibatches(self, count: int, *, rng: np.random.Generator) -> list[Batch]:
        """Shuffle the samples with `rng` and cut them into `count` minibatches, one optimiser step each.

        Samples of one trajectory stay together. With fewer trajectories than `count`, fewer minibatches come back.
        """
        _, of_sample = np.unique(self.trajectory_ids, return_inverse=True)
        order = rng.permutation(int(of_sample.max()) + 1 if len(of_sample) else 0)
        parts = [part for part in np.array_split(order, count) if len(part)]
        return [self.select(np.flatnonzero(np.isin(of_sample, part))) for part in parts]

    def packs(self, token_budget: int) -> list[NDArray[np.int64]]:
        """Sample indices of micro-batches of at most `token_budget` tokens each (first fit, longest first).

        A single sample over the budget gets a pack of its own.
        """
        bins: list[list[int]] = []
        loads: list[int] = []
        for sample in np.argsort(-self.lengths, kind="stable"):
            length = int(self.lengths[sample])
            slot = next((b for b, load in enumerate(loads) if load + length <= token_budget), None)
            if slot is None:
                bins.append([])
                loads.append(0)
                slot = len(bins) - 1
            bins[slot].append(int(sample))
            loads[slot] += length
        return [np.asarray(sorted(members), np.int64) for members in bins]


def collate_samples(
    samples: Sequence[TrainingSample],
    *,
    group_ids: Sequence[str],
    trajectory_ids: Sequence[str],
    rewards: Sequence[float],
) -> Batch:
    """Lay samples end to end.

    Raises:
        NoTrainableTokensError: not one token of the batch was sampled.
        ValueError: a sample or reward that can't be trained on; the trajectory is named.
    """
    if not any(sample.mask.any() for sample in samples):
        raise NoTrainableTokensError(f"none of the {len(samples)} samples has a sampled token: nothing to train on")
    for sample, trajectory_id, reward in zip(samples, trajectory_ids, rewards, strict=True):
        _check_sample(sample, trajectory_id, reward)
    lengths = [len(sample.ids) for sample in samples]
    return Batch(
        ids=np.concatenate([sample.ids for sample in samples]),
        mask=np.concatenate([sample.mask for sample in samples]),
        rollout_logprobs=np.concatenate([sample.logprobs for sample in samples]),
        versions=np.concatenate([sample.versions for sample in samples]),
        turn_index=np.concatenate([sample.turn_index for sample in samples]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        group_ids=np.asarray(group_ids, np.str_),
        trajectory_ids=np.asarray(trajectory_ids, np.str_),
        rewards=np.asarray(rewards, np.float64),
        routed_experts=[sample.routed_experts for sample in samples],
        media=[sample.media for sample in samples],
    )


def _check_sample(sample: TrainingSample, trajectory_id: str, reward: float) -> None:
    columns = (sample.mask, sample.logprobs, sample.versions, sample.turn_index)
    if any(len(column) != len(sample.ids) for column in columns):
        raise ValueError(f"trajectory {trajectory_id}: a sample's columns differ in length")
    if sample.mask[:1].any():
        raise ValueError(f"trajectory {trajectory_id}: a sample's first token is sampled, but nothing predicts it")
    if not math.isfinite(reward):
        raise ValueError(f"trajectory {trajectory_id}: its reward is {reward}")
    if not np.isfinite(sample.logprobs[sample.mask != 0]).all():
        raise ValueError(f"trajectory {trajectory_id}: a sampled token has no finite logprob")


def _empty_sample() -> TrainingSample:
    """Stands for a trajectory that ended before its first turn: it counts in its group's baseline."""
    return TrainingSample(
        ids=np.zeros(0, np.int32),
        mask=np.zeros(0, np.int8),
        logprobs=np.zeros(0, np.float32),
        versions=np.zeros(0, np.int32),
        turn_index=np.zeros(0, np.int32),
    )


def collate(groups: Sequence[TrajectoryGroup]) -> Batch:
    """Collate every valid trajectory of the groups; failed and aborted ones are left out, their siblings stay.

    A valid trajectory without a turn gives a sample of no tokens, so that baselines see its reward.
    """
    rows = [
        (sample, group.id, trajectory)
        for group in groups
        for trajectory in group.valid
        for sample in trajectory.samples() or [_empty_sample()]
    ]
    if not rows:
        raise NoTrainableTokensError(f"none of the {len(groups)} groups has a valid trajectory: nothing to train on")
    return collate_samples(
        [sample for sample, _, _ in rows],
        group_ids=[group_id for _, group_id, _ in rows],
        trajectory_ids=[trajectory.id for _, _, trajectory in rows],
        rewards=[float(trajectory.reward or 0.0) for _, _, trajectory in rows],
    )
