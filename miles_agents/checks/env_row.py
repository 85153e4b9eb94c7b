"""What a check of an environment is, and what comes of it: a row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from miles_agents.checks.env_subject import Subject


class Outcome(StrEnum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"  # to be mended
    WARNING = "warning"  # to be looked at: it may be meant
    SKIPPED = "skipped"  # it does not apply, or cannot be judged


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check and what came of it."""

    name: str
    must: str  # what must hold
    outcome: Outcome
    seen: str = ""  # or why it was skipped
    advice: str = ""  # what to do, if it failed
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCheck:
    """One check.

    `body` returns what it saw in a few words, or raises `AssertionError` (`Found` with an advice of its own), `Remark`
    or `NotApplicable`; anything else that comes out of it was raised by the environment.
    """

    name: str
    must: str
    advice: str
    body: Callable[[Subject], Awaitable[str]]
    after: tuple[str, ...] = ()  # checks without which this one cannot be judged


class Found(AssertionError):
    """The environment does not keep what it must; `advice` says what to do."""

    def __init__(self, seen: str, advice: str) -> None:
        super().__init__(seen)
        self.advice = advice


class Remark(Exception):
    """Something to look at that may be meant."""

    def __init__(self, seen: str, advice: str) -> None:
        super().__init__(seen)
        self.advice = advice


class NotApplicable(Exception):
    """The check says nothing about this environment, and why."""
