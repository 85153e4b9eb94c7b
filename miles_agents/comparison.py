"""`python -m miles_agents.evaluate compare RUN_A RUN_B`: two evaluations, task by task.

Tasks are paired by id: of the difference of two accuracies only what the models differ in is left, since both met the
same tasks.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from miles_agents.errors import RunFolderError, UsageError
from miles_agents.evaluation import bootstrap_interval
from miles_agents.evaluation.figures import BETWEEN_SEATS, LOST, NOT_SOLVED, SOLVED
from miles_agents.runs.tables import printable

_RESULTS = "results.json"
_SHOWN_TASKS = 20
_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two evaluations of one environment, over the tasks that both scored."""

    name: str
    tasks_a: int
    tasks_b: int
    shared: int  # tasks that both runs have
    paired: int  # of these, scored in both
    accuracy_a: float | None  # over the paired tasks, averaged by task
    accuracy_b: float | None
    difference: float | None  # b − a
    difference_low: float | None  # 95 %, paired bootstrap over tasks
    difference_high: float | None
    mcnemar_p: float | None  # exact, two-sided; only if both runs have one sample of each task
    gained: tuple[str, ...]  # tasks that half of the samples or more solve in b, and not in a
    lost: tuple[str, ...]  # the other way round


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code comes back."""
    parser = argparse.ArgumentParser(
        prog="python -m miles_agents.evaluate compare", description="Compare two evaluations, task by task (B minus A)."
    )
    parser.add_argument("run_a", type=Path, help="run folder of the first")
    parser.add_argument("run_b", type=Path, help="run folder of the second")
    parser.add_argument("--json", action="store_true", help="print JSON, with all tasks that changed")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (0)")
    given = parser.parse_args(arguments)
    if given.seed < 0:
        parser.error(f"--seed {given.seed}: it must be at least 0")
    try:
        compared = compare(given.run_a, given.run_b, seed=given.seed)
    except UsageError as error:
        sys.stderr.write(f"{type(error).__name__.removesuffix('Error')}: {error}\n")
        return 2
    if given.json:
        sys.stdout.write(json.dumps([asdict(each) for each in compared], indent=2) + "\n")
    else:
        _show(compared, given.run_a, given.run_b)
    return 0


def compare(run_a: Path, run_b: Path, *, seed: int = 0) -> list[Comparison]:
    """Compare the environments that both evaluations have.

    Raises:
        RunFolderError: a folder holds no results, or the two have no task in common.
    """
    one, other = _outcomes_of(run_a), _outcomes_of(run_b)
    names = [name for name in one if name in other]
    if len(one) == len(other) == 1:  # the same tasks under two names are the same tasks
        [(name, a)], [(name_b, b)] = one.items(), other.items()
        compared = [_compare(name if name == name_b else f"{name}, {name_b}", a, b, seed)]
    else:
        compared = [_compare(name, one[name], other[name], seed) for name in names]
    if not any(each.shared for each in compared):
        raise RunFolderError(
            f"{run_a} and {run_b} have no task in common (environments: {', '.join(one)}; {', '.join(other)})"
        )
    return compared


def mcnemar_p(gained: int, lost: int) -> float:
    """Exact two-sided p of McNemar's test (1947): each of the tasks that changed could have gone either way.

    min(1, 2 · Σ_{i ≤ min(gained, lost)} C(n, i) / 2ⁿ), n = gained + lost.
    """
    n = gained + lost
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, float(2 * tail / 2**n))


def _outcomes_of(run: Path) -> dict[str, dict[str, list[bool]]]:
    """By environment and task: whether each scored sample solved it."""
    file = run / _RESULTS
    try:
        results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        listed: Mapping[str, Any] = results.get("environments") or {results["name"]: results}
        return {
            name: {task: _read(signs) for task, signs in content["outcomes"].items()}
            for name, content in listed.items()
        }
    except OSError as error:
        raise RunFolderError(
            f"{run} holds no results ({error.strerror}: {_RESULTS}); give a run folder that "
            "python -m miles_agents.evaluate left, at its end"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{file} is broken, or of another version: {type(error).__name__}: {error}") from error


def _read(signs: str) -> list[bool]:
    unknown = set(signs) - {SOLVED, NOT_SOLVED, LOST, BETWEEN_SEATS}
    if unknown:
        raise ValueError(f"outcome {sorted(unknown)[0]!r}")
    return [sign == SOLVED for sign in signs if sign in (SOLVED, NOT_SOLVED)]


def _compare(name: str, a: Mapping[str, list[bool]], b: Mapping[str, list[bool]], seed: int) -> Comparison:
    shared = [task for task in a if task in b]
    paired = [task for task in shared if a[task] and b[task]]
    rates_a, rates_b = ([sum(run[task]) / len(run[task]) for task in paired] for run in (a, b))
    differences = [rate_b - rate_a for rate_a, rate_b in zip(rates_a, rates_b, strict=True)]
    interval = bootstrap_interval(differences, seed=seed) if paired else None
    changed = list(zip(paired, rates_a, rates_b, strict=True))
    gained = tuple(task for task, rate_a, rate_b in changed if rate_a < _HALF <= rate_b)
    lost = tuple(task for task, rate_a, rate_b in changed if rate_b < _HALF <= rate_a)
    single = all(len(run[task]) == 1 for run in (a, b) for task in paired)
    return Comparison(
        name=name,
        tasks_a=len(a),
        tasks_b=len(b),
        shared=len(shared),
        paired=len(paired),
        accuracy_a=_mean(rates_a),
        accuracy_b=_mean(rates_b),
        difference=_mean(differences),
        difference_low=interval.low if interval else None,
        difference_high=interval.high if interval else None,
        mcnemar_p=mcnemar_p(len(gained), len(lost)) if paired and single else None,
        gained=gained,
        lost=lost,
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _show(compared: Sequence[Comparison], run_a: Path, run_b: Path) -> None:
    console = Console(file=sys.stdout)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("tasks of both", overflow="fold", min_width=13)
    for column in ("A", "B", "B − A", "95 % interval", "McNemar p"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in compared:
        table.add_row(Text(printable(f"{each.name} ({each.paired})")), *_cells(each))
    console.print(Text(f"A: {printable(str(run_a))}\nB: {printable(str(run_b))}"), soft_wrap=True)
    console.print(table)
    for each in compared:
        for line in _notes(each):
            console.print(Text(printable(line)), soft_wrap=True)


def _cells(each: Comparison) -> list[str]:
    if each.difference is None or each.difference_low is None or each.difference_high is None:
        return ["no score"] * 2
    p = "–" if each.mcnemar_p is None else f"{each.mcnemar_p:.4f}"
    interval = f"{each.difference_low:+.3f} … {each.difference_high:+.3f}"
    return [f"{each.accuracy_a:.3f}", f"{each.accuracy_b:.3f}", f"{each.difference:+.3f}", interval, p]


def _notes(each: Comparison) -> list[str]:
    notes = []
    if not each.shared == each.tasks_a == each.tasks_b:
        notes.append(f"{each.name}: A has {each.tasks_a} tasks, B {each.tasks_b}; they share {each.shared}")
    if each.paired < each.shared:
        notes.append(f"{each.name}: {each.shared - each.paired} shared tasks were not scored in one of the runs")
    for what, tasks in (("solved in B alone", each.gained), ("solved in A alone", each.lost)):
        if tasks:
            more = f", … ({len(tasks) - _SHOWN_TASKS} more: --json)" if len(tasks) > _SHOWN_TASKS else ""
            notes.append(f"{each.name}, {what} ({len(tasks)}): {', '.join(tasks[:_SHOWN_TASKS])}{more}")
    return notes
