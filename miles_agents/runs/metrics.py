"""metrics.jsonl: one JSON object per step, appended as the run goes."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from miles_agents.errors import DataError, RunFolderError
from miles_agents.runs.durable import is_disk_full, write_atomic

logger = logging.getLogger(__name__)


class MetricName(StrEnum):
    """The metrics that the progress view, the plot and the report show first; docs/run-folder.md lists all."""

    RAW_REWARD = "reward/raw_reward"  # mean weighted reward of the step's valid trajectories
    ACCURACY = "eval/accuracy"  # sampled (temperature 1), held-out tasks
    TOOL_CALL_RATE = "rollout/tool_call_rate"  # share of valid trajectories with at least one executed tool call
    LOGPROB_DIFF = "train/train_rollout_logprob_abs_diff"  # largest |trainer − engine| logprob of a sampled token
    SAMPLED_TOKENS_PER_S = "throughput/sampled_tokens_per_s"  # tokens the policy sampled, per second of the step


class MetricRow(NamedTuple):
    """The metrics logged at one step."""

    step: int
    metrics: dict[str, float]


def append_metrics(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Append one line and flush it. Numbers that are not finite are written as "nan", "inf", "-inf".

    Raises:
        RunFolderError: the disk is full.
        ValueError: a value is no number, or a metric is called "step".
    """
    line = json.dumps({"step": int(step), **{name: _encode(name, value) for name, value in metrics.items()}})
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
    except OSError as error:
        if not is_disk_full(error, path.parent):
            raise
        raise RunFolderError(
            f"no space left to write {path}; free some, then go on with run_dir={path.parent} resume=true"
        ) from error


def _encode(name: str, value: Any) -> float | str:
    if name == "step":
        raise ValueError("no metric can be called 'step': it is the row's own key")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"metric {name!r} is {value!r}, not a number") from None
    return number if math.isfinite(number) else str(number)


def read_metrics(path: Path) -> list[MetricRow]:
    """Every complete line, in file order; [] if there is no file. Rows of one step are not merged.

    A last line without its newline (the run was killed while writing it) is left out.

    Raises:
        DataError: another line is no JSON object with a "step"; the line is named.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines.pop():
        logger.warning("%s: the last line is incomplete and was left out", path)
    return [_decode(line, path, number) for number, line in enumerate(lines, start=1)]


def _decode(line: str, path: Path, number: int) -> MetricRow:
    try:
        row = json.loads(line)
        step = int(row.pop("step"))
        return MetricRow(step, {name: float(value) for name, value in row.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}, line {number}: not a metrics row ({error}): {line[:80]!r}") from error


def truncate_metrics(path: Path, *, last_step: int) -> int:
    """Keep the rows with `step <= last_step` (and drop an incomplete last line); return how many went."""
    rows = read_metrics(path)
    kept = [row for row in rows if row.step <= last_step]
    if path.exists():
        lines = [json.dumps({"step": step, **{n: _encode(n, v) for n, v in metrics.items()}}) for step, metrics in kept]
        write_atomic(path, "".join(line + "\n" for line in lines))
    return len(rows) - len(kept)


def merge_by_step(rows: list[MetricRow]) -> list[MetricRow]:
    """One row per step, ascending; of a metric logged twice at one step the later value counts."""
    merged: dict[int, dict[str, float]] = {}
    for step, metrics in rows:
        merged.setdefault(step, {}).update(metrics)
    return [MetricRow(step, merged[step]) for step in sorted(merged)]
