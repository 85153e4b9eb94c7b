"""Staleness 1 against staleness 0: the wall time of the same number of steps when the tools take their time."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measuring import Measure, Row, Settings, Table, compared, interleaved
from benchmarks.runs import bare_run
from benchmarks.sleeping_env import SLEEP_S
from miles_agents.cluster import usable_cores

_WORDS = (
    "env=benchmarks.sleeping_env:SleepingMath",
    f"env.sleep_s={SLEEP_S}",
    "env.level=3",
    "env.busy_probability=1",  # the first call is always answered "busy": two calls in two turns, each of which sleeps
)
_BATCHES = ((16, 8, 8), (4, 4, 20))  # tasks, episodes of each, steps
_SYNCHRONOUS, _ONE_OFF = "max_staleness=0", "max_staleness=1"


async def measure(settings: Settings) -> list[Table]:
    """Whole runs of the real job, interleaved; only their steps are counted."""
    each = f"cluster.threads={settings.threads or 1}"
    rows: list[Row] = []
    for tasks, episodes, full in _BATCHES:
        steps = settings.count(full, least=3)
        words = [
            *_WORDS,
            *replace(settings, threads=None).words(),
            f"steps={steps}",
            f"rollout.groups_per_step={tasks}",
            f"rollout.group_size={episodes}",
        ]
        batch = f"{steps} steps of {tasks} × {episodes}"
        synchronous = f"{batch}, {_SYNCHRONOUS}"
        measures = {
            synchronous: _run([*words, each], 0, steps),
            f"{batch}, {_ONE_OFF}": _run([*words, each], 1, steps),
        }
        if settings.threads is None and usable_cores() > 1:  # is one thread a part unfair to the synchronous mode?
            measures[f"{synchronous}, all cores for each part"] = _run(words, 0, steps)
        rows += compared(await interleaved(measures, repeats=settings.repeats), "s", baseline=synchronous)
    notes = (
        f"wall time of the steps; starter model, two tool calls of {SLEEP_S * 1000:.0f} ms one after the other in most "
        f"episodes, {each}",
        "at 1 the next step's episodes are played while this one is trained; claim: its ratio is below 1",
        "on a machine without a free second core, training and decoding slow each other down instead",
    )
    return [Table(title="staleness", rows=rows, notes=notes)]


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
