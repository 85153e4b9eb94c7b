"""A negotiation: who gets which of some items, worth different things to each side.

After the task of Lewis et al. 2017 (arXiv 1706.05125, section 2): each side knows its own values alone, which add up
to 10 over all the items.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from miles_agents.envs.self_play.game import FIRST, SEATS, SECOND, Game, Start

ITEMS = ("books", "hats", "balls")
WORTH = 10  # of all items together, to each side
MAX_MESSAGES = 10  # of both sides together
_SETTINGS = 600
_SEED = 20_170_616
_COMMAND = re.compile(r"^(?:PROPOSE:(?P<items>.*)|(?P<accept>ACCEPT))$")
_AMOUNT = re.compile(r"(\d{1,3}) (\w+)")
_SHOWN_CHARS = 2000


class Negotiation(Game):
    """A seat's reward is what its items are worth to it, of 10; nothing without a deal."""

    rules = (
        "Two sides share out some items. Each side knows what they are worth to itself alone. Talk, and end your "
        f"message with one of these lines, or with neither to talk on:\nPROPOSE: 1 books, 0 hats, 2 balls   (what YOU get)\n"  # noqa: E501
        f"ACCEPT   (the other's last proposal)\nAfter {MAX_MESSAGES} messages without a deal nobody gets anything."
    )

    @classmethod
    def starts(cls) -> Iterator[Start]:
        """Counts of 1 to 4 and values of which 10 can be made, drawn from a fixed seed; each setting once."""
        rng = np.random.default_rng(_SEED)
        seen: set[str] = set()
        while len(seen) < _SETTINGS:
            counts = tuple(map(int, rng.integers(1, 5, size=len(ITEMS))))
            possible = _all_values(counts)
            if not possible:
                continue
            values = [possible[int(rng.integers(len(possible)))] for _ in SEATS]
            name = "-".join("".join(f"{number:x}" for number in each) for each in (counts, *values))
            if name not in seen:
                seen.add(name)
                yield Start(f"items-{name}", {"counts": list(counts), FIRST: list(values[0]), SECOND: list(values[1])})

    def __init__(self, setting: Mapping[str, Any]) -> None:
        self._counts = tuple(int(count) for count in setting["counts"])
        self._values = {seat: tuple(int(value) for value in setting[seat]) for seat in SEATS}
        self._said: list[str] = []
        self._proposal: tuple[str, tuple[int, ...]] | None = None  # who gets what, by the last PROPOSE
        self._deal: Mapping[str, float] | None = None

    @property
    def to_act(self) -> str:
        """In turn."""
        return SEATS[len(self._said) % 2]

    def told(self, seat: str, *, at_first: bool) -> str:
        """Its own values at first, and what the other said last."""
        own = zip(self._counts, ITEMS, self._values[seat], strict=True)
        items = "; ".join(f"{count} {item}, worth {value} each" for count, item, value in own)
        values = [f"There are, with what they are worth to you: {items}."] if at_first else []
        said = [f"The other side says:\n{self._said[-1]}"] if self._said else []
        return "\n\n".join([*values, *said] or ["Begin."])

    def play(self, seat: str, text: str) -> str:
        """A message, with or without a command in its last line."""
        last = text.strip().rpartition("\n")[2].strip()
        command = _COMMAND.match(last)
        if command is None:
            self._say(text)
            return ""
        if command["accept"]:
            return self._accept(seat, text)
        share, problem = self._share(command["items"])
        if problem:
            return problem
        self._proposal = seat, share
        self._say(text)
        return ""

    @property
    def result(self) -> Mapping[str, float] | None:
        """By the deal, or nothing when the messages are used up."""
        if self._deal is None and len(self._said) >= MAX_MESSAGES:
            return dict.fromkeys(SEATS, 0.0)
        return self._deal

    @classmethod
    def winning_line(cls, setting: Mapping[str, Any]) -> Sequence[str]:
        """The second side offers everything, the first takes it."""
        nothing = ", ".join(f"0 {item}" for item in ITEMS)
        return ["What do you offer?", f"All of it.\nPROPOSE: {nothing}", "ACCEPT"]

    def _accept(self, seat: str, text: str) -> str:
        if self._proposal is None or self._proposal[0] == seat:
            return "There is no proposal of the other side to accept."
        proposer, share = self._proposal
        rest = tuple(count - taken for count, taken in zip(self._counts, share, strict=True))
        self._deal = {proposer: self._worth(proposer, share), seat: self._worth(seat, rest)}
        self._say(text)
        return ""

    def _share(self, written: str) -> tuple[tuple[int, ...], str]:
        amounts: dict[str, int] = {}
        for part in written.split(","):
            found = _AMOUNT.fullmatch(part.strip())
            if found is None or found[2] not in ITEMS or found[2] in amounts:
                return (
                    (),
                    f"PROPOSE takes amounts of {', '.join(ITEMS)}, each once, e.g. PROPOSE: 1 books, 0 hats, 2 balls",
                )
            amounts[found[2]] = int(found[1])
        share = tuple(amounts.get(item, 0) for item in ITEMS)
        if any(taken > count for taken, count in zip(share, self._counts, strict=True)):
            there = ", ".join(f"{count} {item}" for count, item in zip(self._counts, ITEMS, strict=True))
            return (), f"There are only {there}."
        return share, ""

    def _worth(self, seat: str, share: Sequence[int]) -> float:
        return sum(taken * value for taken, value in zip(share, self._values[seat], strict=True)) / WORTH

    def _say(self, text: str) -> None:
        self._said.append(text.strip()[:_SHOWN_CHARS])


def _all_values(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Every way to value the items with Σ count × value = 10; there may be none (counts of 4, 4, 4)."""
    choices = product(*(range(WORTH // count + 1) for count in counts))
    return [values for values in choices if sum(c * v for c, v in zip(counts, values, strict=True)) == WORTH]


_WORTHS = re.compile(r"(\d) (\w+), worth (\d+) each")
_OFFER = re.compile(r"^PROPOSE: (.*)$", re.MULTILINE)


def _keeps_what_it_likes(text: str, rng: np.random.Generator) -> str:
    """Proposes all items that are worth anything to it, once; takes any proposal after that."""
    worths = _WORTHS.findall(text)
    if not worths:
        return "ACCEPT" if _OFFER.search(text) else "I stay with what I said."
    share = ", ".join(f"{count if int(value) else 0} {item}" for count, item, value in worths)
    return f"I should like this.\nPROPOSE: {share}"


Negotiation.opponents = {"greedy": _keeps_what_it_likes}
