"""Accuracy and pass@k of samples, averaged by task, with 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Z = 1.959963984540054  # of 95 %, two-sided
_RESAMPLES = 10_000
_CELLS = 2_000_000  # drawn at a time


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class IntervalKind(StrEnum):
    """How the interval of an accuracy is worked out."""

    WILSON = "wilson"  # closed form with an effective sample size: the default
    BOOTSTRAP = "bootstrap"  # percentiles over tasks drawn again, from the seed


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k samples solves the task.

    1 − C(n − c, k) / C(n, k), Chen et al. 2021 (arXiv 2107.03374), eq. 1.

    Raises:
        ValueError: fewer samples than k: the estimate does not exist.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples of the task, got {samples}")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def wilson_interval(successes: float, trials: float) -> Interval:
    """95 % Wilson score interval of a proportion (Wilson 1927); `trials` may be an effective sample size."""
    if trials <= 0:
        return Interval(0.0, 1.0)
    p = successes / trials
    centre = (p + _Z * _Z / (2 * trials)) / (1 + _Z * _Z / trials)
    half = _Z / (1 + _Z * _Z / trials) * math.sqrt(p * (1 - p) / trials + _Z * _Z / (4 * trials * trials))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def accuracy_interval(
    by_task: Sequence[Sequence[bool]], *, kind: IntervalKind = IntervalKind.WILSON, seed: int = 0
) -> tuple[float, Interval]:
    """Accuracy averaged by task, and its interval.

    Samples of one task are not independent. Wilson's interval is taken with the effective sample size
    p(1 − p) / SE², SE² being the variance of the mean over tasks, kept between the tasks and the samples. It is the
    default: it needs no random numbers, and where all tasks come out alike it stays an interval, while drawing equal
    tasks again gives a point.

    Args:
        by_task: the outcomes of each task's samples; no task is without any.
        kind: Wilson's, or the bootstrap over tasks.
        seed: of the bootstrap.
    """
    means = np.asarray([np.mean(samples) for samples in by_task], np.float64)
    p = float(means.mean())
    if kind is IntervalKind.BOOTSTRAP:
        return p, bootstrap_interval(means, seed=seed)
    total = sum(len(samples) for samples in by_task)
    squared_error = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
    effective = p * (1 - p) / squared_error if squared_error > 0 else float(len(means))
    effective = min(max(effective, float(len(means))), float(total))
    return p, wilson_interval(p * effective, effective)


def bootstrap_interval(values: Sequence[float] | NDArray[np.float64], *, seed: int) -> Interval:
    """95 % percentile interval of the mean of one value per task, tasks drawn again with replacement (Efron 1979).

    10,000 draws from a generator of `seed`; a single task gives a point.
    """
    array = np.asarray(values, np.float64)
    draw = _drawer(array, np.random.default_rng(seed))
    rows = max(1, _CELLS // len(array))
    means = np.concatenate([draw(min(rows, _RESAMPLES - done)) for done in range(0, _RESAMPLES, rows)])
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(low), float(high))


def _drawer(values: NDArray[np.float64], rng: np.random.Generator) -> Callable[[int], NDArray[np.float64]]:
    def draw(count: int) -> NDArray[np.float64]:
        means: NDArray[np.float64] = values[rng.integers(len(values), size=(count, len(values)))].mean(axis=1)
        return means

    return draw
