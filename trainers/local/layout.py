"""Micro-batches: which samples share one forward pass, and the tensors it needs.

Shape legend: N tokens of the minibatch, B rows, L columns, M trainable tokens of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from miles_agents.trainers.local.settings import Packing
from miles_agents.types import Batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One forward pass, and where its trainable tokens are."""

    ids_BL: Tensor
    positions_BL: Tensor
    lengths: tuple[int, ...] | None  # of the samples in a packed row; None: padded rows
    predictors_M: Tensor  # index into the B·L positions: token t is predicted at the position of token t − 1
    targets_M: Tensor  # the trainable token ids themselves
    tokens_M: NDArray[np.int64]  # index of each into the minibatch's N tokens
    samples: NDArray[np.int64]  # indices into the minibatch


def micro_batches(
    minibatch: Batch,
    trained_N: NDArray[np.bool_],
    *,
    token_budget: int,
    packing: Packing,
    device: torch.device,
) -> Iterator[MicroBatch]:
    """Cut the minibatch into micro-batches; samples without a token in `trained_N` are not computed at all."""
    tokens = np.concatenate([[0], np.cumsum(trained_N)])
    useful = np.flatnonzero(np.diff(tokens[minibatch.offsets]) > 0)
    if packing is Packing.PACKED:
        for members in minibatch.select(useful).packs(token_budget):
            yield _packed(minibatch, useful[members], trained_N, device)
    else:
        for samples in _padded_groups(minibatch, useful, token_budget):
            yield _padded(minibatch, samples, trained_N, device)


def _spans(batch: Batch, samples: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [np.arange(batch.offsets[sample], batch.offsets[sample + 1]) for sample in samples]


def _packed(batch: Batch, samples: NDArray[np.int64], trained_N: NDArray[np.bool_], device: torch.device) -> MicroBatch:
    spans = _spans(batch, samples)
    row = np.concatenate(spans)
    predicted = np.flatnonzero(trained_N[row])
    tokens = row[predicted]
    return MicroBatch(
        ids_BL=_tensor(batch.ids[row][None], device),
        positions_BL=_tensor(np.concatenate([np.arange(len(span)) for span in spans])[None], device),
        lengths=tuple(len(span) for span in spans),
        predictors_M=_tensor(predicted - 1, device),
        targets_M=_tensor(batch.ids[tokens], device),
        tokens_M=tokens,
        samples=samples,
    )


def _padded(batch: Batch, samples: NDArray[np.int64], trained_N: NDArray[np.bool_], device: torch.device) -> MicroBatch:
    spans = _spans(batch, samples)
    width = max(len(span) for span in spans)
    ids = np.zeros((len(spans), width), np.int64)  # right padding: under a causal mask no token sees it
    for row, span in enumerate(spans):
        ids[row, : len(span)] = batch.ids[span]
    predicted = [row * width + np.flatnonzero(trained_N[span]) - 1 for row, span in enumerate(spans)]
    tokens = np.concatenate([span[trained_N[span]] for span in spans])
    return MicroBatch(
        ids_BL=_tensor(ids, device),
        positions_BL=_tensor(np.arange(width)[None].repeat(len(spans), 0), device),
        lengths=None,
        predictors_M=_tensor(np.concatenate(predicted), device),
        targets_M=_tensor(batch.ids[tokens], device),
        tokens_M=tokens,
        samples=samples,
    )


def _padded_groups(batch: Batch, samples: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    groups: list[list[int]] = []
    for sample in sorted(samples.tolist(), key=lambda sample: -batch.lengths[sample]):
        width = int(batch.lengths[groups[-1][0]]) if groups else 0
        if groups and (len(groups[-1]) + 1) * width <= token_budget:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return [np.asarray(group, np.int64) for group in groups]


def _tensor(values: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(device)
