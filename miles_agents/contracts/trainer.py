"""The trainer contract: an async controller in front of synchronous ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from miles_agents.contracts.algorithm import Algorithm
from miles_agents.types import Batch

if TYPE_CHECKING:
    from torch import Tensor


class TrainerRank(ABC):
    """The synchronous SPMD half: one per process, called from one thread at a time."""

    @abstractmethod
    def annotate(self, batch: Batch) -> None:
        """Fill the columns the algorithm needs."""

    @abstractmethod
    def step(self, minibatch: Batch) -> dict[str, float]:
        """Forward, backward and one optimiser update."""

    @abstractmethod
    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under its Hugging Face name; a collective on several ranks. No copies are made."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write model (Hugging Face format) and trainer state into an existing empty folder."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Take back what `save` wrote, exactly."""


class Trainer(ABC):
    """The asynchronous half, held by the controller. Never blocks the event loop."""

    algorithm: Algorithm

    @abstractmethod
    async def start(self) -> None:
        """Load the model and build the optimiser."""

    @abstractmethod
    async def annotate(self, batch: Batch) -> None:
        """Fill the per-token columns that `algorithm.needs`, in place."""

    @abstractmethod
    async def step(self, minibatch: Batch) -> dict[str, float]:
        """One optimiser update over the minibatch.

        Returns metrics with the minibatch's means (`loss`, `grad_norm`, `lr`, `logprob_abs_diff_mean`,
        `logprob_abs_diff_max`, `clip_fraction`, `entropy`, …). A minibatch in which no token has a weight changes
        neither weights nor optimiser and is counted: `empty_steps` is 1 then, 0 otherwise.

        Raises:
            FloatingPointError: the loss or a gradient is not finite; the weights are those before the step.
        """

    @abstractmethod
    async def save(self, folder: Path) -> None:
        """Write a checkpoint's files into an existing empty folder (the caller renames it into place)."""

    @abstractmethod
    async def load(self, folder: Path) -> None:
        """Take back what `save` wrote."""

    async def sleep(self) -> None:
        """Free accelerator memory while the engine decodes. Nothing to free by default."""

    async def wake(self) -> None:
        """Take it back."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the ranks. May be called twice."""
