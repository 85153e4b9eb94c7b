"""Rewards that compare the siblings of a group, added once all its episodes are over."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from miles_agents.contracts import Env
from miles_agents.errors import EpisodeError, FailureCause, GraderError, UsageError
from miles_agents.types import EpisodeStatus, Trajectory

_DEADLINE_S = 120.0
_log = logging.getLogger(__name__)


async def with_group_rewards(env: Env, siblings: Sequence[Trajectory]) -> tuple[Trajectory, ...]:
    """The siblings of one draw and seat, with the environment's group rewards added to the valid ones.

    If these cannot be worked out every valid sibling is lost, with one cause: a group of which some have them and
    some have not would compare unlike things.

    Args:
        env: any instance; it plays no episode now.
        siblings: in the order of their sample index.
    """
    valid = [trajectory for trajectory in siblings if trajectory.status.is_valid]
    if not valid or type(env).group_rewards is Env.group_rewards:
        return tuple(siblings)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            given = await env.group_rewards(valid)
        rewards = None if given is None else _checked(given, valid)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 — seam: a bug in group_rewards loses this group, not the run
        cause = error.cause if isinstance(error, EpisodeError) else FailureCause.GRADER
        why = f"group_rewards: {type(error).__name__}: {error}"
        _log.warning("group %s is lost: %s", valid[0].group_id, why)
        return tuple(_lost(each, cause, why) if each.status.is_valid else each for each in siblings)
    if rewards is None:
        return tuple(siblings)
    weights: Mapping[str, float] = getattr(env, "reward_weights", {})
    by_id = dict(zip((trajectory.id for trajectory in valid), rewards, strict=True))
    return tuple(_with(each, by_id[each.id], weights) if each.id in by_id else each for each in siblings)


def _checked(given: Sequence[Mapping[str, float]], valid: Sequence[Trajectory]) -> list[dict[str, float]]:
    if len(given) != len(valid):
        raise GraderError(f"it gave {len(given)} mappings for {len(valid)} trajectories")
    checked = [{name: float(value) for name, value in each.items()} for each in given]
    for trajectory, rewards in zip(valid, checked, strict=True):
        wrong = {name: value for name, value in rewards.items() if not math.isfinite(value)}
        twice = sorted(set(rewards) & set(trajectory.rewards))
        if wrong or twice:
            raise GraderError(f"not finite: {wrong}" if wrong else f"reward {twice[0]!r} is the episode's own already")
    return checked


def _with(trajectory: Trajectory, rewards: Mapping[str, float], weights: Mapping[str, float]) -> Trajectory:
    added = sum(weights.get(name, 1.0) * value for name, value in rewards.items())
    return replace(trajectory, reward=(trajectory.reward or 0.0) + added, rewards={**trajectory.rewards, **rewards})


def _lost(trajectory: Trajectory, cause: FailureCause, why: str) -> Trajectory:
    return replace(
        trajectory,
        status=EpisodeStatus.FAILED,
        reward=None,
        rewards={},
        cause=cause,
        error=" ".join(why.split())[:500],
        truncated_by="",
    )
