"""An invented world: people, books, guilds, towns, rivers and lakes, each with a document, and questions about them.

Every document says what its subject is related to and nothing about what those things are related to: the answer to a
question of several steps stands in no document that the question names, and is found by going from one to the next.
The things of one split are related to things of the same split only, and no name is in two splits.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from miles_agents.envs.splits import split_of
from miles_agents.tools.search import Document

SPLITS = ("train", "validation", "test")
MAX_HOPS = 4

_SOUNDS = tuple("".join(each) for each in product("bdfgklmnprstvz", "aeiou"))
_ENDS = ("l", "n", "r", "s", "th", "x", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Things of one sort: how they are called, what they are related to, how that is said."""

    name: str  # "{}" is the made-up word
    share: float  # of a world's things
    relations: Mapping[str, tuple[str, str]]  # relation → kind of what it leads to, sentence of the document
    colour: Sequence[str]  # sentences that lead nowhere


_KINDS = {
    "person": _Kind(
        name="{} {}",
        share=0.36,
        relations={
            "birthplace": ("town", "{} was born in {}."),
            "guild": ("guild", "{} belongs to {}."),
            "teacher": ("person", "{} was taught by {}."),
        },
        colour=("{} is known for {} letters.", "{} kept {} lamps burning at night.", "{} spoke {} dialects."),
    ),
    "book": _Kind(
        name="The {} Ledger",
        share=0.22,
        relations={
            "author": ("person", "{} was written by {}."),
            "place of printing": ("town", "{} was printed in {}."),
        },
        colour=("{} has {} chapters.", "{} is bound in {} sheets of cloth."),
    ),
    "guild": _Kind(
        name="the Guild of {}",
        share=0.16,
        relations={
            "seat": ("town", "{} has its seat in {}."),
            "founder": ("person", "{} was founded by {}."),
        },
        colour=("{} counts {} members.", "{} meets {} times a year."),
    ),
    "town": _Kind(
        name="{}",
        share=0.14,
        relations={"river": ("river", "{} lies on {}.")},
        colour=("{} has {} gates.", "{} holds a market {} times a month."),
    ),
    "river": _Kind(
        name="the river {}",
        share=0.08,
        relations={"lake": ("lake", "{} flows into {}.")},
        colour=("{} has {} fords.", "{} is {} leagues long."),
    ),
    "lake": _Kind(
        name="Lake {}",
        share=0.04,
        relations={},
        colour=("{} has {} islands.", "{} is {} fathoms deep."),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, its answer, and the documents that lead there, in order."""

    text: str
    about: str  # the name of the thing that it begins with
    answer: str
    chain: tuple[str, ...]  # ids of documents


@dataclass(slots=True)
class _Thing:
    kind: str
    name: str
    id: str = ""
    related: dict[str, _Thing] = field(default_factory=dict)
    tells: frozenset[str] = frozenset()  # the names that its document tells, besides its own


class World:
    """All things of all splits, for one seed.

    Args:
        things: about how many for training; validation and test have a quarter as many each.
        seed: another seed gives another world.
    """

    def __init__(self, things: int, seed: int = 0) -> None:
        self._seed = seed
        self._things = {split: _make_things(split, things, seed) for split in SPLITS}
        everything = [thing for each in self._things.values() for thing in each]
        random.Random(f"{seed}/documents").shuffle(everything)
        for number, thing in enumerate(everything, 1):
            thing.id = f"d{number}"  # says nothing of split or kind
        self.documents = tuple(_document(thing, seed) for thing in everything)

    def questions(self, split: str, hops: Sequence[int], count: int) -> list[Question]:
        """At most `count` different questions of a split; fewer if its things give no more.

        Args:
            split: train, validation or test.
            hops: the numbers of documents that a question leads through, 1 to 4; each is about equally common.
            count: how many questions.
        """
        rng = random.Random(f"{self._seed}/{split}/questions")
        by_hops = [list(_questions(self._things[split], hop)) for hop in hops]
        for each in by_hops:
            rng.shuffle(each)
        found: list[Question] = []
        while any(by_hops) and len(found) < count:
            found.extend(each.pop() for each in by_hops if each)
        return found[:count]


def _make_things(split: str, things: int, seed: int) -> list[_Thing]:
    rng = random.Random(f"{seed}/{split}/{things}")
    size = things if split == "train" else things // 4
    names = _names(split, rng)
    by_kind: dict[str, list[_Thing]] = {}
    for kind, about in _KINDS.items():
        words = about.name.count("{}")
        count = max(3, round(about.share * size))
        by_kind[kind] = [_Thing(kind, about.name.format(*islice(names, words))) for _ in range(count)]
    for kind, about in _KINDS.items():
        for thing in by_kind[kind]:
            for relation, (to, _) in about.relations.items():
                thing.related[relation] = _other_than(thing, by_kind[to], rng)
            thing.tells = frozenset(other.name for other in thing.related.values())
    return [thing for each in by_kind.values() for thing in each]


def _other_than(thing: _Thing, things: Sequence[_Thing], rng: random.Random) -> _Thing:
    while True:
        other = rng.choice(things)
        if other is not thing:
            return other


def _names(split: str, rng: random.Random) -> Iterator[str]:
    """Made-up words of a split, each once."""
    seen: set[str] = set()
    while True:
        word = "".join(rng.choices(_SOUNDS, k=rng.choice((2, 3)))) + rng.choice(_ENDS)
        if word not in seen and split_of(word) == split:
            seen.add(word)
            yield word.capitalize()


def _document(thing: _Thing, seed: int) -> Document:
    rng = random.Random(f"{seed}/{thing.name}")
    about = _KINDS[thing.kind]
    said = [sentence.format(thing.name, thing.related[name].name) for name, (_, sentence) in about.relations.items()]
    said += [sentence.format(thing.name, rng.randint(2, 99)) for sentence in about.colour]
    rng.shuffle(said)
    text = " ".join(_capital(sentence) for sentence in said)
    return Document(id=thing.id, title=_capital(thing.name), text=text)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _questions(things: Sequence[_Thing], hops: int) -> Iterator[Question]:
    told_with: defaultdict[str, set[str]] = defaultdict(set)  # by name: the names it shares a document with
    for thing in things:
        names = {thing.name, *thing.tells}
        for name in names:
            told_with[name] |= names
    for start in things:
        for path, places in _walks(start, hops):
            answer = places[-1]
            shorter = any(answer is place or answer.name in place.tells for place in places[:-2])
            if shorter or (hops > 1 and answer.name in told_with[start.name]):
                continue
            asked = "".join(f"the {relation} of " for relation in reversed(path)) + start.name
            yield Question(
                text=f"Name {asked}.",
                about=start.name,
                answer=answer.name,
                chain=tuple(place.id for place in places[:-1]),
            )


def _walks(start: _Thing, hops: int) -> Iterator[tuple[tuple[str, ...], tuple[_Thing, ...]]]:
    """The ways of so many relations from a thing on: their relations, and the things they pass."""
    if hops == 0:
        yield (), (start,)
        return
    for relation, other in start.related.items():
        for path, places in _walks(other, hops - 1):
            yield (relation, *path), (start, *places)
