"""Strict extraction of the final answer: the last box, the last `####` line, or nothing."""

from __future__ import annotations

import re

_THINK_TAG = re.compile(r"</?think>")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped character counts for nothing
_OPENER = re.compile(r"\\(?:boxed|fbox)\s*\{")
_HASHES = "####"
_SAID = re.compile(
    r"(?:answer|option|choice)(?: is| would be|:| is:)?:?[ \t]*(?:option |choice )?"
    r"(?P<letter>\*\*\(?[A-Z]\)?[.:]?\*\*|\([A-Z]\)|\\text\{\(?[A-Z]\)?\}|\$?[A-Z]\$?)"
    r"(?P<after>[^\n]{0,20})",
    re.IGNORECASE,
)
_GIVEN_UP = re.compile(r"\b(?:not|never|neither|if|whether|unless|maybe|perhaps|could|might)\b|n't\b", re.IGNORECASE)
_ENDS = re.compile(r"[ \t]*(?:[.;!)](?!\w)|$|[:,] (?!and\b|or\b)|because\b|since\b)")
_OTHER_LETTER = re.compile(r"\b(?:or|and)\s+\(?[A-Z]\b")
_LONE_LETTER = re.compile(r"[ \t]*(?:\*\*)?\(?([A-Z])\)?[.)]?(?:\*\*)?[ \t]*")
_CONTEXT_CHARS = 200


def extract(text: str, *, choices: bool = False) -> str | None:
    r"""The final answer given in a reply, or None if none is given.

    1. The content of the last `\boxed{` or `\fbox{` opened outside thinking; if that one is never closed, there is no
       answer, whatever came before it.
    2. Without a box, what follows `####` on the last line that begins with it.
    3. With `choices`, without both, a letter that is clearly said to be the answer ("the answer is (E)", or a last line
       that is nothing but a letter).

    Thinking is `<think>…</think>`; unclosed thinking hides everything after it, and a `</think>` that was never opened
    (the prompt opened it) everything before it. An answer that was only mentioned is none. Time is linear in the
    length of the text.
    """
    visible = _outside_thinking(text)
    opened = _last_opened_box(visible)
    if opened is not None:
        return _closed_content(visible, opened)
    hashed = _after_hashes(visible)
    if hashed is None and choices:
        return _letter_said(visible)
    return hashed


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{` or `\fbox{` opened outside thinking, stripped of outer spaces.

    None if there is none, or if that last one is never closed: an earlier box is never taken instead. Boxes in
    boxes give the innermost last one (`\boxed{\boxed{42}}` → `42`). Time is linear in the length of the text.
    """
    visible = _outside_thinking(text)
    opened = _last_opened_box(visible)
    return None if opened is None else _closed_content(visible, opened)


def _last_opened_box(visible: str) -> int | None:
    """Where the inside of the last box begins."""
    openers = list(_OPENER.finditer(visible))
    return openers[-1].end() if openers else None


def _closed_content(visible: str, inside: int) -> str | None:
    depth = 1
    for brace in _BRACE.finditer(visible, inside):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if depth == 0:
            return visible[inside : brace.start()].strip()
    return None


def _after_hashes(visible: str) -> str | None:
    for line in reversed(visible.split("\n")):
        if (line := line.strip()).startswith(_HASHES):
            return line.strip("#").strip() or None
    return None


def _letter_said(visible: str) -> str | None:
    lines = visible.strip().rsplit("\n", 1)
    if (lone := _LONE_LETTER.fullmatch(lines[-1])) is not None:
        return lone[1]
    every = list(_SAID.finditer(visible))
    if not every or not re.search("[A-Z]", re.sub(r"\\text", "", every[-1]["letter"])):
        return None
    said = every[-1]
    before = re.split(r"[.!?\n]", visible[max(0, said.start() - _CONTEXT_CHARS) : said.start()])[-1]
    if _GIVEN_UP.search(before) or not _ENDS.match(said["after"]) or _OTHER_LETTER.search(said["after"]):
        return None
    return re.sub(r"\\text|[^A-Z]", "", said["letter"])


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
