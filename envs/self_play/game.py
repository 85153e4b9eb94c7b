"""What a game of two seats is to `SelfPlay`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

FIRST, SECOND = SEATS = ("first", "second")
Answer = Callable[[str, np.random.Generator], str]
"""(the text a seat was told last, a generator) → its reply."""


def other(seat: str) -> str:
    """The one across the table."""
    return SECOND if seat == FIRST else FIRST


class Start(NamedTuple):
    """One task: how a game begins. `setting` is JSON, and decides everything."""

    id: str
    setting: Mapping[str, Any]


class Game(ABC):
    """One game under way. `seat` is always `"first"` or `"second"`."""

    rules: ClassVar[str]  # told to both
    opponents: ClassVar[Mapping[str, Answer]]  # scripted players by name

    @classmethod
    @abstractmethod
    def starts(cls) -> Iterator[Start]:
        """Every task there is, always in the same order."""

    @abstractmethod
    def __init__(self, setting: Mapping[str, Any]) -> None:
        """Begin a game."""

    @property
    @abstractmethod
    def to_act(self) -> str:
        """Whose turn it is."""

    @abstractmethod
    def told(self, seat: str, *, at_first: bool) -> str:
        """What a seat is told when its turn comes; `at_first`: it has not been told anything but the rules."""

    @abstractmethod
    def play(self, seat: str, text: str) -> str:
        """Take a seat's reply. What is wrong with it comes back, and then it changed nothing; empty: it was fine."""

    @property
    @abstractmethod
    def result(self) -> Mapping[str, float] | None:
        """Rewards by seat, 0 to 1, once the game is over."""

    @classmethod
    @abstractmethod
    def winning_line(cls, setting: Mapping[str, Any]) -> Sequence[str]:
        """Replies, in turn, with which both seats bring about the most for the first one."""
