"""Unified diffs: made for generated tasks, applied for the oracle. A patch must fit exactly; nothing is guessed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple

from miles_agents.errors import DataError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"


class _Hunk(NamedTuple):
    start: int  # the first old line, counted from 1; 0 in an empty file
    old: list[str]
    new: list[str]


def make_patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The unified diff from one set of files to another of the same paths."""
    parts = []
    for path in sorted(after):
        lines = difflib.unified_diff(
            _lines(before[path]),
            _lines(after[path]),
            f"a/{path}",
            f"b/{path}",
        )
        parts += [line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n" for line in lines]
    return "".join(parts)


def apply_patch(files: Mapping[str, str], patch: str) -> dict[str, str | None]:
    """The files that a patch changes, by path: their new text, or None for those it removes.

    Args:
        files: by path.
        patch: a unified diff, as `git diff` writes it, of text files.

    Raises:
        DataError: it is no such patch, or does not fit the files.
    """
    lines = patch.split("\n")
    changed: dict[str, str | None] = {}
    index = 0
    while index < len(lines):
        if not lines[index].startswith("--- "):
            if lines[index].startswith(("rename ", "copy ", "GIT binary patch", "Binary files ")):
                raise DataError(f"the patch renames, copies or is binary ({lines[index]!r}); only text can be changed")
            index += 1
            continue
        if index + 1 >= len(lines) or not lines[index + 1].startswith("+++ "):
            raise DataError(f"the patch has no line '+++ …' behind {lines[index]!r}")
        old, new = _path(lines[index]), _path(lines[index + 1])
        hunks, index = _hunks(lines, index + 2)
        path = new or old
        if path is None or (old and new and old != new):
            raise DataError(f"the patch renames a file ({old} to {new}); write it as one removed and one added")
        before = "" if old is None else changed.get(path, files.get(path))
        if before is None:
            raise DataError(f"the patch changes {path!r}, which is not among the files")
        after = _applied(before, hunks, path)
        changed[path] = None if new is None else after
    if not changed:
        raise DataError("the patch changes nothing: it has no lines '--- a/path', '+++ b/path', '@@ … @@'")
    return changed


def _lines(text: str) -> list[str]:
    """With their ends; cut at line feeds alone, unlike `splitlines`."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _path(line: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    if name == "/dev/null":
        return None
    return name[2:] if name.startswith(("a/", "b/")) else name


def _hunks(lines: list[str], index: int) -> tuple[list[_Hunk], int]:
    hunks = []
    while index < len(lines) and (head := _HUNK.match(lines[index])):
        hunk = _Hunk(int(head[1]), [], [])
        wanted = [int(head[2] or 1), int(head[3] or 1)]
        index += 1
        while index < len(lines) and [len(hunk.old), len(hunk.new)] != wanted:
            index = _take(lines, index, hunk)
        if [len(hunk.old), len(hunk.new)] != wanted:
            raise DataError(f"the patch ends within the hunk {head[0]!r}")
        if index < len(lines) and lines[index].startswith(_NO_NEWLINE):
            index = _take(lines, index, hunk)
        hunks.append(hunk)
    return hunks, index


def _take(lines: list[str], index: int, hunk: _Hunk) -> int:
    """Add a line to a hunk, and see whether it is one without an end; the index behind it."""
    sign, text = lines[index][:1] or " ", lines[index][1:]  # editors cut off the space of an empty line
    sides = {" ": [hunk.old, hunk.new], "-": [hunk.old], "+": [hunk.new]}.get(sign)
    if sign == "\\":
        for each in (hunk.old, hunk.new):
            if each and lines[index - 1][:1] in (" ", "-" if each is hunk.old else "+"):
                each[-1] = each[-1].removesuffix("\n")
    elif sides is None:
        raise DataError(f"the patch has {lines[index]!r} within a hunk")
    else:
        for each in sides:
            each.append(text + "\n")
    return index + 1


def _applied(before: str, hunks: list[_Hunk], path: str) -> str:
    given = _lines(before)
    made: list[str] = []
    done = 0
    for hunk in hunks:
        start = max(hunk.start - 1, 0) if hunk.old else hunk.start
        if start < done or given[start : start + len(hunk.old)] != hunk.old:
            raise DataError(f"the patch does not fit {path!r} at line {hunk.start}")
        made += [*given[done:start], *hunk.new]
        done = start + len(hunk.old)
    return "".join([*made, *given[done:]])
