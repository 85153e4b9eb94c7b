"""Group relative policy optimisation.

Shape legend: N tokens of the batch, S samples, M trainable tokens of one micro-batch.

Advantage of every token of a trajectory with reward r in a group with rewards R (DeepSeekMath, arXiv 2402.03300, §4.1):

    A = (r − mean(R)) / std(R)        std over n − 1, like `torch.std`, TRL and verl; then |A| ≤ (n − 1) / √n < √(n − 1)

Per-token loss (eq. 3 of the same; two clip bounds from DAPO, arXiv 2503.14476, eq. 10), with ρ = π / μ:

    −min(ρ A, clip(ρ, 1 − clip_low, 1 + clip_high) A) + kl_coefficient · KL

μ is the policy that sampled the token, by the logprob recorded then: the ratio corrects for later minibatches of the
same batch and for staleness alike, and is 1 in the first update on fresh samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from miles_agents.algorithms.aggregation import Aggregation, token_weights
from miles_agents.contracts import Algorithm, Annotation, LossInputs, LossOutput
from miles_agents.errors import UsageError, choose
from miles_agents.types import Batch, FloatArray

if TYPE_CHECKING:
    from torch import Tensor

# Rewards this close (relative to their size) differ by the rounding of a sum of named rewards, not in value.
_ROUNDING = 8 * float(np.finfo(np.float64).eps)


class Normalize(StrEnum):
    """What a centred reward is divided by."""

    STD = "std"  # the group's sample standard deviation (n − 1)
    NONE = "none"  # nothing


class ZeroVariance(StrEnum):
    """What becomes of groups whose rewards are all equal; their advantages are exactly 0 either way."""

    SKIP = "skip"  # left out of training and of every denominator; kept if a KL term acts on them
    KEEP = "keep"  # stay in, counting in the denominators


class KLEstimator(StrEnum):
    """The value reported and added to the loss, per token, with d = log π − log π_ref (Schulman, "Approximating KL").

    Whichever it is, the gradient is ρ · d · ∇log π, the unbiased one of KL(π ‖ π_ref): differentiating the sampled
    value itself gives 0 in expectation for k1 and the gradient of KL(π_ref ‖ π) for k3 (only k2's is right as it
    stands). ρ = π / μ, not differentiated, makes tokens of an older policy count as the current one would draw them.
    """

    K1 = "k1"  # d: unbiased, can be negative
    K2 = "k2"  # d² / 2: biased, low variance
    K3 = "k3"  # exp(−d) − 1 + d: unbiased, never negative


class GRPO(Algorithm):
    """Group relative policy optimisation.

    Args:
        clip_low: the ratio is clipped at 1 − clip_low.
        clip_high: and at 1 + clip_high.
        aggregation: which mean the loss is.
        normalize: what centred rewards are divided by.
        kl_coefficient: weight of the KL to the reference model; 0 needs no reference model.
        kl_estimator: how that KL is estimated.
        zero_variance: what becomes of groups with equal rewards.

    Raises:
        UsageError: an unknown choice, or a number out of range.
    """

    def __init__(
        self,
        *,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        aggregation: str = Aggregation.TOKEN,
        normalize: str = Normalize.STD,
        kl_coefficient: float = 0.0,
        kl_estimator: str = KLEstimator.K3,
        zero_variance: str = ZeroVariance.SKIP,
    ) -> None:
        if not 0.0 <= clip_low <= 1.0 or not clip_high >= 0.0:
            raise UsageError(f"clip_low={clip_low} must be in [0, 1] and clip_high={clip_high} at least 0")
        if not kl_coefficient >= 0.0:
            raise UsageError(f"kl_coefficient={kl_coefficient} must be at least 0")
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.kl_coefficient = kl_coefficient
        self.aggregation = choose(Aggregation, aggregation, key="aggregation")
        self.normalize = choose(Normalize, normalize, key="normalize")
        self.kl_estimator = choose(KLEstimator, kl_estimator, key="kl_estimator")
        self.zero_variance = choose(ZeroVariance, zero_variance, key="zero_variance")
        self.needs = frozenset({Annotation.REFERENCE_LOGPROBS}) if kl_coefficient > 0 else frozenset()

    def advantages(self, batch: Batch) -> dict[str, float]:
        """Fill `batch.advantages`: one number per trajectory, on its trainable tokens, 0 elsewhere.

        Groups are found by `group_ids`, siblings by `trajectory_ids` (a trajectory of several samples counts once);
        all sums are in float64.
        """
        advantage_S = np.zeros(len(batch), np.float64)
        groups = list(_groups(batch))
        sizes: list[float] = []
        for group in groups:
            advantages = group_advantages(group.rewards, self.normalize)
            advantage_S[group.samples] = advantages[group.sibling]
            sizes.extend(np.abs(advantages).tolist())
        batch.advantages = np.where(batch.mask != 0, np.repeat(advantage_S, batch.lengths), 0.0).astype(np.float32)
        flat = sum(_is_flat(group.rewards) for group in groups)
        return {
            "groups": float(len(groups)),
            "zero_variance_groups": float(flat),
            "advantage_abs_mean": float(np.mean(sizes)) if sizes else 0.0,
        }

    def keeps(self, batch: Batch) -> Batch | None:
        """The batch without zero-variance groups where the policy is to skip them; None if nothing is left."""
        if self.zero_variance is ZeroVariance.KEEP or self.kl_coefficient > 0:
            return batch
        flat = [group.samples for group in _groups(batch) if _is_flat(group.rewards)]
        if not flat:
            return batch
        kept = np.setdiff1d(np.arange(len(batch)), np.concatenate(flat))
        return batch.select(kept) if len(kept) else None

    def token_weights(self, minibatch: Batch) -> FloatArray:
        """(N,) weights of the chosen mean over the minibatch."""
        return token_weights(minibatch, self.aggregation)

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Clipped surrogate, plus the KL term if there is one."""
        log_ratio_M = inputs.logprobs_M - inputs.rollout_logprobs_M
        ratio_M = log_ratio_M.exp()
        clipped_M = ratio_M.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        advantages_M, weights_M = inputs.advantages_M, inputs.weights_M
        loss_M = -(ratio_M * advantages_M).minimum(clipped_M * advantages_M)
        metrics = self._metrics(ratio_M.detach(), log_ratio_M.detach(), inputs)
        if self.kl_coefficient > 0:
            if inputs.reference_logprobs_M is None:
                raise ValueError("reference_logprobs are missing: call annotate() before step()")
            kl_M = kl_term(inputs.logprobs_M, inputs.reference_logprobs_M, ratio_M.detach(), self.kl_estimator)
            loss_M = loss_M + self.kl_coefficient * kl_M
            metrics["kl_to_reference"] = (weights_M * kl_M.detach()).sum()
        return LossOutput(loss=(weights_M * loss_M).sum(), metrics=metrics)

    def _metrics(self, ratio_M: Tensor, log_ratio_M: Tensor, inputs: LossInputs) -> dict[str, Tensor]:
        weights_M, advantages_M = inputs.weights_M, inputs.advantages_M
        # A token is clipped where the clipped branch is the smaller one, so that its gradient is 0.
        low_M = (ratio_M < 1.0 - self.clip_low) & (advantages_M < 0)
        high_M = (ratio_M > 1.0 + self.clip_high) & (advantages_M > 0)
        return {
            "clip_fraction": (weights_M * (low_M | high_M)).sum(),
            "clip_fraction_low": (weights_M * low_M).sum(),
            "clip_fraction_high": (weights_M * high_M).sum(),
            "ratio": (weights_M * ratio_M).sum(),
            "kl_to_rollout": (weights_M * (ratio_M - 1.0 - log_ratio_M)).sum(),  # KL(μ ‖ π), by k3 under μ
        }


