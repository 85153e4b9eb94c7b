r"""How the final answer stands in a reply: in a box, or in a last line `Answer: …`."""

from __future__ import annotations

import re
from enum import StrEnum

from miles_agents.answers import extract_boxed

_LINE = re.compile(
    r"^[ \t]*(?:\*\*)?answer(?:\*\*)?[ \t]*:[ \t]*(?:\*\*)?(?P<answer>[^\n]*)$", re.IGNORECASE | re.MULTILINE
)
_THINK_END = "</think>"
_THINK_START = "<think>"


class AnswerForm(StrEnum):
    r"""How the final reply gives the answer."""

    BOX = "box"  # in the last \boxed{} or \fbox{}
    LINE = "line"  # behind "Answer:", in the last line that begins so


def final_answer(content: str, form: AnswerForm) -> str | None:
    r"""The answer that a reply gives, without spaces around it; None if it gives none in the asked form.

    Of several the last counts, even where it is empty or unfinished. Nothing inside `<think>` counts. In a line, math
    dollars and a box around the whole answer are left to the comparison.
    """
    if form == AnswerForm.BOX:
        return extract_boxed(content)
    visible = content.rpartition(_THINK_END)[2]
    visible = visible.partition(_THINK_START)[0]
    last = None
    for last in _LINE.finditer(visible):  # noqa: B007 — the last one is wanted
        pass
    return last["answer"].strip().removesuffix("**").strip() if last else None


def as_reply(answer: str, form: AnswerForm) -> str:
    """A reply that gives an answer in the asked form."""
    return f"\\boxed{{{answer}}}" if form == AnswerForm.BOX else f"Answer: {answer}"
