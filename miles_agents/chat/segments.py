"""What a reply consists of: stretches of content, thinking and calls, whole or as they come."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
THOUGHT_ALONE = "the reply holds thinking alone: neither an answer nor a call"


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


class DeltaKind(StrEnum):
    """What a delta adds to."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"  # a call begins; the text is the tool's name ("" if it has none)
    ARGUMENTS = "arguments"  # a piece of the JSON text of a call's arguments


class Delta(NamedTuple):
    """A piece of a reply. `call`: the place of the call in `Reply.calls`; None for content and reasoning."""

    kind: DeltaKind
    text: str
    call: int | None = None
