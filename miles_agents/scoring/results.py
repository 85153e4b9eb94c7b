"""results.json, the same each time the same episodes are played, and times.json, which the clock decides."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from miles_agents.evaluation import Evaluation
from miles_agents.evaluation.overlap import TaskOverlap
from miles_agents.runs.durable import write_atomic

RESULTS = "results.json"
TIMES = "times.json"


class Played(NamedTuple):
    """What this process played of an environment's episodes; those recorded before are not counted."""

    episodes: int
    wall_s: float
    sampled_tokens: int

    @property
    def tokens_per_s(self) -> float | None:
        """None if nothing was played."""
        return self.sampled_tokens / self.wall_s if self.episodes and self.wall_s > 0 else None


class Scored(NamedTuple):
    """One environment's results."""

    name: str
    env_id: str
    evaluation: Evaluation
    overlap: TaskOverlap | None
    opponents: Mapping[str, str]  # who plays the seats that are not evaluated
    played: Played


def write_results(folder: Path, scored: Sequence[Scored], *, facts: Mapping[str, Any]) -> None:
    """Write results.json: `facts`, then the figures; of several environments, below `environments` by name."""
    if len(scored) == 1:
        content = {**facts, **_results(scored[0])}
    else:
        content = {**facts, "environments": {each.name: _results(each) for each in scored}}
    write_atomic(folder / RESULTS, json.dumps(content, indent=2) + "\n")


def _results(scored: Scored) -> dict[str, Any]:
    overlap = {} if scored.overlap is None else {"contamination": scored.overlap.as_json()}
    opposite = {"opponents": dict(scored.opponents)} if scored.opponents else {}
    return {"name": scored.name, "env": scored.env_id, **opposite, **scored.evaluation.as_json(), **overlap}


def write_times(folder: Path, scored: Sequence[Scored], *, sandbox: Mapping[str, float]) -> None:
    """Write times.json: seconds and tokens per second of what this process played; of tool calls, over all episodes.

    If it played nothing the times that are there stay.
    """
    if not any(each.played.episodes for each in scored) and (folder / TIMES).exists():
        return
    wall_s = sum(each.played.wall_s for each in scored)
    if len(scored) == 1:
        content: dict[str, Any] = {"wall_s": wall_s, **_times(scored[0])}
    else:
        content = {"wall_s": wall_s, "environments": {each.name: _times(each) for each in scored}}
    write_atomic(folder / TIMES, json.dumps({**content, "sandbox": dict(sandbox)}, indent=2) + "\n")


def _times(scored: Scored) -> dict[str, Any]:
    seconds = [trajectory.timings.get("total", 0.0) for trajectory in scored.evaluation.trajectories]
    p50, p90, p99 = np.percentile(seconds, (50, 90, 99))
    return {
        "wall_s": scored.played.wall_s,
        "episodes": scored.played.episodes,
        "sampled_tokens": scored.played.sampled_tokens,
        "tokens_per_s": scored.played.tokens_per_s,
        "episode_s": {"p50": float(p50), "p90": float(p90), "p99": float(p99)},
        "tools": scored.evaluation.times_as_json(),
    }
