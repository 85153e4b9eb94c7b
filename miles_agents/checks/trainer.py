"""The conformance suite of trainers: what every `Trainer` keeps, checked on yours.

await check_trainer(lambda token_budget: MyTrainer(model=folder, token_budget=token_budget), batch=batch, folder=tmp)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from miles_agents.contracts import Trainer
from miles_agents.types import Batch

_TOLERANCE = 1e-5
_LAYOUT_METRICS = ("loss", "grad_norm", "entropy", "logprob_abs_diff_mean", "logprob_abs_diff_max", "trained_tokens")

MakeTrainer = Callable[[int], Trainer]


async def check_trainer(
    make: MakeTrainer, *, batch: Batch, folder: Path, max_logprob_abs_diff: float | None = None
) -> None:
    """Check a trainer against the contract of `Trainer`.

    Args:
        make: from a token budget per micro-batch, a trainer that is not yet started; always of the same weights.
        batch: at least two samples with sampled tokens and rewards that differ; its columns are not changed.
        folder: an empty folder for checkpoints.
        max_logprob_abs_diff: if the batch was sampled from these very weights, how far recomputed logprobs may be
            from its own.

    Raises:
        AssertionError: what it does not keep.
    """
    assert len(batch) >= 2, "the batch needs at least two samples"
    await _check_layouts(make, batch, max_logprob_abs_diff)
    await _check_empty_step(make, batch, folder)
    await _check_resume(make, batch, folder)


async def _check_layouts(make: MakeTrainer, batch: Batch, max_logprob_abs_diff: float | None) -> None:
    """One pack, several, and one a sample give the same numbers."""
    total = int(batch.lengths.sum())
    first: dict[str, float] | None = None
    for budget in (total, total // 2 + 1, total // 4 + 1, 1):
        async with _started(make, budget) as trainer:
            metrics = await trainer.step(await _prepared(trainer, batch))
        if max_logprob_abs_diff is not None:
            gap = metrics["logprob_abs_diff_max"]
            assert gap <= max_logprob_abs_diff, f"recomputed logprobs are {gap:.2g} from the sampled ones"
        first = first or metrics
        for name in _LAYOUT_METRICS:
            if name in first:
                message = f"'{name}' depends on the token budget: {metrics[name]} at {budget}, {first[name]} at {total}"
                assert abs(metrics[name] - first[name]) <= _TOLERANCE * (1 + abs(first[name])), message


async def _check_empty_step(make: MakeTrainer, batch: Batch, folder: Path) -> None:
    """A minibatch without a sampled token changes nothing and is counted."""
    async with _started(make, int(batch.lengths.sum())) as trainer:
        await trainer.step(await _prepared(trainer, batch))  # optimisers with momentum would move on a zero gradient
        before = await _saved(trainer, folder / "before-empty")
        empty = await _prepared(trainer, batch)
        empty.mask = np.zeros_like(empty.mask)
        metrics = await trainer.step(empty)
        after = await _saved(trainer, folder / "after-empty")
    assert metrics["empty_steps"] == 1.0, "a step without a sampled token must say empty_steps=1"
    assert metrics["loss"] == 0.0, f"a step without a sampled token has the loss {metrics['loss']}"
    _assert_equal(before, after, "a step without a sampled token")


async def _check_resume(make: MakeTrainer, batch: Batch, folder: Path) -> None:
    """Saved and loaded into another trainer, training goes on with the same bits."""
    total = int(batch.lengths.sum())
    halves = [batch.select(part) for part in np.array_split(np.arange(len(batch)), 2)]
    async with _started(make, total) as trainer:
        for half in halves:
            await trainer.step(await _prepared(trainer, half))
        await trainer.save(_new_folder(folder / "checkpoint"))
        expected = [await trainer.step(await _prepared(trainer, half)) for half in halves]
        uninterrupted = await _saved(trainer, folder / "uninterrupted")
    async with _started(make, total) as trainer:
        await trainer.load(folder / "checkpoint")
        metrics = [await trainer.step(await _prepared(trainer, half)) for half in halves]
        resumed = await _saved(trainer, folder / "resumed")
    assert metrics == expected, f"after load() metrics differ: {metrics} instead of {expected}"
    _assert_equal(uninterrupted, resumed, "save() and load()")


@asynccontextmanager
async def _started(make: MakeTrainer, token_budget: int) -> AsyncIterator[Trainer]:
    trainer = make(token_budget)
    try:
        await trainer.start()
        yield trainer
    finally:
        await trainer.close()
        await trainer.close()  # allowed twice


async def _prepared(trainer: Trainer, batch: Batch) -> Batch:
    """A copy, annotated and with advantages."""
    copy = batch.select(np.arange(len(batch)))
    await trainer.annotate(copy)
    trainer.algorithm.advantages(copy)
    return copy


async def _saved(trainer: Trainer, folder: Path) -> dict[str, Tensor]:
    await trainer.save(_new_folder(folder))
    return _weights(folder)


def _new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _weights(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    assert files, f"save() wrote no safetensors file into {folder}"
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def _assert_equal(before: dict[str, Tensor], after: dict[str, Tensor], what: str) -> None:
    assert before.keys() == after.keys(), f"{what} changed which weights there are"
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), f"{what} changed the weight '{name}'"
