"""The figures of played episodes: accuracy with its interval, pass@k, majority@k, rates; rows per group of tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from miles_agents.contracts import Env
from miles_agents.errors import EpisodeError, FailureRateError, ToolErrorKind
from miles_agents.evaluation.intervals import IntervalKind, accuracy_interval, pass_at_k
from miles_agents.evaluation.votes import Answers, majority_score
from miles_agents.runs.tool_figures import ToolTable, facts_of, tool_figures
from miles_agents.types import EpisodeStatus, Task, Trajectory

SOLVED, NOT_SOLVED, LOST = "1", "0", "-"  # of one sample in `Evaluation.outcomes`
BETWEEN_SEATS = "/"

_ROUNDING = 1e-9  # of a sum of rewards
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_VALUES = 12  # of a metadata key that gets rows


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """Figures over one set of tasks. `accuracy` and all that follows from it is None if nothing was scored.

    Where the policy plays several seats of an episode each counts as an episode of its own.
    """

    name: str
    tasks: int
    episodes: int
    scored: int
    failed: int
    accuracy: float | None  # over scored episodes, averaged by task
    accuracy_low: float | None  # 95 % interval
    accuracy_high: float | None
    accuracy_over_all: float  # lost episodes counted as not solved
    mean_reward: float | None
    pass_at_k: dict[int, float]  # only k that every task has samples for; also a run's own number of samples
    majority_at_k: dict[int, float]  # of the first k samples, k the fewest that a task has; needs answers as text
    tool_call_rate: float  # share of episodes with at least one call
    tool_calls: float  # per episode
    tool_error_rate: float  # share of calls answered by an error
    malformed_call_rate: float  # share of calls that could not be read
    truncated_rate: float
    turns: float
    sampled_tokens: float  # per episode
    prompt_tokens: float  # per episode: what the model was given, over all turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation's figures and its episodes."""

    total: EvaluationRow
    rows: tuple[EvaluationRow, ...]  # by seat, then by `level`, `kind` … of the tasks' metadata
    failures_by_cause: dict[str, int]
    truncated_by: dict[str, int]  # of scored episodes: which limit cut them off
    tools: ToolTable  # over all episodes, lost ones too
    outcomes: dict[str, str]  # by task: a sign for each sample in order, `/` between seats
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
            "truncated_by": self.truncated_by,
            "tools": tools,
            "unknown_calls": self.tools.unknown_calls,
            "outcomes": self.outcomes,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Summing:
    """What is asked of a summary besides the episodes."""

    row_keys: Sequence[str] = ()  # metadata keys: a row for each of their values, or for each entry of a list
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)  # further rows: name → ids of tasks
    interval: IntervalKind = IntervalKind.WILSON
    seed: int = 0  # of the bootstrap
    answers: Answers = field(default_factory=dict)  # see votes.grouped_answers


def is_success(env: Env | type[Env], trajectory: Trajectory) -> bool:
    """True if the episode solved its task: its `answer` reward, or else its whole reward without shaping, is full."""
    if not trajectory.status.is_valid or trajectory.reward is None:
        return False
    if "answer" in trajectory.rewards:
        return trajectory.rewards["answer"] >= 1.0
    weights: Mapping[str, float] = getattr(env, "shaping", {})
    shaping = sum(weight * trajectory.rewards.get(name, 0.0) for name, weight in weights.items())
    return trajectory.reward - shaping >= env.reward_range[1] - _ROUNDING


def summarize(env: Env | type[Env], trajectories: Sequence[Trajectory], asked: Summing | None = None) -> Evaluation:
    """The figures of played episodes, in all, by seat if there are several, and as `asked` says.

    Args:
        env: says what a solved task is, and names its tools.
        trajectories: in the order of tasks and samples.
        asked: further rows and how they are worked out.

    Raises:
        EpisodeError: there is no episode at all.
    """
    if not trajectories:
        raise EpisodeError("no episode was played: nothing to score")
    asked = asked or Summing()
    solved = {trajectory.id: is_success(env, trajectory) for trajectory in trajectories}
    failures: dict[str, int] = defaultdict(int)
    cut: dict[str, int] = defaultdict(int)
    for trajectory in trajectories:
        if trajectory.cause is not None:
            failures[trajectory.cause.value] += 1
        if trajectory.status is EpisodeStatus.TRUNCATED:
            cut[trajectory.truncated_by] += 1
    declared = () if isinstance(env, type) else [tool.name for tool in env.all_tools()]
    calls = (facts_of(event) for trajectory in trajectories for event in trajectory.tool_events())
    return Evaluation(
        total=_row("all", trajectories, solved, asked),
        rows=tuple(_row(name, members, solved, asked) for name, members in _parts(env, trajectories, asked)),
        failures_by_cause=dict(sorted(failures.items())),
        truncated_by=dict(sorted(cut.items())),
        tools=tool_figures(calls, declared=declared),
        outcomes=_outcomes(trajectories, solved),
        trajectories=tuple(trajectories),
    )


