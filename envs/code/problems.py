"""Problems: a prompt, hidden tests, perhaps a reference solution; generated ones, and those of data files."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from miles_agents.envs.code.checks import Check, read_check
from miles_agents.envs.code.rows import Rows
from miles_agents.envs.code.templates import TEMPLATES, Template
from miles_agents.envs.splits import split_of
from miles_agents.errors import DataError, did_you_mean

_SEED = 0  # the tasks of a split are always the same
_KEYS = ("id", "prompt", "entry_point", "tests", "examples", "solution", "float_tolerance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. Everything in it is a JSON value, so that it fits into a task."""

    id: str
    prompt: str
    entry_point: str = ""  # the function that is called; "" for a program
    tests: Sequence[Any] = ()  # rows, see `checks.py`; hidden
    examples: Sequence[Any] = ()  # rows of the same form; shown in the prompt, and tested too
    solution: str = ""  # "" if none is known
    float_tolerance: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def checks(self) -> list[Check]:
        """Examples, then hidden tests."""
        return [read_check(row, self.id) for row in (*self.examples, *self.tests)]


def generated_problems(split: str, *, tests: int, examples: int) -> list[Problem]:
    """The generated problems of a split, in a fixed order that mixes the templates.

    The split of a problem is a hash of template and parameters: no two splits share one.

    Args:
        split: train, validation or test.
        tests: hidden ones of each problem.
        examples: shown ones.
    """
    problems = [
        _generated(template, parameters, tests, examples)
        for template in TEMPLATES
        for parameters in template.points()
        if split_of(_identity(template, parameters)) == split
    ]
    random.Random(f"{_SEED}/{split}").shuffle(problems)
    return problems


def _identity(template: Template, parameters: Mapping[str, Any]) -> str:
    return f"{template.name}/" + ",".join(f"{name}={value}" for name, value in parameters.items())


def _generated(template: Template, parameters: Mapping[str, Any], tests: int, examples: int) -> Problem:
    identity = _identity(template, parameters)
    rows = template.tests(parameters, tests + examples, random.Random(f"{_SEED}/{identity}"))
    return Problem(
        id=identity,
        prompt=template.prompt(parameters),
        entry_point=template.entry_point,
        tests=rows[: len(rows) - examples],
        examples=rows[len(rows) - examples :],
        solution=template.solution(parameters),
        float_tolerance=template.float_tolerance,
        metadata={"template": template.name, "parameters": dict(parameters)},
    )


def loaded_problems(path: str, split: str) -> list[Problem]:
    """The problems of one split of a data file (JSONL), a folder of them or a `{split}` pattern; see `Rows.of_split`.

    Raises:
        DataError: a missing file, a broken line, a row without prompt or tests; file and line are named.
    """
    return Rows(read=_problem, text=lambda each: each.prompt).of_split(path, split)


def _problem(row: Mapping[str, Any], place: str, id: str) -> Problem:
    unknown = sorted(set(row) - set(_KEYS))
    if unknown:
        raise DataError(f"{place}: a row has no '{unknown[0]}'. {did_you_mean(unknown[0], _KEYS)}")
    for name in ("prompt", "entry_point", "solution", "id"):
        if not isinstance(row.get(name, ""), str):
            raise DataError(f"{place}: '{name}' is {row[name]!r}, not text")
    if not row.get("prompt", "").strip():
        raise DataError(f"{place}: the row has no 'prompt'")
    tolerance = row.get("float_tolerance", 0.0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
        raise DataError(f"{place}: 'float_tolerance' is {tolerance!r}; it is a number from 0 to below 1")
    tests, examples = row.get("tests"), row.get("examples", [])
    if not isinstance(tests, list) or not tests or not isinstance(examples, list):
        raise DataError(f"{place}: 'tests' is a list of at least one test, 'examples' a list; got {tests!r}")
    problem = Problem(
        id=str(row.get("id") or id),
        prompt=row["prompt"].strip(),
        entry_point=row.get("entry_point", ""),
        tests=tests,
        examples=examples,
        solution=row.get("solution", ""),
        float_tolerance=float(tolerance),
        metadata={"source": id},
    )
    for number, each in enumerate((*examples, *tests)):
        check = read_check(each, f"{place}, test {number}")
        if (check.case["run"] == "program") != (not problem.entry_point) or check.case["run"] == "expression":
            raise DataError(
                f"{place}, test {number}: a problem with an 'entry_point' is tested by args and kwargs, one without "
                "by stdin"
            )
    return problem
