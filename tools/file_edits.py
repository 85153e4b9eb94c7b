"""Exact replacement in a text, and what to tell a model whose text is not in the file just once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from typing import NamedTuple

from miles_agents.errors import ToolError

_CONTEXT_LINES = 2  # shown around an edit
_MAX_SHOWN_LINES = 30
_MAX_LINE_CHARS = 200
_MAX_PLACES = 5  # listed
_MAX_COMPARED = 3000  # lines that a misremembered one is compared with
_MAX_RATED = 20  # of them, as likely ones: rating one exactly takes milliseconds
_LIKENESS = 0.6


class Replacement(NamedTuple):
    """A text after an edit, and the numbered lines around it."""

    text: str
    shown: str


def split_lines(text: str) -> list[str]:
    r"""The lines as editors count them: cut at `\n` alone, without an empty one after the last; `\r` is cut off."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def numbered(number: int, line: str, max_chars: int = _MAX_LINE_CHARS) -> str:
    """A line as the model is shown it."""
    cut = line if len(line) <= max_chars else f"{line[:max_chars]}… ({len(line) - max_chars} characters more)"
    return f"{number:>6}\t{cut}"


def replaced_once(text: str, old: str, new: str, *, path: str) -> Replacement:
    r"""`text` with `old`, which must be in it exactly once, replaced by `new`.

    In a text whose lines end in `\r\n`, line ends of `old` and `new` are taken as those.

    Raises:
        ToolError: not there just once; the message says what to do.
    """
    if not old:
        raise ToolError("old_text is empty; give the text to replace, or write the whole file")
    if old == new:
        raise ToolError("old_text and new_text are the same; nothing to do")
    if "\r\n" in text and "\r\n" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    places = _places(text, old)
    if not places:
        raise ToolError(f"old_text is not in '{path}'. {_advice(text, old)}")
    if len(places) > 1:
        lines = dict.fromkeys(str(text.count("\n", 0, place) + 1) for place in places[:_MAX_PLACES])
        listed = ", ".join(lines) + (", …" if len(places) > _MAX_PLACES else "")
        raise ToolError(
            f"old_text is {len(places)} times in '{path}', at lines {listed}; add lines before or after it until it is "
            "there just once"
        )
    start = places[0]
    edited = text[:start] + new + text[start + len(old) :]
    return Replacement(edited, _around(edited, start, start + len(new)))


def _places(text: str, old: str) -> list[int]:
    """Where `old` begins; overlapping places count, too."""
    places: list[int] = []
    place = text.find(old)
    while place >= 0:
        places.append(place)
        place = text.find(old, place + 1)
    return places


def _around(text: str, start: int, end: int) -> str:
    lines = split_lines(text)
    first = max(text.count("\n", 0, start) - _CONTEXT_LINES, 0)
    last = min(text.count("\n", 0, end) + _CONTEXT_LINES + 1, len(lines))
    shown = [numbered(number + 1, lines[number]) for number in range(first, last)]
    if len(shown) > _MAX_SHOWN_LINES:
        half = _MAX_SHOWN_LINES // 2
        shown[half:-half] = [f"(… {len(shown) - 2 * half} lines …)"]
    return "\n".join(shown) or "(the file is empty)"


def _advice(text: str, old: str) -> str:
    lines, wanted = split_lines(text), split_lines(old)
    if not lines:
        return "The file is empty."
    if all(re.match(r"\s*\d+\t", line) for line in wanted if line.strip()):
        return "Leave out the line numbers: they are not part of the file."
    place = _same_but_for_white_space(lines, wanted)
    if place is not None:
        found = lines[place : place + len(wanted)][:_MAX_SHOWN_LINES]
        exact = "\n".join(line[:_MAX_LINE_CHARS] for line in found)
        return f"Line {place + 1} differs from it only in white space. Exactly it is:\n{exact}"
    near = _nearest(lines, max(wanted, key=lambda line: len(line.strip())))
    if near is None:
        return "Read the file and copy the text from it."
    return f"The nearest line is\n{numbered(near + 1, lines[near])}\nRead the file there and copy the text exactly."


def _same_but_for_white_space(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    bare, pattern = [_bare(line) for line in lines], [_bare(line) for line in wanted]
    if not any(pattern):
        return None
    starts = (place for place in range(len(bare) - len(pattern) + 1) if bare[place] == pattern[0])
    return next((place for place in starts if bare[place : place + len(pattern)] == pattern), None)


def _bare(line: str) -> str:
    return "".join(line.split())


def _nearest(lines: Sequence[str], wanted: str) -> int | None:
    """The index of the line most like `wanted`; None if none is."""
    matcher = SequenceMatcher(b=wanted.strip()[:_MAX_LINE_CHARS], autojunk=False)
    bounds: list[tuple[float, int]] = []  # the likeness of a line at most, and its index negated: earlier ones first
    for index, line in enumerate(lines[:_MAX_COMPARED]):
        matcher.set_seq1(line.strip()[:_MAX_LINE_CHARS])
        if matcher.real_quick_ratio() > _LIKENESS and (bound := matcher.quick_ratio()) > _LIKENESS:
            bounds.append((bound, -index))
    best, likeness = None, _LIKENESS
    for _, index in nlargest(_MAX_RATED, bounds):
        matcher.set_seq1(lines[-index].strip()[:_MAX_LINE_CHARS])
        if (ratio := matcher.ratio()) > likeness:
            best, likeness = -index, ratio
    return best
