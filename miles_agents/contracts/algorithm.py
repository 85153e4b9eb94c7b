"""The algorithm contract: what it needs annotated, its advantages, its loss. One small file each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from miles_agents.types import Batch, FloatArray

if TYPE_CHECKING:
    from torch import Tensor


class Annotation(StrEnum):
    """Per-token columns a trainer can fill before the first optimiser step of a batch."""

    OLD_LOGPROBS = "old_logprobs"  # of the policy being trained, as it stands
    REFERENCE_LOGPROBS = "reference_logprobs"  # of the frozen reference model
    VALUES = "values"  # of the critic


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The trainable tokens of one micro-batch, as tensors on the trainer's device.

    M trainable (sampled) tokens of the micro-batch, in batch order. `weights_M` are the per-token weights of
    `Algorithm.token_weights`, which carry the denominators: a loss is always `(weights_M * loss_M).sum()`, so that
    micro-batches, packing and ranks cannot change it.
    """

    logprobs_M: Tensor  # float32, with gradient
    rollout_logprobs_M: Tensor  # float32, as sampled
    advantages_M: Tensor  # float32
    weights_M: Tensor  # float32
    old_logprobs_M: Tensor | None = None
    reference_logprobs_M: Tensor | None = None
    values_M: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """The micro-batch's share of the loss, and metric shares that add up over micro-batches."""

    loss: Tensor  # scalar, with gradient
    metrics: dict[str, Tensor]  # scalars; each is weighted so that the sum over micro-batches is the metric


class Algorithm(ABC):
    """One policy-optimisation algorithm."""

    needs: frozenset[Annotation] = frozenset()

    @abstractmethod
    def advantages(self, batch: Batch) -> dict[str, float]:
        """Fill `batch.advantages` (N,) in place and return metrics. Groups are found by `batch.group_ids`."""

    @abstractmethod
    def token_weights(self, minibatch: Batch) -> FloatArray:
        """(N,) float32 weights of one optimiser step; 0 where `mask` is 0. All-masked samples add nothing."""

    @abstractmethod
    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss of one micro-batch."""

    def keeps(self, batch: Batch) -> Batch | None:
        """The part of the batch that is trained on, by the algorithm's stated policy; None if there is none."""
        return batch
