"""What a question asks for, as far as it decides which answers are equal: a percentage, a number in a named base."""

from __future__ import annotations

import re

from miles_agents.answers import AnswerPolicy

_SENTENCES = re.compile(r"(?<=[.?!])\s+")
_PERCENT = re.compile(
    r"\b(?:what|which|how many)(?: \w+){0,3} percent(?:age)?\b|\b(?:as an?|in|by what|by how many) percent(?:age)?\b",
    re.IGNORECASE,
)
_BASE = re.compile(r"\b(?:in|to|into) (?:\$?base[\s-]|(?:\w+ )?(?:binary|octal|hexadecimal)\b)", re.IGNORECASE)


def policy_of(question: str) -> AnswerPolicy:
    """What the sentence that asks leaves open: 35 and 35% are equal where it asks for a percentage, and nowhere else.

    The sentence that asks is the last one with a question mark, else the last one. A percentage that is merely
    mentioned there ("how much is left after 20%?") is not asked for.
    """
    sentences = _SENTENCES.split(question.strip())
    asking = next((each for each in reversed(sentences) if each.endswith("?")), sentences[-1])
    return AnswerPolicy(
        percent_asked=_PERCENT.search(asking) is not None,
        base_asked=_BASE.search(asking) is not None or _BASE.search(sentences[-1]) is not None,
    )