def _parts(
    env: Env | type[Env], trajectories: Sequence[Trajectory], asked: Summing
) -> list[tuple[str, list[Trajectory]]]:
    """The trajectories of each row."""
    parts: list[tuple[str, list[Trajectory]]] = []
    seats = list(dict.fromkeys(trajectory.seat for trajectory in trajectories))
    if len(seats) > 1 or len(env.seats) > 1:  # with an opponent the one seat has a row too, with its name
        parts += [(f"seat={seat}", [each for each in trajectories if each.seat == seat]) for seat in seats]
    for key in asked.row_keys:
        values: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in trajectories:
            for value in _values(trajectory.metadata.get(key)):
                values[value].append(trajectory)
        parts += [(f"{key}={value}", values[value]) for value in sorted(values)]
    for name, ids in asked.groups.items():
        if members := [each for each in trajectories if each.task_id in ids]:
            parts.append((name, members))
    return parts


def _values(value: Any) -> list[str]:
    if value is None:
        return []
    return list(dict.fromkeys(map(str, value))) if isinstance(value, (list, tuple)) else [str(value)]


def _outcomes(trajectories: Sequence[Trajectory], solved: Mapping[str, bool]) -> dict[str, str]:
    signs: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(str))
    for trajectory in trajectories:
        sign = (SOLVED if solved[trajectory.id] else NOT_SOLVED) if trajectory.status.is_valid else LOST
        signs[trajectory.task_id][trajectory.seat] += sign
    return {task: BETWEEN_SEATS.join(seats.values()) for task, seats in signs.items()}


def _row(name: str, trajectories: Sequence[Trajectory], solved: Mapping[str, bool], asked: Summing) -> EvaluationRow:
    scored = [trajectory for trajectory in trajectories if trajectory.status.is_valid]
    by_task: dict[str, list[bool]] = defaultdict(list)
    by_seat: dict[tuple[str, str], list[Trajectory]] = defaultdict(list)
    for trajectory in scored:
        by_task[trajectory.task_id].append(solved[trajectory.id])
        by_seat[trajectory.task_id, trajectory.seat].append(trajectory)
    accuracy, interval = None, None
    if by_task:
        accuracy, interval = accuracy_interval(list(by_task.values()), kind=asked.interval, seed=asked.seed)
    return EvaluationRow(
        name=name,
        tasks=len({trajectory.task_id for trajectory in trajectories}),
        episodes=len(trajectories),
        scored=len(scored),
        failed=sum(trajectory.status is EpisodeStatus.FAILED for trajectory in trajectories),
        accuracy=accuracy,
        accuracy_low=interval.low if interval else None,
        accuracy_high=interval.high if interval else None,
        accuracy_over_all=sum(map(sum, by_task.values())) / len(trajectories),
        mean_reward=float(np.mean([float(t.reward or 0.0) for t in scored])) if scored else None,
        pass_at_k=_pass_at_ks([[solved[each.id] for each in samples] for samples in by_seat.values()]),
        majority_at_k=_majority(list(by_seat.values()), solved, asked.answers),
        **_rates(scored or trajectories),
    )


def _pass_at_ks(outcomes: Sequence[Sequence[bool]]) -> dict[int, float]:
    fewest = min((len(samples) for samples in outcomes), default=0)
    ks = [k for k in _POWERS if k < fewest] + [fewest] * bool(fewest)
    return {k: float(np.mean([pass_at_k(len(s), sum(s), k) for s in outcomes])) for k in ks}


def _majority(
    samples: Sequence[Sequence[Trajectory]], solved: Mapping[str, bool], answers: Answers
) -> dict[int, float]:
    fewest = min((len(each) for each in samples), default=0)
    if fewest < 2 or not any(trajectory.id in answers for each in samples for trajectory in each):
        return {}
    votes = [[(answers.get(t.id), solved[t.id]) for t in each[:fewest]] for each in samples]
    return {fewest: float(np.mean([majority_score(each) for each in votes]))}


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
        "prompt_tokens": float(np.mean([trajectory.prompt_tokens for trajectory in trajectories])),
    }


def row_keys_of(tasks: Sequence[Task]) -> list[str]:
    """Metadata keys worth a row per value: `level`, and those with 2 to 12 values and two tasks or more for each.

    A list (tags) counts as many values; its task is in the row of each.
    """
    values: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        for key, value in task.metadata.items():
            if isinstance(value, (str, int, bool)) or _is_tags(value):
                values[key].update(_values(value))
    most = min(_MOST_VALUES, len(tasks) // 2)
    return [key for key, seen in values.items() if key == "level" or 2 <= len(seen) <= most]


def _is_tags(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
