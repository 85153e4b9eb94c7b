"""Generated tasks: twelve templates, each with a grid of parameters; a task is a template and one point of its grid."""

from __future__ import annotations

import inspect
import itertools
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_agents.envs.code import references

Inputs = Callable[[random.Random], list[Any]]  # the arguments of one call; of a program its input


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A family of tasks.

    `text` and the rest are filled in by the parameters' names. A program reads its input and prints what `solve`
    returns; a function is named `entry_point`.
    """

    name: str
    solve: Callable[..., Any]
    text: str
    grid: Mapping[str, Sequence[Any]]
    inputs: Inputs
    entry_point: str = ""  # "" for a program
    signature: str = ""  # of the function: "(numbers: list[int]) -> int"
    edges: tuple[tuple[Any, ...], ...] = ()  # arguments that are always tested
    float_tolerance: float = 0.0
    raises: tuple[str, ...] = ()  # what `solve` may raise

    def points(self) -> list[dict[str, Any]]:
        """Every combination of the parameters, in a fixed order."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def prompt(self, parameters: Mapping[str, Any]) -> str:
        """What is asked for."""
        what = self.text.format_map({name: _shown(value) for name, value in parameters.items()})
        if not self.entry_point:
            return f"Write a Python program. It reads from standard input and prints to standard output.\n\n{what}"
        return f"Write a Python function `{self.entry_point}{self.signature}`.\n\n{what}"

    def solution(self, parameters: Mapping[str, Any]) -> str:
        """The reference solution."""
        source = inspect.getsource(self.solve)
        given = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
        if not self.entry_point:
            return f'import sys\n\n\n{source}\n\nprint({self.solve.__name__}(sys.stdin.read(), {given}), end="")\n'
        argument = self.signature[1:].partition(":")[0]
        return (
            f"{source}\n\ndef {self.entry_point}{self.signature}:\n"
            f"    return {self.solve.__name__}({argument}, {given})\n"
        )

    def tests(self, parameters: Mapping[str, Any], count: int, rng: random.Random) -> list[dict[str, Any]]:
        """`count` different tests, the edge cases first."""
        arguments: list[Any] = [list(edge) for edge in self.edges]
        while len(arguments) < count:
            drawn = self.inputs(rng)
            if drawn not in arguments:
                arguments.append(drawn)
        return [self._test(each, parameters) for each in arguments[:count]]

    def _test(self, arguments: list[Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        try:
            value = self.solve(*arguments, **parameters)
        except Exception as error:
            if type(error).__name__ not in self.raises:
                raise
            return {"args": arguments, "raises": type(error).__name__}
        return {"args": arguments, "expected": value} if self.entry_point else {"stdin": arguments[0], "stdout": value}


def _shown(value: Any) -> str:
    return f"`{value}`" if isinstance(value, str) else str(value)


def _integers(low: int, high: int, least: int, most: int) -> Inputs:
    return lambda rng: [[rng.randint(low, high) for _ in range(rng.randint(least, most))]]


def _floats(low: int, high: int, least: int, most: int) -> Inputs:
    return lambda rng: [[rng.randint(low * 4, high * 4) / 4 for _ in range(rng.randint(least, most))]]


def _text(rng: random.Random) -> list[Any]:
    return ["".join(rng.choice(string.ascii_letters + " .,!") for _ in range(rng.randint(5, 40)))]


def _runs(rng: random.Random) -> list[Any]:
    return ["".join(rng.choice("abcxyz") * rng.randint(1, 7) for _ in range(rng.randint(2, 9)))]


def _rectangle(rng: random.Random) -> list[Any]:
    width, height = rng.randint(1, 4), rng.randint(1, 4)
    return [[[rng.randint(-9, 9) for _ in range(width)] for _ in range(height)]]


def _tally(rng: random.Random) -> list[Any]:
    separator = rng.choice((":", ";", "=", "|"))  # lines of another separator are lines without one
    names = [rng.choice(("ash", "birch", "cedar", "elm", "fir", "oak")) for _ in range(rng.randint(1, 12))]
    lines = [f"{name}{rng.choice((separator, ':', ';', '=', '|'))}{rng.randint(0, 40)}" for name in names]
    return ["\n".join(lines) + "\n"]


def _table(rng: random.Random) -> list[Any]:
    width = rng.randint(1, 5)
    rows = [" ".join(str(rng.randint(0, 99)) for _ in range(width)) for _ in range(rng.randint(5, 9))]
    return ["\n".join(rows) + "\n"]


_FUNCTIONS = (
    Template(
        name="multiples_sum",
        solve=references.multiples_sum,
        entry_point="sum_of_multiples",
        signature="(n: int) -> int",
        text="It returns the sum of all positive integers below n that are divisible by {a} or by {b} (or both).",
        grid={"a": range(2, 12), "b": range(12, 24)},
        inputs=lambda rng: [rng.randint(2, 2000)],
        edges=((0,), (24,)),
    ),
    Template(
        name="shift_letters",
        solve=references.shift_letters,
        entry_point="encode",
        signature="(text: str) -> str",
        text=(
            "It encodes a text. Count its letters (a to z and A to Z) from 0: letter number k is moved forward in the "
            "alphabet by {shift} + k * {step} places, going on with a after z. Capital letters stay capital. All "
            "other characters stay as they are and are not counted."
        ),
        grid={"shift": range(1, 26), "step": range(5)},
        inputs=_text,
        edges=(("",), ("Zebra, xyz!",)),
    ),
    Template(
        name="encode_runs",
        solve=references.encode_runs,
        entry_point="shorten",
        signature="(text: str) -> str",
        text=(
            "It shortens a text. Each run of at least {least} equal characters that stand side by side becomes the "
            "length of the run, then {mark}, then the character; shorter runs stay as they are. A run is as long as "
            "it can be."
        ),
        grid={"least": range(2, 7), "mark": tuple("*#@%&+~^/_")},
        inputs=_runs,
        edges=(("",), ("aaaaaaabbbbbbcccccddddeeeffg",)),
    ),
    Template(
        name="best_window",
        solve=references.best_window,
        entry_point="best_sum",
        signature="(numbers: list[int]) -> int | None",
        text=(
            "It returns the largest sum of {width} numbers of the list whose places in the list are exactly {skip} "
            "apart, one from the next. If the list is too short for that, it returns None."
        ),
        grid={"width": range(2, 9), "skip": range(1, 8)},
        inputs=_integers(-50, 50, 20, 70),
        edges=(([],), ([5, -3],)),
    ),
    Template(
        name="group_by_remainder",
        solve=references.group_by_remainder,
        entry_point="group_numbers",
        signature="(numbers: list[int]) -> dict[str, list[int]]",
        text=(
            "It groups numbers. Add {offset} to a number and take the remainder of the division by {modulus}, as "
            "Python's % gives it: that remainder, as a string, is the key of its group. A group is the sorted list of "
            "its numbers (as they were given), each once. Groups without numbers are left out."
        ),
        grid={"modulus": range(3, 13), "offset": range(1, 11)},
        inputs=_integers(-40, 60, 5, 25),
        edges=(([],), ([-1, 0, 1, 0],)),
    ),
    Template(
        name="digit_game",
        solve=references.digit_game,
        entry_point="steps_until_repeat",
        signature="(number: int) -> int",
        text=(
            "A number becomes the sum of its digits in base {base}, each raised to the power {power}. Starting with "
            "the number given (0 or more), this is repeated. The function returns after how many such steps a number "
            "comes up for the second time (the start counts as the first number)."
        ),
        grid={"base": range(3, 17), "power": range(2, 6)},
        inputs=lambda rng: [rng.randint(1, 10**6)],
        edges=((0,), (1,)),
    ),
    Template(
        name="checked_mean",
        solve=references.checked_mean,
        entry_point="mean",
        signature="(values: list[float]) -> float",
        text=(
            "It returns the mean of the values. If there are none it raises ValueError; otherwise, if a value is "
            "below {low} or above {high}, it raises OverflowError."
        ),
        grid={"low": range(-60, -9, 5), "high": range(10, 61, 5)},
        inputs=_floats(-30, 30, 1, 6),
        edges=(([],), ([-5, 5],), ([1000.5, 2],)),
        float_tolerance=1e-9,
        raises=("ValueError", "OverflowError"),
    ),
    Template(
        name="smooth",
        solve=references.smooth,
        entry_point="smoothed",
        signature="(values: list[float]) -> list[float]",
        text=(
            "It smooths a series. The first smoothed value is the first value. Each further one is the smoothed value "
            "before it, moved by {percent} per cent of the way to the value at its place. The result is the list of "
            "smoothed values without the first {drop} of them."
        ),
        grid={"percent": range(5, 100, 5), "drop": range(1, 6)},
        inputs=_floats(-100, 100, 2, 12),
        edges=(([],), ([4.0],)),
        float_tolerance=1e-9,
    ),
    Template(
        name="rotate_rings",
        solve=references.rotate_rings,
        entry_point="turn",
        signature="(rows: list[list[int]]) -> list[list[int]]",
        text=(
            "It turns a rectangle of numbers, given as a list of rows of equal length, clockwise by {turns} quarter "
            "turns. At each quarter turn {add} is added to every number. The result is a list of rows, too; the "
            "argument is not changed."
        ),
        grid={"turns": range(1, 8), "add": range(1, 11)},
        inputs=_rectangle,
        edges=(([[7]],), ([[1, 2, 3], [4, 5, 6]],)),
    ),
)

_PROGRAMS = (
    Template(
        name="tally_lines",
        solve=references.tally_lines,
        text=(
            "Each line is a name, then {separator}, then a whole number; a line without {separator} is ignored. Spaces "
            "around the name do not count. Add up the numbers of each name. For each name whose sum is at least "
            "{least}, print a line: name, one space, sum. The largest sum comes first; equal sums are ordered by name."
        ),
        grid={"separator": (":", ";", "=", "|"), "least": range(0, 41, 2)},
        inputs=_tally,
    ),
    Template(
        name="countdown",
        solve=references.countdown,
        text=(
            "The input is one whole number, 0 or more. Print it and the numbers that come from it by taking away "
            "{step} again and again, as long as they are not negative, one in a line. Then print a line {word}."
        ),
        grid={"step": range(1, 12), "word": ("end", "lift-off", "zero", "stop", "fin", "ready", "bye", "over")},
        inputs=lambda rng: [f"{rng.randint(1, 45)}\n"],
        edges=(("0\n",),),
    ),
    Template(
        name="column_sums",
        solve=references.column_sums,
        text=(
            "The input is a table: lines of whole numbers between spaces, each line with the same count of them. "
            "Leave out the first {skip} lines. Add up each column of the others, and print in one line, between "
            "spaces, the remainder of each sum divided by {modulus}."
        ),
        grid={"skip": range(1, 5), "modulus": range(5, 30)},
        inputs=_table,
    ),
)

TEMPLATES = (*_FUNCTIONS, *_PROGRAMS)
