"""Metrics of the groups a step trains on. Sampled tokens and tool tokens are counted apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from miles_agents.errors import ToolErrorKind
from miles_agents.runs.tool_figures import Percentiles, facts_of, tool_figures
from miles_agents.types import EpisodeStatus, Trajectory, TrajectoryGroup

_KINDS_OF_A_TOOL = [kind for kind in ToolErrorKind if kind not in (ToolErrorKind.NONE, ToolErrorKind.UNKNOWN_TOOL)]


def rollout_metrics(
    groups: Sequence[TrajectoryGroup], *, trainer_version: int, tools: Iterable[str] = ()
) -> dict[str, float]:
    """Flat metrics; every one is over the valid trajectories unless its name says otherwise.

    Args:
        groups: of the step.
        trainer_version: to tell which groups were drawn under the newest weights.
        tools: names of the environment's tools.
    """
    every = [trajectory for group in groups for trajectory in group.trajectories]
    valid = [trajectory for group in groups for trajectory in group.valid]
    rewards = np.asarray([float(trajectory.reward or 0.0) for trajectory in valid])
    names = sorted({name for trajectory in valid for name in trajectory.rewards})
    metrics = {
        "reward/raw_reward": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "reward/zero_variance_groups": float(np.mean([_is_constant(group) for group in groups])),
        "rollout/episodes": float(len(every)),
        "rollout/failed_episodes": float(sum(t.status is EpisodeStatus.FAILED for t in every)),
        "rollout/aborted_episodes": float(sum(t.status is EpisodeStatus.ABORTED for t in every)),
        "rollout/deadline_episodes": float(sum(t.truncated_by == "deadline" for t in every)),
        "rollout/truncated_rate": float(np.mean([t.status is EpisodeStatus.TRUNCATED for t in valid])),
        "rollout/turns": float(np.mean([len(trajectory.turns) for trajectory in valid])),
        "rollout/sampled_tokens": float(sum(trajectory.sampled_tokens for trajectory in every)),
        "rollout/sampled_tokens_per_episode": float(np.mean([t.sampled_tokens for t in valid])),
        "rollout/total_tokens": float(sum(_total_tokens(trajectory) for trajectory in every)),
        **_tool_metrics(valid),
        **tool_metrics(every, tools),
        "throughput/tool_seconds": float(sum(e.duration_s for t in every for e in t.tool_events())),
        "throughput/groups_from_current_version": float(np.mean([g.version == trainer_version for g in groups])),
    }
    for name in names:
        metrics[f"reward/{name}"] = float(np.mean([t.rewards.get(name, 0.0) for t in valid]))
    return metrics


def _tool_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    calls = [event for trajectory in valid for event in trajectory.tool_events()]
    turns = [turn for trajectory in valid for turn in trajectory.turns]
    return {
        "rollout/tool_call_rate": float(np.mean([bool(trajectory.tool_events()) for trajectory in valid])),
        "rollout/tool_calls": len(calls) / len(valid),
        "rollout/tool_error_rate": sum(not event.ok for event in calls) / len(calls) if calls else 0.0,
        "rollout/malformed_calls": float(sum(facts_of(event).error is ToolErrorKind.MALFORMED_CALL for event in calls)),
        "rollout/calls_in_reasoning": sum(turn.info.get("calls_in_reasoning", 0.0) for turn in turns),
        "rollout/reasoning_unclosed": sum(turn.info.get("reasoning_unclosed", 0.0) for turn in turns),
        "rollout/calls_ending_reasoning": sum(turn.info.get("calls_ending_reasoning", 0.0) for turn in turns),
    }


def tool_metrics(trajectories: Sequence[Trajectory], tools: Iterable[str]) -> dict[str, float]:
    """Calls, errors by kind and times of each tool, over all the trajectories: `tool/NAME/…` and `time/tool/NAME/…`.

    There is one set of keys for each of `tools`, whatever names the model makes up; calls of those are counted under
    `tool/unknown_calls`. Times are left out for a tool that nothing reached.
    """
    calls = (facts_of(event) for trajectory in trajectories for event in trajectory.tool_events())
    table = tool_figures(
        (call._replace(name=_in_key(call.name)) for call in calls), declared=[_in_key(name) for name in tools]
    )
    metrics = {"tool/unknown_calls": float(table.unknown_calls)}
    for name, figures in table.tools.items():
        metrics[f"tool/{name}/calls"] = float(figures.calls)
        metrics[f"tool/{name}/error_rate"] = figures.failed / figures.calls if figures.calls else 0.0
        for kind in _KINDS_OF_A_TOOL:
            metrics[f"tool/{name}/errors/{kind}"] = float(figures.errors.get(kind, 0))
        metrics |= _times(f"time/tool/{name}/latency", figures.latency)
        metrics |= _times(f"time/tool/{name}/wait", figures.wait)
    return metrics


def _times(prefix: str, percentiles: Percentiles | None) -> dict[str, float]:
    return {} if percentiles is None else {f"{prefix}_{p}_s": value for p, value in percentiles._asdict().items()}


def _in_key(name: str) -> str:
    """A tool's name as part of a metric's: trackers refuse most other characters, and `/` would make a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def _is_constant(group: TrajectoryGroup) -> bool:
    rewards = [trajectory.reward for trajectory in group.valid]
    return len(set(rewards)) <= 1


def _total_tokens(trajectory: Trajectory) -> int:
    if not trajectory.turns:
        return 0
    last = trajectory.turns[-1]
    return len(last.prompt_ids) + len(last.completion_ids)
