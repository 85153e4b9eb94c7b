"""The conformance suite of algorithms: what every `Algorithm` keeps, checked on yours.

    check_algorithm(MyAlgorithm())

Shape legend: N tokens, S samples, M trainable tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from miles_agents.contracts import Algorithm, LossInputs
from miles_agents.types import Batch, TrainingSample, collate_samples

_TOLERANCE = 1e-6


def check_algorithm(algorithm: Algorithm, *, seed: int = 0) -> None:
    """Check an algorithm against the contract of `Algorithm`, on made-up batches.

    Args:
        algorithm: what to check; it is given every column it may need.
        seed: of the made-up numbers.

    Raises:
        AssertionError: what it does not keep.
    """
    rng = np.random.default_rng(seed)
    batch = _batch(rng, masked_samples=0)
    _check_advantages(algorithm, batch, rng)
    _check_weights(algorithm, batch, rng)
    _check_keeps(algorithm, batch)
    _check_additive(algorithm, batch, rng)
    _check_gradient_reaches_nothing_else(algorithm, batch, rng)


def _batch(rng: np.random.Generator, *, masked_samples: int) -> Batch:
    """Groups of 5, 3, 2 equal rewards and 1; the first trajectory has two samples; then all-masked samples."""
    rows: list[tuple[TrainingSample, str, str, float]] = []
    for group, rewards in {
        "a": [0.0, 1.0, 0.5, 0.0, 1.0],
        "b": [0.35, 0.35, 0.95],
        "c": [1.0, 1.0],
        "d": [0.7],
    }.items():
        for sibling, reward in enumerate(rewards):
            for _ in range(2 if not rows else 1):
                rows.append((_sample(rng, trained=True), group, f"{group}{sibling}", reward))
    for index in range(masked_samples):
        rows.append((_sample(rng, trained=False), "e", f"e{index}", float(index)))
    return collate_samples(
        [row[0] for row in rows],
        group_ids=[row[1] for row in rows],
        trajectory_ids=[row[2] for row in rows],
        rewards=[row[3] for row in rows],
    )


def _sample(rng: np.random.Generator, *, trained: bool) -> TrainingSample:
    length = int(rng.integers(4, 12))
    mask = (rng.random(length) < 0.6).astype(np.int8) * trained
    mask[0], mask[-1] = 0, trained
    sampled = mask != 0
    return TrainingSample(
        ids=rng.integers(0, 50, length).astype(np.int32),
        mask=mask,
        logprobs=np.where(sampled, -rng.random(length) * 3, 0.0).astype(np.float32),
        versions=np.where(sampled, 0, -1).astype(np.int32),
        turn_index=np.where(sampled, 0, -1).astype(np.int32),
    )


def _check_advantages(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> None:
    metrics = algorithm.advantages(batch)
    assert all(np.isfinite(value) for value in metrics.values()), f"advantage metrics are not finite: {metrics}"
    assert batch.advantages.shape == batch.ids.shape, "advantages() must fill batch.advantages, one number a token"
    assert np.isfinite(batch.advantages).all(), "an advantage is not finite"
    assert not batch.advantages[batch.mask == 0].any(), "a token that was not sampled has an advantage"
    order = rng.permutation(len(batch))
    shuffled = batch.select(order)
    algorithm.advantages(shuffled)
    same = np.allclose(shuffled.advantages, batch.select(order).advantages, rtol=_TOLERANCE, atol=_TOLERANCE)
    assert same, "shuffling the samples changed advantages: group by group_ids, not by position"


def _check_weights(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> None:
    weights_N = algorithm.token_weights(batch)
    assert weights_N.shape == batch.ids.shape, "token_weights() must give one number a token"
    assert np.isfinite(weights_N).all(), "a token weight is not finite"
    assert not weights_N[batch.mask == 0].any(), "a token that was not sampled has a weight"
    for count in (1, 8):
        extended = _batch(np.random.default_rng(0), masked_samples=count)
        plain = _batch(np.random.default_rng(0), masked_samples=0)
        kept = algorithm.token_weights(extended)[: len(plain.ids)]
        same = np.allclose(kept, algorithm.token_weights(plain), rtol=_TOLERANCE, atol=0)
        assert same, f"{count} samples without a sampled token changed the weights of the others"
    empty = batch.select([0])
    empty.mask = np.zeros_like(empty.mask)
    assert not algorithm.token_weights(empty).any(), "a minibatch without a sampled token must have weights of 0"
    order = rng.permutation(len(batch))
    moved = algorithm.token_weights(batch.select(order))
    starts = np.concatenate([[0], np.cumsum(batch.lengths[order])])
    for place, sample in enumerate(order):
        own = weights_N[batch.offsets[sample] : batch.offsets[sample + 1]]
        same = np.allclose(moved[starts[place] : starts[place + 1]], own, rtol=_TOLERANCE, atol=0)
        assert same, "shuffling the samples changed token weights"


def _check_keeps(algorithm: Algorithm, batch: Batch) -> None:
    kept = algorithm.keeps(batch)
    if kept is not None:
        assert set(kept.trajectory_ids) <= set(batch.trajectory_ids), "keeps() made up trajectories"
        assert len(kept.advantages) == len(kept.ids), "keeps() lost the advantages"


def _check_additive(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> None:
    """Loss, metrics and gradients of the whole are the sums of those of any cut into micro-batches."""
    tokens_M = np.flatnonzero(batch.mask)
    logprobs_M = -rng.random(len(tokens_M)) * 3
    reference_M = -rng.random(len(tokens_M)) * 3
    weights_N = algorithm.token_weights(batch)
    whole = _run(algorithm, batch, weights_N, [np.arange(len(tokens_M))], (logprobs_M, reference_M))
    for pieces in (2, 5, len(tokens_M)):
        cut = np.array_split(rng.permutation(len(tokens_M)), pieces)
        parts = _run(algorithm, batch, weights_N, cut, (logprobs_M, reference_M))
        assert parts[0].keys() == whole[0].keys(), "metric names depend on the micro-batch"
        for name, value in whole[0].items():
            message = (
                f"'{name}' depends on the cut into micro-batches: {parts[0][name]} in {pieces} parts, {value} in one"
            )
            assert abs(parts[0][name] - value) <= _TOLERANCE * (1 + abs(value)), message
        gap = float((parts[1] - whole[1]).abs().max())
        assert gap <= _TOLERANCE, f"gradients depend on the cut into micro-batches, by {gap:.2g}"


def _check_gradient_reaches_nothing_else(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> None:
    tokens_M = np.flatnonzero(batch.mask)
    logprobs = torch.tensor(-rng.random(len(tokens_M)), dtype=torch.float32, requires_grad=True)
    inputs = _inputs(batch, np.zeros_like(algorithm.token_weights(batch)), tokens_M, logprobs, logprobs.detach())
    loss = algorithm.loss(inputs).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0, "tokens of weight 0 add to the loss"
    assert logprobs.grad is None or not bool(logprobs.grad.any()), "tokens of weight 0 have gradients"


def _run(
    algorithm: Algorithm,
    batch: Batch,
    weights_N: NDArray[np.float32],
    cut: list[NDArray[np.int64]],
    numbers_M: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[dict[str, float], Tensor]:
    tokens_M = np.flatnonzero(batch.mask)
    logprobs_M = torch.tensor(numbers_M[0], dtype=torch.float32, requires_grad=True)
    reference_M = torch.tensor(numbers_M[1], dtype=torch.float32)
    sums: dict[str, float] = {}
    for part in cut:
        output = algorithm.loss(_inputs(batch, weights_N, tokens_M[part], logprobs_M[part], reference_M[part]))
        output.loss.backward()  # type: ignore[no-untyped-call]
        for name, share in {"loss": output.loss, **output.metrics}.items():
            sums[name] = sums.get(name, 0.0) + float(share.detach())
    assert logprobs_M.grad is not None, "the loss does not depend on the logprobs"
    return sums, logprobs_M.grad


def _inputs(
    batch: Batch, weights_N: NDArray[np.float32], tokens_M: NDArray[np.int64], logprobs_M: Tensor, reference_M: Tensor
) -> LossInputs:
    return LossInputs(
        logprobs_M=logprobs_M,
        rollout_logprobs_M=torch.from_numpy(batch.rollout_logprobs[tokens_M]),
        advantages_M=torch.from_numpy(batch.advantages[tokens_M]),
        weights_M=torch.from_numpy(weights_N[tokens_M]),
        old_logprobs_M=reference_M,
        reference_logprobs_M=reference_M,
        values_M=torch.zeros(len(tokens_M)),
    )
