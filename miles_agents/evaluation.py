"""Scoring a policy on held-out tasks: accuracy with its interval, unbiased pass@k, rates, rows per group of tasks."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from miles_agents.contracts import Env
from miles_agents.errors import EpisodeError, FailureRateError, ToolErrorKind, single_error
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.player import EpisodePlayer, EpisodeSpec
from miles_agents.rollout.seeds import derive_seed
from miles_agents.runs.tool_figures import ToolTable, facts_of, tool_figures
from miles_agents.types import EpisodeStatus, Task, Trajectory


_ROUNDING = 1e-9  # of a sum of rewards


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """Figures over one set of tasks. `accuracy` and all that follows from it is None if nothing was scored."""

    name: str
    tasks: int
    episodes: int
    scored: int
    failed: int
    accuracy: float | None  # over scored episodes, averaged by task
    accuracy_low: float | None  # 95 % Wilson interval
    accuracy_high: float | None
    accuracy_over_all: float  # lost episodes counted as not solved
    mean_reward: float | None
    pass_at_k: dict[int, float]  # only k that every task has samples for
    tool_call_rate: float  # share of episodes with at least one call
    tool_calls: float  # per episode
    tool_error_rate: float  # share of calls answered by an error
    malformed_call_rate: float  # share of calls that could not be read
    truncated_rate: float
    turns: float
    sampled_tokens: float  # per episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation's figures and its episodes."""

    total: EvaluationRow
    rows: tuple[EvaluationRow, ...]  # by `level`, `kind` … of the tasks' metadata
    failures_by_cause: dict[str, int]
    tools: ToolTable  # over all episodes, lost ones too
    trajectories: tuple[Trajectory, ...]

    def check_lost(self, max_failure_rate: float, *, key: str) -> None:
        """Refuse figures over too few of the episodes.

        Args:
            max_failure_rate: share of the episodes that may be lost.
            key: the setting it comes from.

        Raises:
            FailureRateError: more were lost, or nothing is left to score; gives the first cause.
        """
        if self.total.failed <= max_failure_rate * self.total.episodes and self.total.accuracy is not None:
            return
        first = next((t for t in self.trajectories if t.status is EpisodeStatus.FAILED), None)
        raise FailureRateError(
            f"{self.total.failed} of {self.total.episodes} evaluation episodes were lost, more than "
            f"{key}={max_failure_rate:g} allows. " + (f"The first: {first.cause}: {first.error}" if first else "")
        )

    def as_json(self) -> dict[str, Any]:
        """Everything but the episodes and what the clock says: the same each time the same episodes are played."""
        tools = {name: {"calls": each.calls, "errors": each.errors} for name, each in self.tools.tools.items()}
        return {
            "total": asdict(self.total),
            "rows": [asdict(row) for row in self.rows],
            "failures_by_cause": self.failures_by_cause,
            "tools": tools,
            "unknown_calls": self.tools.unknown_calls,
        }

    def times_as_json(self) -> dict[str, Any]:
        """Percentiles of seconds by tool; null for a tool that nothing reached."""
        return {
            name: {
                "latency_s": each.latency and each.latency._asdict(),
                "wait_s": each.wait and each.wait._asdict(),
            }
            for name, each in self.tools.tools.items()
        }


def is_success(env: Env | type[Env], trajectory: Trajectory) -> bool:
    """True if the episode solved its task: its `answer` reward, or else its whole reward without shaping, is full."""
    if not trajectory.status.is_valid or trajectory.reward is None:
        return False
    if "answer" in trajectory.rewards:
        return trajectory.rewards["answer"] >= 1.0
    weights: Mapping[str, float] = getattr(env, "shaping", {})
    shaping = sum(weight * trajectory.rewards.get(name, 0.0) for name, weight in weights.items())
    return trajectory.reward - shaping >= env.reward_range[1] - _ROUNDING


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
    z = 1.959963984540054
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def accuracy_interval(by_task: Sequence[Sequence[bool]]) -> tuple[float, Interval]:
    """Accuracy averaged by task, and its interval.

    Samples of one task are not independent: the interval is Wilson's with the effective sample size
    p(1 − p) / SE², SE² being the variance of the mean over tasks, kept between the tasks and the samples.
    """
    means = np.asarray([np.mean(samples) for samples in by_task], np.float64)
    total = sum(len(samples) for samples in by_task)
    p = float(means.mean())
    squared_error = float(means.var(ddof=1)) / len(means) if len(means) > 1 else 0.0
    effective = p * (1 - p) / squared_error if squared_error > 0 else float(len(means))
    effective = min(max(effective, float(len(means))), float(total))
    return p, wilson_interval(p * effective, effective)


