"""`python -m benchmarks [NAME…] [repeats=N] [threads=N] [scale=X] [model=M]`: print a table per benchmark."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.measuring import Settings, Table

BENCHMARKS = (
    "rollout",
    "training",
    "tool_calls",
    "sandbox_sessions",
    "event_loop",
    "tool_overlap",
    "staleness",
    "main_job",
)
_USAGE = f"""usage: python -m benchmarks [NAME…] [repeats=5] [threads=N] [scale=1] [model=starter]

  NAME     one or more of: {", ".join(BENCHMARKS)}; all by default
  repeats  interleaved repetitions; the tables show their medians
  threads  PyTorch threads of each part; by default what training uses
  scale    amount of work per repetition, e.g. 0.1 for a quick look
  model    another model than the starter model
"""

Benchmark = Callable[[Settings], Coroutine[Any, Any, list[Table]]]


def main(words: Sequence[str]) -> int:
    """Run the benchmarks that are named; the exit code comes back."""
    if {"--help", "-h"} & set(words):
        sys.stdout.write(_USAGE)
        return 0
    try:
        names, settings = parse_words(words)
    except ValueError as error:
        sys.stderr.write(f"{error}\n\n{_USAGE}")
        return 2
    from benchmarks.machine import machine_facts  # loads torch

    sys.stdout.write(machine_facts(settings) + "\n")
    console = Console(file=sys.stdout, width=110)
    for name in names:
        benchmark: Benchmark = importlib.import_module(f"benchmarks.{name}").measure
        for table in asyncio.run(benchmark(settings)):
            show(table, console)
    return 0


def parse_words(words: Sequence[str]) -> tuple[Sequence[str], Settings]:
    """The benchmarks to run, and how.

    Raises:
        ValueError: no benchmark or setting of that name, or a value that cannot be.
    """
    names = [word for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [
        *(name for name in names if name not in BENCHMARKS),
        *(given.keys() - {"repeats", "threads", "scale", "model"}),
    ]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    settings = Settings(
        repeats=int(given.get("repeats", 5)),
        threads=int(given["threads"]) if "threads" in given else None,
        scale=float(given.get("scale", 1)),
        model=given.get("model"),
    )
    if settings.repeats < 1 or settings.scale <= 0 or (settings.threads is not None and settings.threads < 1):
        raise ValueError("repeats and threads must be at least 1, and scale above 0")
    return names or BENCHMARKS, settings


def show(table: Table, console: Console) -> None:
    """Print a table and its notes."""
    shown = RichTable(title=table.title, title_justify="left", width=100)
    shown.add_column("")
    for column in ("median", "unit", "ratio"):
        shown.add_column(column, justify="right" if column != "unit" else "left", no_wrap=True)
    shown.add_column("against")
    for row in table.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} ×"
        shown.add_row(row.name, figure(row.value), row.unit, ratio, row.against)
    console.print()
    console.print(shown)
    for note in table.notes:
        console.print(f"  {note}", markup=False, highlight=False)


def figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
