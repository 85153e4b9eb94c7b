"""`judge=rules`: counting keywords. For trying things out, for tests and oracles; no measure of how good a text is."""

from __future__ import annotations

import re

from miles_agents.envs.judge.rubric import Criterion, Rubric

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def keyword_scores(rubric: Rubric, reply: str) -> dict[str, float]:
    """A share from 0 to 1 by criterion.

    A criterion with keywords gets the share of its groups of which the reply has a word (whole words, case aside; of a
    word that ends in `*` its beginning); one without gets the mean of those with. A reply of more than `max_words`
    words gets nothing.
    """
    words = _WORD.findall(reply)
    if rubric.max_words is not None and len(words) > rubric.max_words:
        return dict.fromkeys(rubric.names, 0.0)
    found = {each.name: _share(each, reply) for each in rubric.criteria if each.keywords}
    mean = sum(found.values()) / len(found) if found else 0.0
    return {name: found.get(name, mean) for name in rubric.names}


def can_judge(rubric: Rubric) -> bool:
    """Whether there is a keyword to look for."""
    return any(each.keywords for each in rubric.criteria)


def _share(criterion: Criterion, reply: str) -> float:
    return sum(any(_has(reply, word) for word in group) for group in criterion.keywords) / len(criterion.keywords)


def _has(reply: str, word: str) -> bool:
    ending = r"\w*" if word.endswith("*") else ""
    return re.search(rf"(?<!\w){re.escape(word.rstrip('*'))}{ending}(?!\w)", reply, re.IGNORECASE) is not None