async def play_all(
    player: EpisodePlayer,
    environments: EnvironmentPool,
    tasks: Sequence[Task],
    *,
    samples: int,
    seed: int,
    concurrency: int,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play `samples` episodes of each task; task by task in the result whatever ended first.

    Each episode's seed is a hash of `seed`, the task's id and the sample's index: order changes nothing.

    Raises:
        UsageError: an episode raised it.
    """
    slots = asyncio.Semaphore(concurrency)

    async def play(task: Task, index: int) -> list[Trajectory]:
        spec = EpisodeSpec(
            task=task,
            group_id=f"eval/{task.id}",
            sample_index=index,
            seed=derive_seed(seed, "evaluate", task.id, index),
        )
        async with slots, environments.lend() as env:
            played = await player.play_seats(env, spec)
        scored = [trajectory for trajectory in played if trajectory.seat not in player.others]
        if on_episode is not None:
            on_episode(scored[0])
        return scored

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(play(task, index)) for task in tasks for index in range(samples)]
    except BaseExceptionGroup as failures:
        raise single_error(failures) from None
    return [trajectory for task in running for trajectory in task.result()]


def summarize(env: Env | type[Env], trajectories: Sequence[Trajectory], *, row_keys: Sequence[str] = ()) -> Evaluation:
    """The figures of played episodes, in all and per value of each metadata key of `row_keys`.

    Raises:
        EpisodeError: there is no episode at all.
    """
    if not trajectories:
        raise EpisodeError("no episode was played: nothing to score")
    rows: list[EvaluationRow] = []
    for key in row_keys:
        values: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in trajectories:
            if key in trajectory.metadata:
                values[str(trajectory.metadata[key])].append(trajectory)
        rows += [_row(f"{key}={value}", env, values[value]) for value in sorted(values)]
    failures: dict[str, int] = defaultdict(int)
    for trajectory in trajectories:
        if trajectory.cause is not None:
            failures[trajectory.cause.value] += 1
    declared = () if isinstance(env, type) else [tool.name for tool in env.all_tools()]
    calls = (facts_of(event) for trajectory in trajectories for event in trajectory.tool_events())
    return Evaluation(
        total=_row("all", env, trajectories),
        rows=tuple(rows),
        failures_by_cause=dict(sorted(failures.items())),
        tools=tool_figures(calls, declared=declared),
        trajectories=tuple(trajectories),
    )


def _row(name: str, env: Env | type[Env], trajectories: Sequence[Trajectory]) -> EvaluationRow:
    by_task: dict[str, list[bool]] = {trajectory.task_id: [] for trajectory in trajectories}
    scored = [trajectory for trajectory in trajectories if trajectory.status.is_valid]
    for trajectory in scored:
        by_task[trajectory.task_id].append(is_success(env, trajectory))
    outcomes = [samples for samples in by_task.values() if samples]
    accuracy, interval = accuracy_interval(outcomes) if outcomes else (None, None)
    solved = sum(sum(samples) for samples in outcomes)
    return EvaluationRow(
        name=name,
        tasks=len(by_task),
        episodes=len(trajectories),
        scored=len(scored),
        failed=sum(trajectory.status is EpisodeStatus.FAILED for trajectory in trajectories),
        accuracy=accuracy,
        accuracy_low=interval.low if interval else None,
        accuracy_high=interval.high if interval else None,
        accuracy_over_all=solved / len(trajectories),
        mean_reward=float(np.mean([float(t.reward or 0.0) for t in scored])) if scored else None,
        pass_at_k=_pass_at_ks(outcomes),
        **_rates(scored or trajectories),
    )


def _pass_at_ks(outcomes: Sequence[Sequence[bool]]) -> dict[int, float]:
    fewest = min((len(samples) for samples in outcomes), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= fewest]
    return {k: float(np.mean([pass_at_k(len(s), sum(s), k) for s in outcomes])) for k in ks}


def _rates(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    events = [trajectory.tool_events() for trajectory in trajectories]
    calls = sum(len(each) for each in events)
    flat = [event for each in events for event in each]
    malformed = sum(facts_of(event).error is ToolErrorKind.MALFORMED_CALL for event in flat)
    return {
        "tool_call_rate": float(np.mean([bool(each) for each in events])),
        "tool_calls": calls / len(trajectories),
        "tool_error_rate": sum(not event.ok for event in flat) / calls if calls else 0.0,
        "malformed_call_rate": malformed / calls if calls else 0.0,
        "truncated_rate": float(np.mean([t.status is EpisodeStatus.TRUNCATED for t in trajectories])),
        "turns": float(np.mean([len(trajectory.turns) for trajectory in trajectories])),
        "sampled_tokens": float(np.mean([trajectory.sampled_tokens for trajectory in trajectories])),
    }


def row_keys_of(tasks: Sequence[Task]) -> list[str]:
    """Metadata keys worth a row per value: `level`, and those with 2 to 12 values and two tasks or more for each."""
    values: Mapping[str, set[str]] = defaultdict(set)
    for task in tasks:
        for key, value in task.metadata.items():
            if isinstance(value, (str, int, bool)):
                values[key].add(str(value))
    return [key for key, seen in values.items() if key == "level" or 2 <= len(seen) <= min(12, len(tasks) // 2)]
