"""Strict extraction of the final answer: the last box, or nothing."""

from __future__ import annotations

import re

_THINK_TAG = re.compile(r"</?think>")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character counts for nothing
_OPENERS = (r"\boxed{", r"\fbox{")


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{` or `\fbox{` opened outside thinking, stripped of outer spaces.

    None if there is none, or if that last one is never closed: an earlier box is never taken instead. Boxes in
    boxes give the innermost last one (`\boxed{\boxed{42}}` → `42`). Thinking is `<think>…</think>`; unclosed thinking
    hides everything after it, and a `</think>` that was never opened (the prompt opened it) everything before it.
    Time is linear in the length of the text.
    """
    visible = _outside_thinking(text)
    start, opener = max((visible.rfind(opener), opener) for opener in _OPENERS)
    if start < 0:
        return None
    inside = start + len(opener)
    depth = 1
    for brace in _BRACE.finditer(visible, inside):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if depth == 0:
            return visible[inside : brace.start()].strip()
    return None


def _outside_thinking(text: str) -> str:
    kept: list[str] = []
    position = 0
    thinking = False
    for tag in _THINK_TAG.finditer(text):
        if not thinking:
            kept.append(text[position : tag.start()])
        if tag[0] == "</think>":
            if not thinking:
                kept.clear()
            thinking = False
        else:
            thinking = True
        position = tag.end()
    if not thinking:
        kept.append(text[position:])
    return "\n".join(kept)  # a break, so that the pieces around thinking never join into a box