def group_advantages(rewards: NDArray[np.float64], normalize: Normalize) -> NDArray[np.float64]:
    """(n,) advantages of one group's rewards, one per trajectory; exactly 0 for equal rewards and for one alone."""
    rewards = np.asarray(rewards, np.float64)
    if _is_flat(rewards):
        return np.zeros(len(rewards), np.float64)
    # Centred on an exact member first: an offset common to the group then costs no digits.
    centred: NDArray[np.float64] = rewards - rewards[0]
    centred = centred - centred.mean()
    if normalize is Normalize.NONE:
        return centred
    centred = centred / np.abs(centred).max()  # squares of very small rewards would vanish
    return np.asarray(centred / centred.std(ddof=1), np.float64)


def kl_term(logprobs_M: Tensor, reference_M: Tensor, ratio_M: Tensor, estimator: KLEstimator) -> Tensor:
    """(M,) with the estimator's value and the gradient of KL(π ‖ π_ref); see `KLEstimator`."""
    gap_M = (logprobs_M - reference_M).detach()
    if estimator is KLEstimator.K1:
        value_M = gap_M
    elif estimator is KLEstimator.K2:
        value_M = gap_M.square() / 2
    else:
        value_M = (-gap_M).exp() - 1.0 + gap_M
    return ratio_M * (value_M + gap_M * (logprobs_M - logprobs_M.detach()))


class _Group:
    """One group inside a batch: its sample indices, each one's sibling, and the siblings' rewards."""

    def __init__(self, batch: Batch, samples: NDArray[np.int64]) -> None:
        self.samples = samples
        _, first, self.sibling = np.unique(batch.trajectory_ids[samples], return_index=True, return_inverse=True)
        self.rewards = batch.rewards[samples][first]


def _groups(batch: Batch) -> Iterator[_Group]:
    _, group_S = np.unique(batch.group_ids, return_inverse=True)
    for index in range(int(group_S.max()) + 1 if len(group_S) else 0):
        yield _Group(batch, np.flatnonzero(group_S == index))


def _is_flat(rewards: NDArray[np.float64]) -> bool:
    spread = float(rewards.max() - rewards.min())
    return spread <= _ROUNDING * float(np.abs(rewards).max())
