"""How the benchmarks measure: interleaved repetitions, medians, and a table whose ratios stay inside one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line asked for."""

    repeats: int = 5  # interleaved repetitions; the table shows their medians
    threads: int | None = None  # PyTorch threads; None: what `cluster.threads` is by default
    scale: float = 1.0  # amount of work per repetition; below 1 for a quick look
    model: str | None = None  # None: the starter model

    def count(self, full: int, *, least: int = 1) -> int:
        """`full` pieces of work, scaled."""
        return max(least, round(full * self.scale))

    def words(self) -> list[str]:
        """The settings that a training run shares, as its command line's words."""
        given = {"cluster.threads": self.threads, "model": self.model}
        return [f"{key}={value}" for key, value in given.items() if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    name: str
    value: float
    unit: str
    ratio: float | None = None  # this value divided by another one of the same run
    against: str = ""  # which one


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What one benchmark found."""

    title: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()


async def interleaved(measures: Mapping[str, Measure], *, repeats: int) -> dict[str, float]:
    """The median of each measure.

    The measures take turns, so that whatever slows the machine down for a while slows all of them down. A first round
    that warms up is not counted.
    """
    found: dict[str, list[float]] = {name: [] for name in measures}
    for measure in measures.values():
        await measure()
    for _ in range(repeats):
        for name, measure in measures.items():
            found[name].append(await measure())
    return {name: statistics.median(values) for name, values in found.items()}


async def seconds(work: Awaitable[object]) -> float:
    """Wall time of `work`."""
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


def compared(medians: Mapping[str, float], unit: str, *, baseline: str) -> list[Row]:
    """A row for each median, with its ratio to the one called `baseline`."""
    rows = []
    for name, value in medians.items():
        if name == baseline:
            rows.append(Row(name=name, value=value, unit=unit))
        else:
            rows.append(Row(name=name, value=value, unit=unit, ratio=value / medians[baseline], against=baseline))
    return rows
