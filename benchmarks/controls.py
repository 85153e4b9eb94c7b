"""`python -m benchmarks.controls [model=RUN] [key=value…]`: is what was learned what it looks like?

1. With the rewards shuffled within each group, the same training does not improve accuracy.
2. When a digit of the tool's result is changed on the way, the final answer changes with it.
3. With every tool call refused, the trained model does not answer right.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.altered_results import ALTERED, FOLLOWED
from benchmarks.runs import RunRecord, score_run, train_run
from benchmarks.shuffled_rewards import NAME as SHUFFLED
from miles_agents.configs.compose import parse_overrides
from miles_agents.errors import ConfigError, MilesError, UsageError
from miles_agents.evaluation import Interval, wilson_interval
from miles_agents.runs.state import read_overrides
from miles_agents.types import Trajectory

_USAGE = """usage: python -m benchmarks.controls [model=RUN] [key=value…]

  model=RUN  a finished run folder of `python -m miles_agents.train env=python_math`; the controls take its words over.
             Without it such a run is made first.
  key=value  words for the training runs, e.g. steps=20 seed=1 cluster.threads=1
"""
_OUTPUTS = Path("outputs")
_SCORING_KEYS = ("env", "engine", "sandbox", "cluster")  # groups that training and scoring share
_SCORING_ROLLOUT = ("rollout.max_tokens", "rollout.max_new_tokens", "rollout.concurrency", "rollout.episode_deadline_s")
_MAX_WITHOUT_TOOLS = 0.05
_MIN_FOLLOWED = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One control's outcome."""

    text: str
    holds: bool


def _is_for_scoring(key: str) -> bool:
    return key.partition(".")[0] in _SCORING_KEYS or key in _SCORING_ROLLOUT


async def controls(words: Sequence[str], folder: Path, *, normal: RunRecord | None = None) -> list[Finding]:
    """Carry out the three controls, printing each as it is there.

    Args:
        words: of the training runs.
        folder: where their run folders go.
        normal: the run to compare with; made first if there is none.
    """
    if normal is None:
        normal = await train_run(words, folder / "normal")
    _say(f"normal run         {_progress(normal)}   {normal.path}")
    scoring = [word for word in words if _is_for_scoring(word.partition("=")[0])]
    findings = []
    for finding in (
        await _shuffled(words, normal, folder),
        await _altered(scoring, normal),
        await _refused(scoring, normal),
    ):
        findings.append(finding)
        _say(f"{finding.text}   {'holds' if finding.holds else 'DOES NOT HOLD'}")
    return findings


async def _shuffled(words: Sequence[str], normal: RunRecord, folder: Path) -> Finding:
    steps, seed = normal.summary["steps"], normal.summary["seed"]
    own = [f"algorithm.name={SHUFFLED}", f"steps={steps}", f"seed={seed}"]
    record = await train_run(_merged(words, own), folder / "shuffled")
    return Finding(
        text=f"rewards shuffled   {_progress(record)}   {record.path}",
        holds=float(record.summary["accuracy_after_low"]) <= _before(record).high,
    )


async def _altered(words: Sequence[str], normal: RunRecord) -> Finding:
    played = await _scored(words, normal, "env=benchmarks.altered_results:AlteredMath")
    altered = [trajectory for trajectory in played if trajectory.rewards.get(ALTERED)]
    if not altered:
        return Finding(text="result altered     the model made no call whose result could be altered", holds=False)
    followed = sum(trajectory.rewards[FOLLOWED] for trajectory in altered) / len(altered)
    right = sum(trajectory.rewards["answer"] for trajectory in altered) / len(altered)
    shares = f"{followed:.3f} of {len(altered)} answers are the altered result, {right:.3f} the right one"
    return Finding(text=f"result altered     {shares}", holds=followed > _MIN_FOLLOWED)


async def _refused(words: Sequence[str], normal: RunRecord) -> Finding:
    played = await _scored(words, normal, "refuse_tools=true")
    right = sum(trajectory.rewards.get("answer", 0.0) for trajectory in played) / len(played)
    return Finding(
        text=f"tool calls refused accuracy {right:.3f} of {len(played)} tasks", holds=right < _MAX_WITHOUT_TOOLS
    )


async def _scored(words: Sequence[str], normal: RunRecord, word: str) -> Sequence[Trajectory]:
    with tempfile.TemporaryDirectory() as folder:
        return await score_run(_merged(words, [f"model={normal.path}", word]), Path(folder) / "score")


def _progress(record: RunRecord) -> str:
    interval, summary = _before(record), record.summary
    before = f"{summary['accuracy_before']:.3f} ({interval.low:.3f}–{interval.high:.3f})"
    after = (
        f"{summary['accuracy_after']:.3f} ({summary['accuracy_after_low']:.3f}–{summary['accuracy_after_high']:.3f})"
    )
    return f"accuracy {before} → {after} in {summary['steps']} steps"


def _before(record: RunRecord) -> Interval:
    tasks = float(record.summary["final_tasks"])
    return wilson_interval(float(record.summary["accuracy_before"]) * tasks, tasks)


def _merged(words: Sequence[str], winning: Sequence[str]) -> list[str]:
    """Both, without the words whose key is in `winning` too."""
    keys = {word.partition("=")[0] for word in winning}
    return [*(word for word in words if word.partition("=")[0] not in keys), *winning]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """Run the controls; 0 if all of them hold."""
    if {"--help", "-h"} & set(words):
        sys.stdout.write(_USAGE)
        return 0
    try:
        given = {override.key: override.value for override in parse_overrides(words)}
        if given.get("env", "python_math") != "python_math":
            raise ConfigError(f"env={given['env']}: the controls are those of python_math")
        rest = [word for word in words if not word.startswith("model=")]
        normal = RunRecord.read(Path(given["model"]).expanduser().resolve()) if "model" in given else None
        if normal is not None:
            rest = _merged(read_overrides(normal.path), rest)
        folder = _OUTPUTS.resolve() / f"controls-{time.strftime('%Y%m%d-%H%M%S')}"
        findings = asyncio.run(controls(rest, folder, normal=normal))
    except UsageError as error:
        sys.stderr.write(f"{error}\n\n{_USAGE}")
        return 2
    except MilesError as error:
        sys.stderr.write(f"stopped: {error}\n")
        return 1
    return 0 if all(finding.holds for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
