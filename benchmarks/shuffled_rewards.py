"""GRPO whose rewards are dealt out anew among the siblings of each group: the control that must not learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from miles_agents.algorithms.grpo import GRPO
from miles_agents.registry import algorithms
from miles_agents.types import Batch

NAME = "grpo_shuffled_rewards"
_SEED = 0


@algorithms.register(NAME)
class ShuffledRewards(GRPO):
    """GRPO on permuted rewards: the same numbers, group by group, for other trajectories."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._rng = np.random.default_rng(_SEED)

    def advantages(self, batch: Batch) -> dict[str, float]:
        """Permute the rewards within each group, then as GRPO does."""
        batch.rewards = shuffled_within_groups(batch, self._rng)
        return super().advantages(batch)


def shuffled_within_groups(batch: Batch, rng: np.random.Generator) -> NDArray[np.float64]:
    """(S,) rewards in which the trajectories of each group have swapped theirs; one's samples stay equal."""
    rewards_S = batch.rewards.copy()
    for group in np.unique(batch.group_ids):
        members = np.flatnonzero(batch.group_ids == group)
        _, first, sibling = np.unique(batch.trajectory_ids[members], return_index=True, return_inverse=True)
        rewards_S[members] = rng.permutation(batch.rewards[members][first])[sibling]
    return rewards_S
