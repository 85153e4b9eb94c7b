"""Are test questions in the training data? Exact and n-gram overlap of two sets of texts.

The rule of the n-grams is that of GPT-3's paper (Brown et al. 2020, appendix C): a test text is contaminated if any
run of `n` of its words (13 by default) stands in a training text; words are compared without case and punctuation. A
test text of fewer than `n` words, but of at least `SHORTEST`, is contaminated if all of its words stand in a training
text as one run. Shorter ones are compared as a whole only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from miles_agents.envs.splits import normalised
from miles_agents.envs.word_runs import LENGTH, runs_of, words_of

SHORTEST = 5  # words; runs of fewer are found everywhere and say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One test text and the first training text that it shares something with."""

    test: int  # place in the test texts, from 0
    train: int  # place in the training texts, from 0
    shared: str  # the first run of words of the test text that is shared; of an exact duplicate, the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """What two sets of texts share. A test text is in `exact` or in `overlaps`, not in both."""

    train_texts: int
    test_texts: int
    n: int  # words of a run
    exact: tuple[Overlap, ...]  # equal up to case, spacing and Unicode spelling
    overlaps: tuple[Overlap, ...]  # a shared run of words
    uncompared: int  # test texts too short for runs, compared as a whole only

    @property
    def share(self) -> float:
        """The contaminated part of the test texts, 0 to 1."""
        return (len(self.exact) + len(self.overlaps)) / self.test_texts if self.test_texts else 0.0

    @property
    def clean(self) -> bool:
        """Nothing is shared."""
        return not self.exact and not self.overlaps

    def __str__(self) -> str:
        return (
            f"{len(self.exact)} exact duplicates and {len(self.overlaps)} overlaps of {self.n} words among "
            f"{self.test_texts} test texts ({100 * self.share:.1f} %), against {self.train_texts} training texts"
        )


def contamination(train: Iterable[str], test: Iterable[str], *, n: int = LENGTH) -> Contamination:
    """Look for the test texts in the training texts.

    Args:
        train: the training texts, e.g. questions.
        test: the texts that should not be among them.
        n: words of a run; at least `SHORTEST`.

    Raises:
        ValueError: `n` is too small.
    """
    if n < SHORTEST:
        raise ValueError(f"n is {n}; runs of fewer than {SHORTEST} words are found everywhere")
    trained, tested = list(train), list(test)
    whole: dict[str, int] = {}
    for place, text in enumerate(trained):
        whole.setdefault(normalised(text), place)
    exact = {place: whole[key] for place, text in enumerate(tested) if (key := normalised(text)) in whole}
    words = {place: words_of(text) for place, text in enumerate(tested) if place not in exact}
    runs = {place: list(runs_of(each, min(n, len(each)))) for place, each in words.items() if len(each) >= SHORTEST}
    holders = _first_holders(trained, {run for each in runs.values() for run in each})
    overlaps: list[Overlap] = []
    for place, each in runs.items():
        shared = next((run for run in each if run in holders), None)
        if shared is not None:
            overlaps.append(Overlap(test=place, train=holders[shared], shared=shared))
    return Contamination(
        train_texts=len(trained),
        test_texts=len(tested),
        n=n,
        exact=tuple(Overlap(test=place, train=other, shared=tested[place]) for place, other in exact.items()),
        overlaps=tuple(overlaps),
        uncompared=len(words) - len(runs),
    )


def _first_holders(texts: Sequence[str], wanted: set[str]) -> dict[str, int]:
    """For each wanted run the first text it stands in; the runs' own lengths say which windows are looked at."""
    by_length: defaultdict[int, set[str]] = defaultdict(set)
    for run in wanted:
        by_length[run.count(" ") + 1].add(run)
    found: dict[str, int] = {}
    for place, text in enumerate(texts):
        words = words_of(text)
        for length, runs in by_length.items():
            for run in runs_of(words, length):
                if run in runs:
                    found.setdefault(run, place)
    return found
