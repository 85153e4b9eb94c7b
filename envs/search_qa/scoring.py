"""Comparing short answers in words, by the rules of SQuAD (Rajpurkar et al. 2016) and HotpotQA (Yang et al. 2018)."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation + "“”‘’…–—«»")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf)\{(.*)\}", re.DOTALL)
_WHOLE = {"yes", "no", "noanswer"}  # answers that are right or wrong as a whole


def normalised_answer(text: str) -> str:
    r"""The answer without case, punctuation, articles, `\text{}` around it and superfluous spaces."""
    text = unicodedata.normalize("NFKC", text).strip().strip("$").strip()
    if (inside := _WRAPPED.fullmatch(text)) is not None:
        text = inside[1]
    return " ".join(_ARTICLES.sub(" ", text.casefold().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1 if the answer equals one of the right ones when normalised, and is not empty."""
    normal = normalised_answer(answer)
    return float(bool(normal) and normal in {normalised_answer(gold) for gold in golds})


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best F1 of the answer's words against those of a right one, 0 to 1.

    Precision and recall count shared words as often as both have them. Of yes and no, nothing but the whole counts.
    """
    return max((_f1(normalised_answer(answer), normalised_answer(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _WHOLE or gold in _WHOLE):
        return 0.0
    given, wanted = Counter(answer.split()), Counter(gold.split())
    shared = (given & wanted).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / given.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)
