"""Rubrics: named criteria with weights, and the open tasks they belong to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from miles_agents.errors import DataError, did_you_mean

PASSED = "answer"  # the reward beside those of the criteria: what accuracy counts
OWN_NAMES = (PASSED, "judge_failed")  # of rewards that no criterion can have
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,39}")
_KEYS = ("name", "description", "weight", "keywords")


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One thing that a reply gets points for."""

    name: str  # of the reward, too
    description: str  # for the judge
    weight: float = 1.0  # relative to the other criteria
    keywords: tuple[tuple[str, ...], ...] = ()  # for `judge=rules`: of each group the reply has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """What a reply is judged by; plain data in `Task.answer`."""

    criteria: tuple[Criterion, ...]
    reference: str = ""  # a good reply, shown to the judge; empty: there is none
    max_words: int | None = None  # for `judge=rules`: a longer reply gets nothing

    @property
    def names(self) -> tuple[str, ...]:
        """Of the criteria, in order."""
        return tuple(each.name for each in self.criteria)

    def weights(self) -> dict[str, float]:
        """By criterion; their sum is 1."""
        total = math.fsum(each.weight for each in self.criteria)
        return {each.name: each.weight / total for each in self.criteria}

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        criteria = [{**asdict(each), "keywords": [list(group) for group in each.keywords]} for each in self.criteria]
        return {"criteria": criteria, "reference": self.reference, "max_words": self.max_words}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rubric:
        """The reverse of `as_json`."""
        criteria = tuple(
            Criterion(**{**each, "keywords": tuple(tuple(group) for group in each["keywords"])})
            for each in data["criteria"]
        )
        return cls(criteria=criteria, reference=data["reference"], max_words=data["max_words"])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTask:
    """A question without one right answer."""

    id: str
    question: str
    rubric: Rubric
    kind: str = ""  # a row of its own in the tables; empty: none


def read_criteria(cell: Any, place: str) -> tuple[Criterion, ...]:
    """The column `rubric` of a data file: text, a mapping of names to descriptions, or a list of criteria.

    Raises:
        DataError: it is none of these, or a criterion cannot be used; `place` is named.
    """
    if isinstance(cell, str) and cell.strip():
        return (Criterion(name="quality", description=cell.strip()),)
    rows: Iterable[Any] = ()
    if isinstance(cell, Mapping):
        rows = [{"name": name, "description": text} for name, text in cell.items()]
    elif isinstance(cell, list):
        rows = cell
    criteria = tuple(_criterion(row, f"{place}, rubric") for row in rows)
    if not criteria:
        raise DataError(
            f"{place}: 'rubric' is text, a mapping of names to descriptions, or a list of "
            '{"name": …, "description": …, "weight": …}; got ' + repr(cell)[:80]
        )
    names = [each.name for each in criteria]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{place}: two criteria are named {twice[0]!r}")
    if math.fsum(each.weight for each in criteria) <= 0:
        raise DataError(f"{place}: all criteria have the weight 0")
    return criteria


def _criterion(row: Any, place: str) -> Criterion:
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: a criterion is an object with 'name' and 'description'; got {row!r:.80}")
    unknown = sorted(set(row) - set(_KEYS))
    if unknown:
        raise DataError(f"{place}: a criterion has no {unknown[0]!r}. {did_you_mean(str(unknown[0]), _KEYS)}")
    name, description = row.get("name"), row.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in OWN_NAMES:
        raise DataError(
            f"{place}: 'name' is {name!r}; it is a letter, then at most 39 letters, digits, spaces, - or _, and "
            f"neither {' nor '.join(OWN_NAMES)}"
        )
    if not isinstance(description, str) or not description.strip():
        raise DataError(f"{place}: criterion {name!r} has no 'description'")
    return Criterion(
        name=name,
        description=description.strip(),
        weight=_weight(row.get("weight", 1.0), f"{place}, {name!r}"),
        keywords=_keywords(row.get("keywords", []), f"{place}, {name!r}"),
    )


def _weight(value: Any, place: str) -> float:
    try:
        weight = math.nan if isinstance(value, bool) else float(value)  # readers give numbers as text
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise DataError(f"{place}: 'weight' is {value!r}; it is a number of 0 or more")
    return weight


def _keywords(cell: Any, place: str) -> tuple[tuple[str, ...], ...]:
    groups = [[group] if isinstance(group, str) else group for group in cell] if isinstance(cell, list) else [None]
    if not all(_are_words(group) for group in groups):
        raise DataError(f"{place}: 'keywords' is a list of words, or of lists of words that count as one")
    return tuple(tuple(group) for group in groups if group)


def _are_words(group: Any) -> bool:
    words: Sequence[Any] = group if isinstance(group, list) else ()
    return bool(words) and all(isinstance(word, str) and word.strip() for word in words)
