"""The asynchronous half of the local trainer: everything heavy runs in one worker thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from miles_agents.contracts import Algorithm, Annotation, Trainer
from miles_agents.errors import UsageError
from miles_agents.models.loading import load_causal_lm
from miles_agents.trainers.local.rank import LocalTrainerRank
from miles_agents.trainers.local.settings import Execution, OptimizerSettings, Packing, Precision
from miles_agents.types import Batch

Result = TypeVar("Result")


class LocalTrainer(Trainer):
    """In-process training with PyTorch.

    Calls are carried out one after another, in the order they were made. A cancelled call still ends in the worker
    thread, whole; the next one waits for it.

    Args:
        model: a Hugging Face folder, or a live model with float32 weights, which is then trained in place.
        algorithm: what is optimised.
        optimizer: which optimiser, and its schedule.
        reference_model: folder of the frozen reference model; the model folder by default. Loaded only if the
            algorithm needs it.
        tokenizer_from: folder of the tokenizer files that go into checkpoints; the model folder by default.
        max_grad_norm, dtype, token_budget, temperature, packing, threads: see `Execution`.

    Raises:
        UsageError: a setting that is unknown or out of range.
    """

    def __init__(
        self,
        *,
        model: Path | PreTrainedModel,
        algorithm: Algorithm,
        optimizer: OptimizerSettings | None = None,
        reference_model: Path | None = None,
        tokenizer_from: Path | None = None,
        max_grad_norm: float | None = 1.0,
        dtype: str = Precision.FLOAT32,
        token_budget: int = 8192,
        temperature: float = 1.0,
        packing: str = Packing.PACKED,
        threads: int | None = None,
    ) -> None:
        self.algorithm = algorithm
        self._model = model
        self._optimizer = optimizer or OptimizerSettings()
        folder = model if isinstance(model, Path) else None
        self._reference_model = reference_model or folder
        self._tokenizer_from = tokenizer_from or folder
        self._execution = Execution(
            max_grad_norm=max_grad_norm,
            dtype=dtype,
            token_budget=token_budget,
            temperature=temperature,
            packing=packing,
            threads=threads,
        )
        self._worker: ThreadPoolExecutor | None = None
        self._rank: LocalTrainerRank | None = None

    @property
    def rank(self) -> LocalTrainerRank:
        """The synchronous half; call it only while no call of this trainer is under way."""
        if self._rank is None:
            raise UsageError("the trainer has not been started: await start() first")
        return self._rank

    @property
    def module(self) -> PreTrainedModel:
        """The live model: the same object for the trainer's life, `load` included."""
        return self.rank.module

    @property
    def updates(self) -> int:
        """Optimiser updates applied so far, those before a `load`ed checkpoint included."""
        return self.rank.updates

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """The live weights under their Hugging Face names, tied ones once; no copies."""
        return self.rank.export()

    async def start(self) -> None:
        """Load the model and build the optimiser. A second call does nothing."""
        if self._rank is None:
            self._rank = await self._call(self._build)

    async def annotate(self, batch: Batch) -> None:
        """Fill the columns the algorithm needs."""
        if self.algorithm.needs:
            await self._call(lambda: self.rank.annotate(batch))

    async def step(self, minibatch: Batch) -> dict[str, float]:
        """One optimiser update; see `LocalTrainerRank.step` for the metrics."""
        return await self._call(lambda: self.rank.step(minibatch))

    async def save(self, folder: Path) -> None:
        """Write a checkpoint's files into an existing folder.

        Raises:
            OSError: the disk is full or refuses the write.
        """
        await self._call(lambda: self.rank.save(folder))

    async def load(self, folder: Path) -> None:
        """Take back what `save` wrote, exactly.

        Raises:
            CheckpointError: not a checkpoint of this model and optimiser.
        """
        await self._call(lambda: self.rank.load(folder))

    async def close(self) -> None:
        """Wait for the call under way and end the worker thread. May be called twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.shutdown)

    async def _call(self, work: Callable[[], Result]) -> Result:
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "local-trainer", initializer=self._set_threads)
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _set_threads(self) -> None:
        if self._execution.threads is not None:
            torch.set_num_threads(self._execution.threads)

    def _build(self) -> LocalTrainerRank:
        model = load_causal_lm(self._model, dtype="float32") if isinstance(self._model, Path) else self._model
        return LocalTrainerRank(
            model=model,
            algorithm=self.algorithm,
            optimizer=self._optimizer,
            execution=self._execution,
            reference=self._load_reference(),
            tokenizer_from=self._tokenizer_from,
        )

    def _load_reference(self) -> PreTrainedModel | None:
        if Annotation.REFERENCE_LOGPROBS not in self.algorithm.needs:
            return None
        if self._reference_model is None:
            raise UsageError("the algorithm needs a reference model: give reference_model=FOLDER")
        reference = load_causal_lm(self._reference_model, dtype="float32")
        return reference.requires_grad_(False)
