"""The weight sync contract: from trainer ranks to the engine, verified and versioned."""

from __future__ import annotations

from abc import ABC, abstractmethod

from miles_agents.contracts.engine import RolloutEngine
from miles_agents.contracts.trainer import Trainer


class WeightSync(ABC):
    """Only control messages cross the driver; tensors go from rank to engine."""

    @abstractmethod
    async def connect(self, trainer: Trainer, engine: RolloutEngine) -> None:
        """Bind both ends, once.

        Raises:
            ConfigError: this route cannot serve this pair.
        """

    @abstractmethod
    async def push(self, version: int) -> dict[str, float]:
        """Give the engine the trainer's weights as policy version `version`; clears its caches.

        Returns metrics: `bytes`, `tensors`, `checksum_ok` (1.0).

        Raises:
            WeightSyncError: names, shapes or checksums disagree; the engine keeps its former complete version.
        """
