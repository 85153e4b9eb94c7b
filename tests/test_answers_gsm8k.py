"""Every gold answer of GSM8K's test split, rewritten in many ways, against the answer as the data set writes it."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from answers_pairs import families

from miles_agents.answers import equivalent, extract, parse_number

SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
GSM8K = SHARED / "gsm8k" / "test.jsonl"
FAMILIES = families()
SHOWN = 5

needs_gsm8k = pytest.mark.skipif(not GSM8K.is_file(), reason=f"no {GSM8K}: MILES_AGENTS_DATA names the folder of data")


def golds() -> list[tuple[str, Fraction]]:
    """The answer as it is written behind `####`, and its value."""
    found = []
    for line in GSM8K.read_text(encoding="utf-8").splitlines():
        text = extract(json.loads(line)["answer"])
        assert text is not None
        value = parse_number(text)
        assert value is not None
        found.append((text, value))
    return found


def test_there_are_at_least_twelve_families_half_of_them_by_another_hand() -> None:
    assert len(families("families.py")) >= 6
    assert len(families("independent_families.py")) >= 6
    assert len(FAMILIES) >= 12


@needs_gsm8k
@pytest.mark.parametrize("family", FAMILIES)
def test_every_gold_equals_its_true_forms_and_none_of_its_near_misses(family: str) -> None:
    true_form, near_miss = FAMILIES[family]
    every = golds()
    assert len(every) == 1_319
    wrong = []
    for place, (gold, value) in enumerate(every):
        chance = Random(f"{family} {place}")
        for expected, write in ((True, true_form), (False, near_miss)):
            answer = write(value, chance)
            verdicts = equivalent(gold, answer).correct, equivalent(answer, gold).correct
            if verdicts != (expected, expected):
                wrong.append((gold, answer, expected, verdicts))
    assert wrong[:SHOWN] == []
