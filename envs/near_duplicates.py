"""Families of questions that say the same with other numbers, names, spacing or punctuation.

Two questions are near-duplicates if

1. their *templates* are equal: numbers (digits and number words) and names are masked, case, spacing and punctuation
   are dropped; or
2. the sets of three-word runs of their templates overlap by a Jaccard index (shared ÷ all) of at least 0.8; or
3. they share 13 words in a row, as they stand there: what `contamination` counts. Runs that are in more than 1 % of the
   questions (and in more than 50) are phrases of the set and link nothing.

A *family* is what is linked by such pairs, directly or through others. Families do not depend on the order of the
questions, and equal pairs are found exactly: nothing is sampled.

A name is a word with a capital first letter that is none of `_NO_NAMES`. In a question where more than half of the
words have capitals (titles, shouted text) no word counts as a name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

from miles_agents.envs.splits import normalised
from miles_agents.envs.word_runs import LENGTH, runs_of, words_of

TEMPLATE_RUN = 3
_TOP, _BOTTOM = 4, 5  # two questions are near-duplicates from a Jaccard index of 4/5 on; whole numbers round nothing

_NUMBER, _NAME = "#", "@"
_WORD = re.compile(r"\d+(?:[.,/:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)?")
_NUMBER_WORDS = frozenset(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million
    billion dozen half twice thrice double triple
    """.split()
)
_NO_NAMES = frozenset(
    """
    a about after all also altogether among an and another are as assume at because before both but by calculate
    can compute consider did do does during each every evaluate express find for from given had has have he her
    his how however i if in is it its later let list many more most now of on once one only or our over prove she
    show simplify since so solve some suppose that the their them then there these they this those to today
    tomorrow two under until was we were what when where which while who whose why with without write yesterday
    you your
    """.split()
)


def families(questions: Sequence[str]) -> list[int]:
    """The family of each question: the place of its first member, so that equal numbers mean one family.

    Takes about six seconds for 20,000 questions of 45 words.
    """
    places = _Joined(len(questions))
    texts: dict[str, int] = {}
    templates: dict[str, int] = {}
    for place, question in enumerate(questions):
        places.join(place, texts.setdefault(normalised(question), place))
        places.join(place, templates.setdefault(template(question), place))
    for one, other in _overlapping(list(templates)):
        places.join(templates[one], templates[other])
    for holders in _sharing(questions):
        for place in holders[1:]:
            places.join(holders[0], place)
    return [places.root(place) for place in range(len(questions))]


def template(question: str) -> str:
    """The words of a question with numbers as `#` and names as `@`; a question without any word is itself."""
    words = _WORD.findall(unicodedata.normalize("NFKC", question))
    spoken = [word for word in words if word[0].isalpha()]
    names = 2 * sum(word[0].isupper() for word in spoken) <= len(spoken)
    masked: list[str] = []
    for word in words:
        mask = _mask(word, names=names)
        if mask != _NAME or masked[-1:] != [_NAME]:  # first and last name are one name
            masked.append(mask)
    return " ".join(masked) or normalised(question)


def _mask(word: str, *, names: bool) -> str:
    lower = word.casefold()
    if word[0].isdigit() or lower in _NUMBER_WORDS:
        return _NUMBER
    if names and word[0].isupper() and lower not in _NO_NAMES:
        return _NAME
    return lower


def _sharing(questions: Sequence[str]) -> list[list[int]]:
    """The places of the questions that hold one run, for each run of two or more."""
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for place, question in enumerate(questions):
        for run in set(runs_of(words_of(question), LENGTH)):
            holders[run].append(place)
    most = max(50, len(questions) // 100)
    return [places for places in holders.values() if 1 < len(places) <= most]


def _overlapping(templates: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs whose runs overlap by the threshold or more.

    Two sets of sizes m ≤ n with Jaccard index ≥ t share at least one element among the m − ⌈t·m⌉ + 1 rarest of one and
    as many of the other (prefix filtering; Chaudhuri, Ganti, Kaushik 2006), and m ≥ t·n. Only pairs that pass both are
    compared.
    """
    all_runs = [_runs(text) for text in templates]
    common = Counter(run for runs in all_runs for run in runs)
    rank = {run: number for number, run in enumerate(sorted(common, key=common.__getitem__))}  # any order will do
    sets = [frozenset(rank[run] for run in runs) for runs in all_runs]
    found: list[tuple[str, str]] = []
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for place in sorted(range(len(sets)), key=lambda place: len(sets[place])):
        runs = sets[place]
        least = -(-len(runs) * _TOP // _BOTTOM)  # ⌈t·n⌉
        rarest = sorted(runs)[: len(runs) - least + 1]
        for other in {holder for run in rarest for holder in holders[run] if len(sets[holder]) >= least}:
            shared = len(runs & sets[other])
            if shared * _BOTTOM >= _TOP * (len(runs) + len(sets[other]) - shared):
                found.append((templates[other], templates[place]))
        for run in rarest:
            holders[run].append(place)
    return found


def _runs(text: str) -> set[str]:
    words = text.split()
    if len(words) <= TEMPLATE_RUN:
        return {text}
    return {" ".join(run) for run in zip(*(words[start:] for start in range(TEMPLATE_RUN)), strict=False)}


class _Joined:
    """Places joined into groups (union-find); the root of a group is its first place."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, place: int) -> int:
        while self._parent[place] != place:
            self._parent[place] = self._parent[self._parent[place]]
            place = self._parent[place]
        return place

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.root(one), self.root(other)))
        self._parent[high] = low
