"""What can be set on the local trainer. Nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from miles_agents.errors import UsageError, choose


class OptimizerName(StrEnum):
    """The optimisers there are."""

    ADAMW = "adamw"  # on every parameter
    MUON_ADAMW = "muon_adamw"  # Muon on the hidden matrices, AdamW on embeddings, head and vectors


class Schedule(StrEnum):
    """How learning rates move after the warm-up."""

    CONSTANT = "constant"  # they stay
    LINEAR = "linear"  # they fall to 0 at `total_steps`, over the last `decay_fraction` of them


class Packing(StrEnum):
    """How a micro-batch is laid out; both give the same results."""

    PACKED = "packed"  # samples end to end in one row, each seeing only itself; no padding is computed
    PADDED = "padded"  # one row a sample, filled to the longest


class Precision(StrEnum):
    """In which numbers forward and backward are computed; weights and optimiser state are float32 always."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"  # by autocast: updates far smaller than a weight are then not rounded away


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """An optimiser and its schedule. Steps are optimiser updates.

    Raises:
        UsageError: a number out of range, or a linear schedule without `total_steps`.
    """

    name: str = OptimizerName.ADAMW
    lr: float = 3e-4  # of AdamW
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0  # of AdamW, on matrices alone
    warmup_steps: int = 0  # linear: update k of them (from 1) has k/warmup_steps of the rate
    schedule: str = Schedule.CONSTANT
    total_steps: int | None = None  # needed by the linear schedule
    decay_fraction: float = 1.0  # the last part of total_steps, over which the linear schedule falls
    min_lr_fraction: float = 0.0  # it does not fall below this part of the rate
    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    muon_weight_decay: float = 0.01

    def __post_init__(self) -> None:
        choose(OptimizerName, self.name, key="optimizer")
        schedule = choose(Schedule, self.schedule, key="schedule")
        if schedule is Schedule.LINEAR and not self.total_steps:
            raise UsageError("schedule=linear needs total_steps, the number of optimiser updates")
        if not (self.lr >= 0.0 and self.muon_lr >= 0.0 and math.isfinite(self.lr + self.muon_lr)):
            raise UsageError(f"learning rates must be numbers of at least 0, not {self.lr} and {self.muon_lr}")
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise UsageError(f"betas={self.betas} must be at least 0 and below 1")
        if not 0.0 < self.decay_fraction <= 1.0:
            raise UsageError(f"decay_fraction={self.decay_fraction} must be above 0 and at most 1")

    def lr_factor(self, updates: int) -> float:
        """What part of its rate the next update gets, after `updates` of them."""
        factor = min(1.0, (updates + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.schedule == Schedule.CONSTANT or self.total_steps is None:
            return factor
        left, decaying = self.total_steps - updates, self.total_steps * self.decay_fraction
        return factor * max(self.min_lr_fraction, min(1.0, left / decaying))


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How forward and backward are run.

    Raises:
        UsageError: an unknown choice or a number out of range.
    """

    max_grad_norm: float | None = 1.0  # gradients are scaled down to this norm; None: never
    dtype: str = Precision.FLOAT32
    token_budget: int = 8192  # tokens per micro-batch, padding included; one longer sample goes alone
    temperature: float = 1.0  # the sampling temperature: logprobs are those of logits / temperature
    packing: str = Packing.PACKED
    threads: int | None = None  # PyTorch threads; None: as the process has them

    def __post_init__(self) -> None:
        choose(Precision, self.dtype, key="dtype")
        choose(Packing, self.packing, key="packing")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UsageError(f"max_grad_norm={self.max_grad_norm} must be above 0, or null for no clipping")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UsageError(
                f"temperature={self.temperature} must be above 0: greedy samples have no logprobs to train"
            )
        if self.token_budget < 1 or (self.threads is not None and self.threads < 1):
            raise UsageError(f"token_budget={self.token_budget} and threads={self.threads} must be at least 1")
