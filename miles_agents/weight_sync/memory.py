"""Weights go from trainer to engine inside one process; nothing touches the disk.

`share=True`: the engine decodes from the trainer's very parameters, a push only moves the version (staleness 0).
`share=False`: the engine decodes from its own copy, replaced at each push (asynchronous modes).
After each push a sample of tensors is read back on the engine's side and compared with the trainer's.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from miles_agents.contracts import RolloutEngine, Trainer, WeightSync
from miles_agents.errors import ConfigError, WeightSyncError

T = TypeVar("T")

# All tensors are compared while they are small together, else the first, the last and a sample that moves each push.
_COMPARE_ALL_BYTES = 16 << 20
_SAMPLED_TENSORS = 8


@runtime_checkable
class InProcessTrainer(Protocol):
    """What this route needs of a trainer."""

    @property
    def module(self) -> nn.Module:
        """The live model."""

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight under its Hugging Face name, without copies."""


@runtime_checkable
class InProcessEngine(Protocol):
    """What this route needs of an engine."""

    async def share(self, module: nn.Module) -> None:
        """Decode from the very parameters of `module`."""

    async def adopt(self, module: nn.Module) -> None:
        """Decode from a copy of `module`."""

    async def mark_version(self, version: int) -> None:
        """The shared parameters changed; clear every cache."""

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights of the copy; clear every cache."""

    async def read_weights(self, names: Sequence[str], read: Callable[[Tensor], T]) -> dict[str, T]:
        """Apply `read` to the named tensors the engine decodes from."""


class Checksum(NamedTuple):
    """CRC-32 of a tensor's bytes in its dtype."""

    dtype: torch.dtype
    crc: int


def checksum(tensor: Tensor) -> Checksum:
    """The checksum of `tensor`, wherever and however it lies in memory."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return Checksum(tensor.dtype, zlib.crc32(flat.view(torch.uint8).numpy().data))


class MemoryWeightSync(WeightSync):
    """The in-process route.

    Args:
        share: let the engine decode from the trainer's own parameters instead of a copy.
    """

    def __init__(self, *, share: bool) -> None:
        self._share = share
        self._ends: tuple[InProcessTrainer, InProcessEngine] | None = None

    async def connect(self, trainer: Trainer, engine: RolloutEngine) -> None:
        """Give the engine the trainer's model, shared or copied.

        Raises:
            ConfigError: the trainer or the engine does not live in this process, or the engine cannot decode it.
        """
        if not isinstance(trainer, InProcessTrainer):
            raise ConfigError(f"weight_sync=memory needs a trainer in this process; {type(trainer).__name__} is none")
        if not isinstance(engine, InProcessEngine):
            raise ConfigError(f"weight_sync=memory needs an engine in this process; {type(engine).__name__} is none")
        await (engine.share(trainer.module) if self._share else engine.adopt(trainer.module))
        self._ends = trainer, engine

    async def push(self, version: int) -> dict[str, float]:
        """Make the trainer's weights the engine's policy version `version`.

        Raises:
            WeightSyncError: the tensors do not fit the engine's model, or what the engine holds afterwards is not
                what the trainer has.
        """
        if self._ends is None:
            raise WeightSyncError("push before connect: await connect(trainer, engine) first")
        trainer, engine = self._ends
        tensors = list(trainer.export())
        if self._share:
            await engine.mark_version(version)
        else:
            await engine.update_weights(tensors, version)
        await self._compare(tensors, engine, version)
        sent = 0 if self._share else sum(_bytes(tensor) for _, tensor in tensors)
        return {"bytes": float(sent), "tensors": float(len(tensors)), "checksum_ok": 1.0}

    async def _compare(self, tensors: list[tuple[str, Tensor]], engine: InProcessEngine, version: int) -> None:
        chosen = _sample(tensors, version)
        held = await engine.read_weights([name for name, _ in chosen], checksum)

        def different() -> list[str]:
            return [name for name, tensor in chosen if checksum(tensor.detach().to(held[name].dtype)) != held[name]]

        wrong = await asyncio.to_thread(different)
        if wrong:
            raise WeightSyncError(
                f"after the push of version {version} {len(wrong)} of {len(chosen)} compared tensors are not the "
                f"trainer's on the engine, first '{wrong[0]}': the engine ignored the update or was given other weights"
            )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _sample(tensors: list[tuple[str, Tensor]], version: int) -> list[tuple[str, Tensor]]:
    if not tensors:
        raise WeightSyncError("the trainer exported no tensor")
    if sum(_bytes(tensor) for _, tensor in tensors) <= _COMPARE_ALL_BYTES:
        return tensors
    count = len(tensors)
    moving = ((version * _SAMPLED_TENSORS + step) % count for step in range(_SAMPLED_TENSORS))
    return [tensors[index] for index in sorted({0, count - 1, *moving})]
