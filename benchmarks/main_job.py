"""Step time of the main job, and where it goes; the same batch on TRL where TRL is installed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import trl_step
from benchmarks.measuring import Row, Settings, Table
from benchmarks.runs import bare_run

_STEPS, _SKIPPED = 8, 2  # the first steps warm up
_LAPS = {
    "wait for rollouts": "time/wait_for_rollouts",
    "train": "time/train",
    "push weights": "time/push_weights",
}


async def measure(settings: Settings) -> list[Table]:
    """Medians over the steps of several short runs of `python -m miles_agents.train env=python_math`."""
    steps: list[Mapping[str, float]] = []
    trl: list[float] = []
    reason = trl_step.missing()
    count = settings.count(_STEPS, least=_SKIPPED + 2)
    for _ in range(max(1, round(settings.repeats / 2))):  # a run gives several steps; the two sides take turns
        record = await bare_run([*settings.words(), f"steps={count}"])
        steps += record.steps(first=_SKIPPED + 1)
        if reason is None:
            trl += (await trl_step.step_times(settings, steps=count))[_SKIPPED:]
    rows = breakdown(steps)
    notes = [
        f"16 tasks × 8 episodes, 2 updates; {len(steps)} steps, the first {_SKIPPED} of each run left out",
        "tools: durations of the calls of all episodes added up; they overlap each other and the decoding, so that "
        "their sum is no part of the step's wall time",
    ]
    if reason is None:
        ours = statistics.median(step["time/step"] for step in steps)
        theirs = statistics.median(trl)
        rows.append(Row(name="TRL GRPOTrainer, step", value=theirs, unit="s", ratio=theirs / ours, against="step"))
        notes.append(trl_step.NOTE)
    else:
        notes.append(f"TRL left out: {reason}")
    return [Table(title="main job", rows=rows, notes=notes)]


def breakdown(steps: Sequence[Mapping[str, float]]) -> list[Row]:
    """A row for the step and for each of its parts."""

    def median(name: str) -> float:
        return statistics.median(step.get(name, 0.0) for step in steps)

    whole = median("time/step")
    rows = [Row(name="step", value=whole, unit="s")]
    rows += [
        Row(name=name, value=median(metric), unit="s", ratio=median(metric) / whole, against="step")
        for name, metric in _LAPS.items()
    ]
    tools = median("throughput/tool_seconds")
    rows.append(Row(name="tools, added up over episodes", value=tools, unit="s", ratio=tools / whole, against="step"))
    rows.append(Row(name="sampled tokens", value=median("throughput/sampled_tokens_per_s"), unit="tokens/s"))
    return rows
