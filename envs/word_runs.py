"""Runs of words, by which two texts are compared regardless of case and punctuation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

LENGTH = 13  # words of a run that two texts do not share by chance (Brown et al. 2020, appendix C)

_WORD = re.compile(r"\w+")


def words_of(text: str) -> list[str]:
    """The words and numbers of a text, case folded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def runs_of(words: Sequence[str], length: int) -> Iterator[str]:
    """The runs of so many words, in order; none where there are fewer words."""
    return (" ".join(words[start : start + length]) for start in range(len(words) - length + 1))
