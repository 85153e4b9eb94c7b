"""How per-token losses become one number: the weights that carry the denominators."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from miles_agents.types import Batch, FloatArray


class Aggregation(StrEnum):
    """The mean a loss is. Both denominators are those of the whole minibatch, never of a micro-batch."""

    TOKEN = "token"  # noqa: S105 — over all trainable tokens (DAPO, arXiv 2503.14476, eq. 8)
    SEQUENCE = (
        "sequence"  # over trajectories, of the mean over each one's tokens (DeepSeekMath, arXiv 2402.03300, eq. 3)
    )


def token_weights(minibatch: Batch, aggregation: Aggregation) -> FloatArray:
    """(N,) float32 weights that sum to 1 over the trainable tokens; 0 where `mask` is 0.

    A trajectory that was cut into several samples is one sequence. Samples without a trainable token count in no
    denominator; a minibatch of only such samples has weights of 0.
    """
    trained = minibatch.mask != 0
    weights = np.zeros(len(minibatch.ids), np.float64)
    if not trained.any():
        return weights.astype(np.float32)
    if aggregation is Aggregation.TOKEN:
        weights[trained] = 1.0 / trained.sum()
        return weights.astype(np.float32)
    _, trajectory_S = np.unique(minibatch.trajectory_ids, return_inverse=True)
    trajectory_N = np.repeat(trajectory_S, minibatch.lengths)
    tokens = np.bincount(trajectory_N, weights=trained, minlength=int(trajectory_S.max()) + 1)
    weights[trained] = 1.0 / (np.count_nonzero(tokens) * tokens[trajectory_N[trained]])
    return weights.astype(np.float32)
