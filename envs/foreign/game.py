"""What a foreign game has to look like to be played: three blocking calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Move(NamedTuple):
    """What came of one action. `reward` is this move's; the episode's is their sum."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool = False


class TextGame(ABC):
    """A text-in, text-out game for one player. It may block, print and draw from the global random generators."""

    @abstractmethod
    def reset(self, seed: int) -> str:
        """Begin the game that the seed names; what the player is told first."""

    @abstractmethod
    def move(self, action: str) -> Move:
        """Answer the player."""

    def close(self) -> None:
        """Free what the game holds."""
