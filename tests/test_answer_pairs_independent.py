"""The independent answer pairs and rewrite families, judged by exact arithmetic alone: no checker runs here."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections import Counter
from fractions import Fraction
from math import isqrt
from pathlib import Path

import pytest
from answer_pairs.independent_families import FAMILIES

PAIRS = Path(__file__).parent / "answer_pairs" / "independent_pairs.jsonl"
OPTIONS = {"percent_asked", "base_asked", "choices"}
VALUES = 300

Meaning = Fraction | frozenset[Fraction] | tuple[str, ...]


def pairs() -> list[dict[str, object]]:
    return [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]


# --- an exact reading of what the families write ----------------------------------------------------------------------

SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
WRAPPED = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"####\s*(.*)",
        r"\\boxed\{(.*)\}",
        r"\$\$(.+)\$\$",
        r"\$([^$]+)\$",
        r"\\\((.+)\\\)",
        r"\\\[(.+)\\\]",
        r"(.*[\d}$])\.",
        r"\\displaystyle(.*)",
    )
]
SEPARATED = re.compile(r"(?<![\d.])\d{1,3}(?:(?:,\\!|\{,\}|\\,|[,  ])\d{3})+(?!\d)")
UNITS = re.compile(
    r"\\text\{ (?:dollars|km|cm)\}(?:\^2)?|\\,\\mathrm\{kg\}|\^\\circ|°|[€£]|\\?\$"
    r"| (?:dollars|euros|cm|apples|degrees|mph)$"
)
PERCENT = re.compile(r"(?:\\?%| percent| per cent|\\text\{ percent\})$")
BASED = re.compile(r"(-?)(\d+)_\{?(?:\\text\{)?(\w+?)\}*$")
MIXED = re.compile(r"(-?)(\d+)(?: (\d+)/(\d+)|\\[dt]?frac\{(\d+)\}\{(\d+)\})")
BASES = {"two": 2, "three": 3, "five": 5, "eight": 8}


def tidied(text: str) -> str:
    """Without Unicode spellings and wrapping."""
    text = re.sub("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda run: "^{" + "".join(SUPERSCRIPTS[sign] for sign in run[0]) + "}", text)
    text = re.sub("[−‑–—‐]", "-", unicodedata.normalize("NFKC", text)).strip()
    for pattern in WRAPPED * 3:
        if found := pattern.fullmatch(text):
            text = found[1].strip()
    return text.replace(r"\left", "").replace(r"\right", "")


def means(text: str) -> Meaning:
    """The exact number or set of numbers; a tuple for what is no number: relations, points, roots of no square."""
    text = tidied(text)
    if re.search(r"[<>]|\\neq|\\geq", text):
        return ("relation", text)
    if found := re.fullmatch(r"[xynk]\s*=\s*(.*)", text):
        text = found[1]
    if re.fullmatch(r"\([^()]*,[^()]*\)", text):
        return ("point", text)
    if found := re.fullmatch(r"(?:\\pm|±)\s*(.*)", text):
        return frozenset({number(found[1]), -number(found[1])})
    if found := re.fullmatch(r"(-?)\\sqrt\{(.*)\}", text):
        return square_root(-1 if found[1] else 1, number(found[2]))
    text = SEPARATED.sub(lambda run: re.sub(r"\D", "", run[0]), text)
    text = UNITS.sub("", text).strip()
    several = re.split(r",|;| and | or ", re.sub(r"\\[{}]", "", text))
    values = frozenset(number(part) for part in several)
    return next(iter(values)) if len(values) == 1 else values


def square_root(sign: int, square: Fraction) -> Meaning:
    top, below = isqrt(square.numerator), isqrt(square.denominator)
    exact = top * top == square.numerator and below * below == square.denominator
    return Fraction(sign * top, below) if exact else ("root", f"{sign}*sqrt({square})")


def number(text: str) -> Fraction:
    """The value of sums, products, fractions, mixed numbers, powers of ten, percents, units and bases."""
    if found := PERCENT.search(text):
        return number(text[: found.start()]) / 100
    text = text.strip()
    if found := BASED.fullmatch(text):
        base = BASES.get(found[3]) or int(found[3])
        return Fraction((-1 if found[1] else 1) * int(found[2], base))
    if found := MIXED.fullmatch(text):
        part = Fraction(int(found[3] or found[5]), int(found[4] or found[6]))
        return (int(found[2]) + part) * (-1 if found[1] else 1)
    text = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = re.sub(r"\\times|\\cdot|[×·]", "*", text).replace("^", "**").replace("{", "(").replace("}", ")")
    text = re.sub(r"\d+(?:\.\d+)?(?:[eE]-?\d+)?", lambda digits: f"F('{digits[0]}')", text)
    return Fraction(eval(text, {"__builtins__": {}, "F": Fraction}))


def a_value(rng: random.Random) -> Fraction:
    """Whole numbers of every length up to 10^9, with some decimals, fractions and negative numbers."""
    whole = rng.randrange(10 ** rng.randint(1, 9))
    kind = rng.random()
    if kind < 0.2:
        whole %= 10**5
        value = whole + Fraction(rng.randrange(1000), 10 ** rng.randint(1, 3))
    elif kind < 0.25:
        value = Fraction(whole % 1000, rng.choice((3, 7, 12)))
    else:
        value = Fraction(whole)
    return -value if rng.random() < 0.2 else value


# --- the file of pairs ------------------------------------------------------------------------------------------------


def test_every_line_is_a_pair_with_a_verdict_a_family_and_a_reason() -> None:
    for pair in pairs():
        assert set(pair) - {"options"} == {"gold", "answer", "equal", "family", "why"}
        assert isinstance(pair["gold"], str)
        assert isinstance(pair["answer"], str)
        assert isinstance(pair["equal"], bool)
        assert pair["family"]
        assert pair["why"]
        options = pair.get("options", {})
        assert isinstance(options, dict)
        assert set(options) <= OPTIONS
        assert all(value is True for value in options.values())


def test_there_are_many_pairs_and_none_comes_twice() -> None:
    keys = Counter((pair["gold"], pair["answer"]) for pair in pairs())
    assert len(keys) >= 200
    assert [key for key, times in keys.items() if times > 1] == []


def test_both_verdicts_hold_at_least_two_fifths_of_the_pairs() -> None:
    verdicts = Counter(pair["equal"] for pair in pairs())
    assert min(verdicts[True], verdicts[False]) >= 0.4 * verdicts.total()


def test_every_kind_of_pair_has_both_verdicts() -> None:
    seen: dict[object, set[object]] = {}
    for pair in pairs():
        seen.setdefault(pair["family"], set()).add(pair["equal"])
    assert {family: verdicts for family, verdicts in seen.items() if verdicts != {True, False}} == {}


# --- the families -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("-2 1/2", Fraction(-5, 2)),
        ("2\\frac{1}{2}", Fraction(5, 2)),
        ("2 \\cdot \\frac{1}{2}", Fraction(1)),
        ("1\u202f234", Fraction(1234)),
        ("12,34", frozenset({Fraction(12), Fraction(34)})),
        ("−1.5×10⁻³", Fraction(-3, 2000)),
        ("12.5\\%", Fraction(1, 8)),
        ("1011_{\\text{two}}", Fraction(11)),
        ("\\pm 17", frozenset({Fraction(17), Fraction(-17)})),
        ("$\\boxed{４２}$.", Fraction(42)),
        ("\\sqrt{2}", ("root", "1*sqrt(2)")),
        ("-\\sqrt{6.25}", Fraction(-5, 2)),
        ("$18", Fraction(18)),
        ("17 + 1", Fraction(18)),
    ],
)
def test_the_reading_of_this_file_agrees_with_values_worked_out_by_hand(text: str, meaning: Meaning) -> None:
    assert means(text) == meaning


@pytest.mark.parametrize("name", FAMILIES)
def test_true_forms_equal_the_value_and_near_misses_do_not(name: str) -> None:
    true_form, near_miss = FAMILIES[name]
    rng = random.Random(name)
    special = [Fraction(text) for text in ("0", "1", "-1", "7", "1000", "-1234", "1000000000", "0.5", "-2.05", "1/3")]
    for value in special * 5 + [a_value(rng) for _ in range(VALUES)]:
        text = true_form(value, rng)
        assert means(text) == value, (value, text)
        text = near_miss(value, rng)
        assert means(text) != value, (value, text)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_writes_the_same_texts_from_the_same_seed_and_many_texts_from_many(name: str) -> None:
    for write in FAMILIES[name]:
        texts = [write(Fraction(123456), random.Random(seed)) for seed in range(40)]
        assert texts == [write(Fraction(123456), random.Random(seed)) for seed in range(40)]
        assert len(set(texts)) > 1 or name in {"commas", "root", "fullwidth"}
