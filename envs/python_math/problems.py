"""Arithmetic word problems, generated from a seed.

| level | problem |
|---|---|
| 1 | one step (+, −, ×) with three-digit numbers |
| 2 | two steps, numbers of two or three digits |
| 3 | the problems of level 2 (the environment makes the tool unreliable) |

The vocabulary is small and the numbers stand in the order in which the expression uses them, on purpose: a model of a
few hundred thousand parameters must be able to read it, while the results are too large to be known by heart.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from miles_agents.envs.splits import split_of

LEVELS = (1, 2, 3)

_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eli", "Finn", "Gus", "Hana", "Ivy", "Jon")
_THINGS = ("bricks", "candles", "drums", "forks", "hats", "keys", "lamps", "plates", "ropes", "tiles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One word problem and its solution."""

    question: str
    expression: str  # Python, e.g. "(214+350)*12"; its value is `answer`
    answer: int  # never negative
    level: int
    kind: str  # the operators in order: "add", "mul_sub", …


@dataclass(frozen=True, slots=True, kw_only=True)
class _Template:
    kind: str
    text: str
    expression: str
    value: Callable[[int, int, int], int]
    numbers: Callable[[random.Random], tuple[int, int, int]]


def _three_digits(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(100, 999), rng.randint(100, 999), 0


def _three_digits_falling(rng: random.Random) -> tuple[int, int, int]:
    high, low, _ = _three_digits(rng)
    return max(high, low), min(high, low), 0


def _gain_then_loss(rng: random.Random) -> tuple[int, int, int]:
    first, second = rng.randint(100, 999), rng.randint(100, 999)
    return first, second, rng.randint(100, min(999, first + second))


def _two_losses(rng: random.Random) -> tuple[int, int, int]:
    whole = rng.randint(300, 999)
    return whole, rng.randint(100, whole // 2), rng.randint(100, whole // 2)


def _product_then_third(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(100, 999), rng.randint(100, 999), rng.randint(100, 999)


def _sum_times_few(rng: random.Random) -> tuple[int, int, int]:
    return rng.randint(100, 999), rng.randint(100, 999), rng.randint(11, 99)


def _difference_times_few(rng: random.Random) -> tuple[int, int, int]:
    whole = rng.randint(300, 999)
    return whole, rng.randint(100, whole), rng.randint(11, 99)


def _one_step(kind: str, operator: str, texts: tuple[str, ...]) -> list[_Template]:
    value: Callable[[int, int, int], int] = {
        "+": lambda a, b, c: a + b,
        "-": lambda a, b, c: a - b,
        "*": lambda a, b, c: a * b,
    }[operator]
    numbers = _three_digits_falling if operator == "-" else _three_digits
    expression = f"{{a}}{operator}{{b}}"
    return [_Template(kind=kind, text=text, expression=expression, value=value, numbers=numbers) for text in texts]


_ONE_STEP = (
    *_one_step(
        "add",
        "+",
        (
            "{name} owns {a} {things} and gets {b} more. How many {things} does {name} own now?",
            "One room holds {a} {things} and another room holds {b}. How many {things} do both rooms hold?",
            "{name} made {a} {things} in May and {b} in June. How many {things} did {name} make?",
        ),
    ),
    *_one_step(
        "sub",
        "-",
        (
            "{name} owns {a} {things} and loses {b}. How many {things} does {name} still own?",
            "Of {a} {things} in a room, {b} were taken out. How many {things} stayed?",
            "{name} wants {a} {things} and has {b}. How many more {things} does {name} want?",
        ),
    ),
    *_one_step(
        "mul",
        "*",
        (
            "There are {a} rooms with {b} {things} in each. How many {things} are there?",
            "{name} makes {a} {things} a day for {b} days. How many {things} does {name} make?",
            "A truck carries {a} {things}. How many {things} do {b} such trucks carry?",
        ),
    ),
)

_TWO_STEPS = (
    _Template(
        kind="add_sub",
        text="{name} owns {a} {things}, gets {b} more and then loses {c}. How many {things} does {name} still own?",
        expression="{a}+{b}-{c}",
        value=lambda a, b, c: a + b - c,
        numbers=_gain_then_loss,
    ),
    _Template(
        kind="sub_sub",
        text="Of {a} {things} in a room, {b} were taken out in May and {c} in June. How many {things} stayed?",
        expression="{a}-{b}-{c}",
        value=lambda a, b, c: a - b - c,
        numbers=_two_losses,
    ),
    _Template(
        kind="mul_add",
        text="There are {a} rooms with {b} {things} in each, and {c} more outside. How many {things} are there?",
        expression="{a}*{b}+{c}",
        value=lambda a, b, c: a * b + c,
        numbers=_product_then_third,
    ),
    _Template(
        kind="mul_sub",
        text="{name} makes {a} {things} a day for {b} days and sells {c}. How many {things} does {name} still own?",
        expression="{a}*{b}-{c}",
        value=lambda a, b, c: a * b - c,
        numbers=_product_then_third,
    ),
    _Template(
        kind="add_mul",
        text="A truck carries {a} {things} inside and {b} on top. How many {things} do {c} such trucks carry?",
        expression="({a}+{b})*{c}",
        value=lambda a, b, c: (a + b) * c,
        numbers=_sum_times_few,
    ),
    _Template(
        kind="sub_mul",
        text="A truck carried {a} {things} and lost {b}. How many {things} do {c} such trucks still carry?",
        expression="({a}-{b})*{c}",
        value=lambda a, b, c: (a - b) * c,
        numbers=_difference_times_few,
    ),
)


def generate_problems(level: int, split: str, count: int, seed: int = 0) -> list[Problem]:
    """`count` different problems of a level (1, 2 or 3) that belong to a split.

    The split is decided by the problem's expression, so that neither a question nor its arithmetic in other words is
    in two splits, whatever the seeds, counts and levels. The same arguments give the same list; a larger count only
    adds to its end.

    Raises:
        ValueError: no such level or split.
    """
    if level not in LEVELS:
        raise ValueError(f"level is {level}; it can be 1, 2 or 3")
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split is {split!r}; it can be train, validation or test")
    templates = _ONE_STEP if level == 1 else _TWO_STEPS
    rng = random.Random(f"{seed}/{1 if level == 1 else 2}/{split}")
    problems: list[Problem] = []
    seen: set[str] = set()
    while len(problems) < count:
        problem = _draw(rng, templates, level)
        if problem.question not in seen and split_of(problem.expression) == split:
            seen.add(problem.question)
            problems.append(problem)
    return problems


def _draw(rng: random.Random, templates: tuple[_Template, ...], level: int) -> Problem:
    template = rng.choice(templates)
    a, b, c = template.numbers(rng)
    words = {"name": rng.choice(_NAMES), "things": rng.choice(_THINGS), "a": a, "b": b, "c": c}
    return Problem(
        question=template.text.format_map(words),
        expression=template.expression.format_map(words),
        answer=template.value(a, b, c),
        level=level,
        kind=template.kind,
    )
