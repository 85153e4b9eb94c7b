"""GRPO: advantages, weights, loss and the KL term, against numbers worked out by hand or in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_training import batch_of, sample

from miles_agents.algorithms import GRPO, Aggregation, KLEstimator, Supervised
from miles_agents.algorithms.grpo import Normalize, group_advantages, kl_term
from miles_agents.checks.algorithm import check_algorithm
from miles_agents.contracts import Annotation, LossInputs
from miles_agents.errors import UsageError
from miles_agents.types import Batch, collate_samples


def test_grpo_and_supervised_keep_the_contract_of_algorithms():
    for algorithm in (
        GRPO(),
        GRPO(aggregation="sequence", normalize="none", zero_variance="keep"),
        GRPO(kl_coefficient=0.1, kl_estimator="k1"),
        GRPO(kl_coefficient=0.1, kl_estimator="k2"),
        GRPO(kl_coefficient=0.1, kl_estimator="k3"),
        Supervised(),
        Supervised(aggregation="sequence"),
    ):
        check_algorithm(algorithm)


# --- advantages -------------------------------------------------------------------------------------------------------


D03_GROUPS = [
    # rewards, divided by the sample standard deviation, centred only. By hand, and in float64 for the second.
    ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5], [0.75, -0.25, -0.25, -0.25]),
    # mean 0.425, deviations −0.075 and 0.525, sum of squares 7·0.005625 + 0.275625 = 0.315, std √0.045
    ([0.35] * 7 + [0.95], [-0.075 / math.sqrt(0.045)] * 7 + [0.525 / math.sqrt(0.045)], [-0.075] * 7 + [0.525]),
    ([1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]),
    ([0.35], [0], [0]),
    ([0.1 + 0.2, 0.3, 0.3], [0, 0, 0], [0, 0, 0]),  # 5.6e-17 apart: the rounding of a sum
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1e6, -1e6])
@pytest.mark.parametrize(("rewards", "divided", "centred"), D03_GROUPS)
def test_D03_advantages_of_the_table(rewards, divided, centred, offset, dtype):
    # case D03
    if dtype is torch.bfloat16:
        exact = torch.tensor(rewards, dtype=torch.bfloat16).double().numpy()
        tolerance = 0.02  # of bfloat16's 8 bits in rewards of 0.95 and 0.35
    else:
        exact, tolerance = np.asarray(rewards, dtype).astype(np.float64), 1e-6
    shifted = exact + offset
    # at an offset of 1e6 a float64 reward itself keeps 1.2e-10 of 0.6
    assert group_advantages(shifted, Normalize.STD) == pytest.approx(divided, abs=tolerance)
    assert group_advantages(shifted, Normalize.NONE) == pytest.approx(centred, abs=tolerance)


def test_D03_equal_rewards_and_single_samples_give_exactly_zero():
    # case D03
    for value in (0.35, 0.95, 1e6 + 0.35, -7.1, 1e-300, 0.0, float(np.float32(0.1))):
        for size in (1, 2, 3, 7, 8):
            advantages = group_advantages(np.full(size, value), Normalize.STD)
            assert not advantages.any()
            assert np.isfinite(advantages).all()


def test_D03_groups_of_sizes_3_and_5_in_one_batch_use_their_own_statistics():
    # case D03: [0, 0, 1] has mean 1/3 and sample std √(1/3); [1, 1, 1, 1, 0] has mean 0.8 and sample std √0.2
    rewards = [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    batch = _groups_batch(["a"] * 3 + ["b"] * 5, rewards)
    GRPO().advantages(batch)
    third, fifth = math.sqrt(1 / 3), math.sqrt(0.2)
    expected = [-1 / 3 / third] * 2 + [2 / 3 / third] + [0.2 / fifth] * 4 + [-0.8 / fifth]
    assert _per_sample(batch) == pytest.approx(expected, rel=1e-6)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=16))
def test_D03_no_advantage_is_larger_than_the_square_root_of_the_siblings(rewards):
    # case D03: |A| <= (n − 1)/√n with the sample standard deviation, below √(n − 1) for any rewards whatever
    advantages = group_advantages(np.asarray(rewards), Normalize.STD)
    size = len(rewards)
    assert np.isfinite(advantages).all()
    assert np.abs(advantages).max() <= (size - 1) / math.sqrt(size) + 1e-9
    assert abs(advantages.sum()) <= 1e-6


def test_D03_very_small_rewards_do_not_vanish_or_blow_up():
    # case D03: the squares of these underflow in float64
    assert group_advantages(np.array([1e-200, 0, 0, 0]), Normalize.STD) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_D05_groups_are_found_by_id_in_any_order():
    # case D05: two prompts repeated as [p1, p2, p1, p2]; reading pairs would give ±0.5
    batch = _groups_batch(["p1", "p2", "p1", "p2"], [1.0, 0.0, 1.0, 0.0])
    GRPO(normalize="none").advantages(batch)
    assert not batch.advantages.any()


def test_D05_shuffling_changes_no_samples_advantage():
    # case D05, also after a sample was dropped from a group
    rng = np.random.default_rng(0)
    groups = ["same text, draw 0"] * 4 + ["same text, draw 1"] * 3 + ["other"] * 5
    batch = _groups_batch(groups, rng.random(12).tolist())
    GRPO().advantages(batch)
    expected = dict(zip(batch.trajectory_ids.tolist(), _per_sample(batch), strict=True))
    for _ in range(5):
        shuffled = batch.select(rng.permutation(12))
        GRPO().advantages(shuffled)
        assert dict(zip(shuffled.trajectory_ids.tolist(), _per_sample(shuffled), strict=True)) == expected


def test_D05_two_draws_of_the_same_task_are_two_groups():
    # case D05: each draw is constant, together they would not be
    batch = _groups_batch(["draw 0", "draw 0", "draw 1", "draw 1"], [1.0, 1.0, 0.0, 0.0])
    GRPO().advantages(batch)
    assert not batch.advantages.any()


def test_a_trajectory_of_several_samples_counts_once_in_its_group():
    # t0 (reward 1) was cut in three samples; over trajectories the mean of [1, 0] is 1/2, over samples it would be 3/4
    batch = collate_samples(
        [sample([1, 2], [0, 1])] * 4,
        group_ids=["g"] * 4,
        trajectory_ids=["t0", "t0", "t0", "t1"],
        rewards=[1.0, 1.0, 1.0, 0.0],
    )
    GRPO(normalize="none").advantages(batch)
    assert _per_sample(batch) == [0.5, 0.5, 0.5, -0.5]


def test_advantages_lie_on_sampled_tokens_only():
    batch = batch_of([sample([1, 2, 3, 4], [0, 1, 0, 1]), sample([1, 2, 3, 4], [0, 0, 1, 1])], [1.0, 0.0])
    GRPO(normalize="none").advantages(batch)
    assert batch.advantages.tolist() == [0, 0.5, 0, 0.5, 0, 0, -0.5, -0.5]
    assert batch.advantages.dtype == np.float32


# --- zero-variance groups ---------------------------------------------------------------------------------------------


def test_zero_variance_groups_are_skipped_kept_or_kept_for_the_kl():
    batch = _groups_batch(["flat", "mixed", "flat", "mixed"], [1.0, 0.0, 1.0, 1.0])
    GRPO().advantages(batch)
    assert GRPO().keeps(batch).trajectory_ids.tolist() == ["t1", "t3"]
    assert len(GRPO().keeps(batch).advantages) == len(GRPO().keeps(batch).ids)
    assert len(GRPO(zero_variance="keep").keeps(batch)) == 4
    assert len(GRPO(kl_coefficient=0.1).keeps(batch)) == 4
    flat = batch.select([0, 2])
    assert GRPO().keeps(flat) is None


def test_D03_a_zero_variance_group_has_no_policy_gradient_but_keeps_its_kl():
    # case D03
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    inputs = _inputs(logprobs, rollout=[-1.3, -1.0], advantages=[0.0, 0.0], weights=[0.5, 0.5], reference=[-2.0, -2.0])
    GRPO(zero_variance="keep").loss(inputs).loss.backward()
    assert logprobs.grad.tolist() == [0.0, 0.0]
    GRPO(kl_coefficient=0.1).loss(inputs).loss.backward()
    assert logprobs.grad[0] != 0.0
    assert logprobs.grad[1] == 0.0  # there π is the reference


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [0, 1, 8])
def test_D01_fully_masked_samples_change_no_loss(masked):
    # case D01: losses 1, 2, 3, 2 give 8/4 = 2; a masked sample of losses 9 counted as one token would give 8/5 = 1.6
    batch = batch_of(
        [sample([5, 6, 7, 8, 9], [0, 1, 1, 1, 1])] + [sample([5] * 5, [0] * 5)] * masked, [0.0] * (1 + masked)
    )
    losses_N = np.concatenate([[0.0, 1.0, 2.0, 3.0, 2.0], np.tile([0.0, 9.0, 9.0, 9.0, 9.0], masked)])
    for algorithm in (GRPO(), GRPO(aggregation="sequence"), Supervised()):
        weights = algorithm.token_weights(batch).astype(np.float64)
        assert (weights * losses_N).sum() == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_D01_an_all_masked_batch_has_weights_of_zero_without_nan(aggregation):
    # case D01
    batch = batch_of([sample([5, 6], [0, 1]), sample([5, 6, 7], [0, 1, 1])], [0.0, 1.0])
    batch.mask = np.zeros_like(batch.mask)
    assert GRPO(aggregation=aggregation).token_weights(batch).tolist() == [0.0] * 5


def test_D04_the_denominator_is_that_of_the_whole_step():
    # case D04 (2): 2 tokens of loss 1 on one rank, 6 of loss 3 on the other: (2·1 + 6·3)/8 = 2.5, not (1 + 3)/2 = 2
    batch = batch_of([sample([1] * 3, [0, 1, 1]), sample([1] * 7, [0] + [1] * 6)], [0.0, 1.0])
    losses_N = np.array([0, 1, 1, 0, 3, 3, 3, 3, 3, 3], np.float64)
    assert (GRPO().token_weights(batch) * losses_N).sum() == pytest.approx(2.5, abs=1e-6)
    assert (GRPO(aggregation="sequence").token_weights(batch) * losses_N).sum() == pytest.approx(2.0, abs=1e-6)


def test_sequence_weights_treat_a_trajectory_of_several_samples_as_one_sequence():
    # t0: samples of 1 and 3 sampled tokens; t1: 2 tokens. 2 sequences, so 1/(2·4) and 1/(2·2)
    batch = collate_samples(
        [sample([1, 2], [0, 1]), sample([1, 2, 3, 4], [0, 1, 1, 1]), sample([1, 2, 3], [0, 1, 1])],
        group_ids=["g"] * 3,
        trajectory_ids=["t0", "t0", "t1"],
        rewards=[0.0, 0.0, 1.0],
    )
    weights = GRPO(aggregation="sequence").token_weights(batch)
    assert weights.tolist() == [0, 0.125, 0, 0.125, 0.125, 0.125, 0, 0.25, 0.25]


# --- loss -------------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_clipped_surrogate_worked_out_by_hand():
    # ratios 2, 2, 0.5, 0.5, 1.1 with advantages 1, −1, 1, −1, 1 and clip 0.8 … 1.28:
    # min(2, 1.28) = 1.28;  min(−2, −1.28) = −2;  min(0.5, 0.8) = 0.5;  min(−0.5, −0.8) = −0.8;  1.1
    ratios = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.1])
    logprobs = (torch.full((5,), -1.0) + ratios.log()).requires_grad_(True)
    output = GRPO().loss(
        _inputs(logprobs, rollout=[-1.0] * 5, advantages=[1.0, -1.0, 1.0, -1.0, 1.0], weights=[0.2] * 5)
    )
    assert output.loss.item() == pytest.approx(-(1.28 - 2.0 + 0.5 - 0.8 + 1.1) / 5, abs=1e-6)
    output.loss.backward()
    # clipped tokens have no gradient; the others −w·A·ratio
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.4, -0.1, 0.0, -0.22], abs=1e-6)
    metrics = {name: float(value) for name, value in output.metrics.items()}
    assert metrics["clip_fraction_high"] == pytest.approx(0.2)
    assert metrics["clip_fraction_low"] == pytest.approx(0.2)
    assert metrics["clip_fraction"] == pytest.approx(0.4)
    assert metrics["ratio"] == pytest.approx(6.1 / 5)


def test_supervised_loss_is_the_mean_negative_log_likelihood():
    logprobs = torch.tensor([-1.0, -3.0], requires_grad=True)
    output = Supervised().loss(_inputs(logprobs, rollout=[0.0, 0.0], advantages=[1.0, 1.0], weights=[0.5, 0.5]))
    assert output.loss.item() == 2.0
    output.loss.backward()
    assert logprobs.grad.tolist() == [-0.5, -0.5]


# --- the KL term ------------------------------------------------------------------------------------------------------

D08_POLICY, D08_REFERENCE = 0.7, 0.4
D08_KL = D08_POLICY * math.log(D08_POLICY / D08_REFERENCE) + 0.3 * math.log(0.3 / 0.6)  # 0.183787
D08_GRADIENT = 0.263080  # dKL/dlogit, by finite differences


@pytest.mark.parametrize(("estimator", "value"), [("k1", D08_KL), ("k2", 0.181677), ("k3", D08_KL)])
def test_D08_every_kl_estimator_has_the_right_gradient_in_expectation(estimator, value):
    # case D08: two actions enumerated exactly; naive gradients would be 0 (k1), 0.263080 (k2) and 0.300000 (k3)
    logit = torch.tensor(0.8472979, dtype=torch.float64, requires_grad=True)
    logprobs = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
    reference = torch.tensor([D08_REFERENCE, 1 - D08_REFERENCE], dtype=torch.float64).log()
    term = kl_term(logprobs, reference, torch.ones(2, dtype=torch.float64), KLEstimator(estimator))
    expected = (logprobs.detach().exp() * term).sum()
    expected.backward()
    assert expected.item() == pytest.approx(value, abs=1e-6)
    assert float(logit.grad) == pytest.approx(D08_GRADIENT, abs=1e-6)


@pytest.mark.parametrize("estimator", list(KLEstimator))
def test_D08_the_gradient_is_right_for_tokens_of_an_older_policy_too(estimator):
    # case D08: sampled by μ = 0.5, weighted by the ratio π/μ
    logit = torch.tensor(0.8472979, dtype=torch.float64, requires_grad=True)
    logprobs = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
    reference = torch.tensor([D08_REFERENCE, 1 - D08_REFERENCE], dtype=torch.float64).log()
    term = kl_term(logprobs, reference, (logprobs.exp() / 0.5).detach(), estimator)
    (0.5 * term).sum().backward()
    assert float(logit.grad) == pytest.approx(D08_GRADIENT, abs=1e-6)


@pytest.mark.parametrize("estimator", list(KLEstimator))
def test_D08_a_positive_kl_coefficient_moves_the_policy_towards_the_reference(estimator):
    # case D08: gradient descent on the loss from p = 0.7 ends at the reference's 0.4
    logit = torch.tensor(0.8472979, requires_grad=True)
    reference = [math.log(D08_REFERENCE), math.log(1 - D08_REFERENCE)]
    algorithm = GRPO(kl_coefficient=1.0, kl_estimator=estimator)
    for _ in range(200):
        logprobs = torch.stack([torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit)])
        probabilities = logprobs.detach().exp().tolist()
        inputs = _inputs(
            logprobs, rollout=logprobs.tolist(), advantages=[0.0, 0.0], weights=probabilities, reference=reference
        )
        (gradient,) = torch.autograd.grad(algorithm.loss(inputs).loss, logit)
        with torch.no_grad():
            logit -= gradient
    assert torch.sigmoid(logit).item() == pytest.approx(D08_REFERENCE, abs=1e-3)


def test_the_reference_model_is_needed_only_with_a_kl_term():
    assert GRPO().needs == frozenset()
    assert GRPO(kl_coefficient=0.01).needs == {Annotation.REFERENCE_LOGPROBS}
    inputs = _inputs(torch.zeros(1, requires_grad=True), rollout=[0.0], advantages=[1.0], weights=[1.0])
    with pytest.raises(ValueError, match="annotate"):
        GRPO(kl_coefficient=0.01).loss(inputs)


def test_unknown_choices_and_numbers_out_of_range_are_usage_errors():
    with pytest.raises(UsageError, match=r"aggregation: unknown value 'tokens'. Did you mean 'token'"):
        GRPO(aggregation="tokens")
    with pytest.raises(UsageError, match="kl_estimator"):
        GRPO(kl_estimator="k4")
    with pytest.raises(UsageError, match="clip_low"):
        GRPO(clip_low=1.5)
    with pytest.raises(UsageError, match="kl_coefficient"):
        GRPO(kl_coefficient=-0.1)


def _groups_batch(groups: list[str], rewards: list[float]) -> Batch:
    return collate_samples(
        [sample([1, 2, 3], [0, 1, 1])] * len(groups),
        group_ids=groups,
        trajectory_ids=[f"t{index}" for index in range(len(groups))],
        rewards=rewards,
    )


def _per_sample(batch: Batch) -> list[float]:
    return [float(batch.advantages[end - 1]) for end in batch.offsets[1:]]


def _inputs(logprobs, *, rollout, advantages, weights, reference=None) -> LossInputs:
    return LossInputs(
        logprobs_M=logprobs,
        rollout_logprobs_M=torch.tensor(rollout),
        advantages_M=torch.tensor(advantages),
        weights_M=torch.tensor(weights),
        reference_logprobs_M=None if reference is None else torch.tensor(reference),
    )
