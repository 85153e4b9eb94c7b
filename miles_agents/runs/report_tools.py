"""The report's part on tools and sandboxes: figures of the recorded calls, sums of the run's sandbox metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_agents.runs.folder import step_of
from miles_agents.runs.json_values import for_people, from_json
from miles_agents.runs.metrics import MetricRow
from miles_agents.runs.tool_figures import CallFacts, Percentiles, ToolFigures, kind_of, tool_figures

_NAME_CHARS = 80
_SANDBOX = "sandbox/"
_MEAN = "start_mean_s"  # the one figure that is no sum


def recorded_in(path: Path, evaluations: Sequence[Path]) -> str | None:
    """Under which heading a trajectory file's calls are shown; None: not at all.

    Args:
        path: the file.
        evaluations: the unlabelled evaluation files, by step; the first and the last are shown.
    """
    if not path.name.startswith("eval_"):
        return "training"
    return f"held-out, step {step_of(path)}" if path in (*evaluations[:1], *evaluations[-1:]) else None


def calls_of(records: Sequence[Mapping[str, Any]]) -> Iterator[CallFacts]:
    """The calls of recorded episodes."""
    for record in records:
        for turn in record["turns"]:
            for event in turn["tool_events"]:
                call = event["call"]
                yield CallFacts(
                    name=call["name"],
                    error=kind_of(event.get("error_kind", ""), ok=event["ok"], readable=call["error"] is None),
                    duration_s=float(from_json(event["duration_s"])),
                    wait_s=float(from_json(event.get("wait_s", 0.0))),
                )


def tool_rows(calls: Mapping[str, Sequence[CallFacts]]) -> list[dict[str, Any]]:
    """A row per tool and heading, tools in alphabetical order; made-up names share one row of each heading."""
    declared = {name for some in calls.values() for name in tool_figures(some).tools}
    tables = {heading: tool_figures(some, declared=declared) for heading, some in calls.items()}
    rows = [_row(name, heading, tables[heading].tools[name]) for name in sorted(declared) for heading in calls]
    unknown: list[dict[str, Any]] = [
        {"tool": None, "episodes": heading, "calls": table.unknown_calls, "errors": {}, "latency": None, "wait": None}
        for heading, table in tables.items()
        if table.unknown_calls
    ]
    return [row for row in rows if row["calls"]] + unknown


def _row(name: str, heading: str, figures: ToolFigures) -> dict[str, Any]:
    return {
        "tool": name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…",
        "episodes": heading,
        "calls": figures.calls,
        "errors": {kind.value: count for kind, count in figures.errors.items()},
        "latency": _seconds(figures.latency),
        "wait": _seconds(figures.wait),
    }


def _seconds(percentiles: Percentiles | None) -> list[Any] | None:
    return None if percentiles is None else [for_people(value) for value in percentiles]


def sandbox_sums(rows: Sequence[MetricRow]) -> dict[str, float]:
    """What the rows' `sandbox/` metrics come to, by their names without the prefix; empty without a sandbox."""
    sums: dict[str, float] = {}
    start_s = 0.0
    for _, metrics in rows:
        for name, value in metrics.items():
            if name.startswith(_SANDBOX) and math.isfinite(value):
                sums[name.removeprefix(_SANDBOX)] = sums.get(name.removeprefix(_SANDBOX), 0.0) + value
        start_s += metrics.get(_SANDBOX + _MEAN, 0.0) * metrics.get(f"{_SANDBOX}starts", 0.0)
    if _MEAN in sums:
        sums[_MEAN] = start_s / sums["starts"]
    return sums
