"""What a comparison is asked and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPolicy:
    """What the question leaves open. Each option works the same in both directions."""

    percent_asked: bool = False  # the question asks for a percentage: 35% and 35 are equal
    base_asked: bool = False  # the question names the base: 1011_2 and 1011 are equal
    choices: bool = False  # the answers are letters of options: `(E)` and `E: it costs less` are E


class Verdict(NamedTuple):
    """Whether two answers are equal."""

    correct: bool | None  # None: it could not be decided; never to be counted as wrong
    reason: str  # for people, not for programs


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderLimits:
    """Bounds of the worker processes that decide what exact arithmetic alone does not."""

    time_s: float = 5.0  # for one pair, counted from when a worker takes it
    memory_mb: int = 1024  # that one worker may take on top of what it starts with
    start_s: float = 60.0  # for a worker to be ready
    workers: int = 2

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("time_s", "memory_mb", "start_s", "workers"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: it must be above 0")
