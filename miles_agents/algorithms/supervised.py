"""Plain supervised learning through the same interface: raise the probability of every trainable token."""

from __future__ import annotations

import numpy as np

from miles_agents.algorithms.aggregation import Aggregation, token_weights
from miles_agents.contracts import Algorithm, LossInputs, LossOutput
from miles_agents.errors import choose
from miles_agents.types import Batch, FloatArray


class Supervised(Algorithm):
    """Negative log-likelihood of the trainable tokens; rewards and rollout logprobs are not used.

    Args:
        aggregation: which mean the loss is.
    """

    def __init__(self, *, aggregation: str = Aggregation.TOKEN) -> None:
        self.aggregation = choose(Aggregation, aggregation, key="aggregation")

    def advantages(self, batch: Batch) -> dict[str, float]:
        """Fill `batch.advantages` with the mask: each trainable token weighs 1."""
        batch.advantages = (batch.mask != 0).astype(np.float32)
        return {}

    def token_weights(self, minibatch: Batch) -> FloatArray:
        """(N,) weights of the chosen mean over the minibatch."""
        return token_weights(minibatch, self.aggregation)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Mean of −log p."""
        loss = -(inputs.weights_M * inputs.advantages_M * inputs.logprobs_M).sum()
        return LossOutput(loss=loss, metrics={})
