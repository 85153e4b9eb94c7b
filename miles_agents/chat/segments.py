"""What a reply consists of: stretches of content, thinking and calls."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class ThinkingPolicy(StrEnum):
    """What a call written inside thinking is; the same for whole replies, streams and training."""

    IGNORE = "ignore"  # never executed; counted in `Reply.calls_in_reasoning`
    END_THINKING = "end_thinking"  # complete and valid by the tool's schema: it ends the thinking and is executed


class SegmentKind(StrEnum):
    """What a stretch of a reply is."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class Segment(NamedTuple):
    """A stretch of a reply: `opening + body + closing` is its exact text.

    `closing` is empty if it was never closed, or if what it is has no closing tag.
    """

    kind: SegmentKind
    opening: str
    body: str
    closing: str

    @property
    def source(self) -> str:
        """The stretch exactly as written."""
        return self.opening + self.body + self.closing
