"""Staleness 1 against staleness 0: the wall time of the same number of steps when the tools take their time."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measuring import Measure, Settings, Table, compared, interleaved
from benchmarks.runs import bare_run
from benchmarks.sleeping_env import SLEEP_S
from miles_agents.cluster import usable_cores

_STEPS = 20
_WORDS = (
    "env=benchmarks.sleeping_env:SleepingMath",
    f"env.sleep_s={SLEEP_S}",
    "env.level=3",
    "env.busy_probability=1",  # the first call is always answered "busy": two calls in two turns, each of which sleeps
    "rollout.groups_per_step=4",
    "rollout.group_size=4",
)
_SYNCHRONOUS, _ONE_OFF = "max_staleness=0", "max_staleness=1"


async def measure(settings: Settings) -> list[Table]:
    """Whole runs of the real job, interleaved; only their steps are counted."""
    steps = settings.count(_STEPS, least=3)
    words = [*_WORDS, f"steps={steps}", *replace(settings, threads=None).words()]
    each = f"cluster.threads={settings.threads or 1}"
    measures = {
        _SYNCHRONOUS: _run([*words, each], 0, steps),
        _ONE_OFF: _run([*words, each], 1, steps),
    }
    if settings.threads is None and usable_cores() > 1:  # is one thread for each part unfair to the synchronous mode?
        measures[f"{_SYNCHRONOUS}, all cores for each part"] = _run(words, 0, steps)
    medians = await interleaved(measures, repeats=settings.repeats)
    notes = (
        f"wall time of {steps} steps of 4 tasks × 4 episodes, starter model, two tool calls of "
        f"{SLEEP_S * 1000:.0f} ms one after the other in most episodes, {each}",
        "at 1 the next step's episodes are played while this one is trained; claim: the ratio is below 1",
        "on a machine without a free second core, training and decoding slow each other down instead",
    )
    return [Table(title="staleness", rows=compared(medians, "s", baseline=_SYNCHRONOUS), notes=notes)]


def _run(words: list[str], bound: int, steps: int) -> Measure:
    async def measured() -> float:
        record = await bare_run([*words, f"rollout.max_staleness={bound}"])
        rows = record.steps()
        if len(rows) != steps or record.summary["max_staleness"] > bound:
            raise RuntimeError(
                f"{len(rows)} steps, staleness {record.summary['max_staleness']}: not what was asked for"
            )
        return sum(row["time/step"] for row in rows)

    return measured
