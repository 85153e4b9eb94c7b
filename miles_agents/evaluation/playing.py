"""Playing the episodes of an evaluation: all of them, or those that are still to be played."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from miles_agents.contracts import Env
from miles_agents.errors import single_error
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.group_rewards import with_group_rewards
from miles_agents.rollout.player import EpisodePlayer, EpisodeSpec
from miles_agents.rollout.seeds import derive_seed
from miles_agents.types import Task, Trajectory

OnEpisode = Callable[[Sequence[Trajectory]], Awaitable[None]]
"""Told of each episode that has ended, before its place is given to another."""


def episodes_of(tasks: Sequence[Task], *, samples: int, seed: int) -> list[EpisodeSpec]:
    """The episodes of an evaluation, task by task.

    Each one's seed is a hash of `seed`, the task's id and the sample's index: order, concurrency, shards and what was
    played before change nothing.
    """
    return [
        EpisodeSpec(
            task=task,
            group_id=f"eval/{task.id}",
            sample_index=index,
            seed=derive_seed(seed, "evaluate", task.id, index),
        )
        for task in tasks
        for index in range(samples)
    ]


async def play_all(
    player: EpisodePlayer,
    environments: EnvironmentPool,
    tasks: Sequence[Task],
    *,
    samples: int,
    seed: int,
    concurrency: int,
) -> list[Trajectory]:
    """Play `samples` episodes of each task; see `play_episodes` and `episodes_of`."""
    return await play_episodes(
        player, environments, episodes_of(tasks, samples=samples, seed=seed), concurrency=concurrency
    )


async def play_episodes(
    player: EpisodePlayer,
    environments: EnvironmentPool,
    episodes: Sequence[EpisodeSpec],
    *,
    concurrency: int,
    on_episode: OnEpisode | None = None,
) -> list[Trajectory]:
    """Play the episodes; the trajectories of the seats that the player's policy plays, in the order of `episodes`.

    Raises:
        UsageError: an episode raised it.
    """
    slots = asyncio.Semaphore(concurrency)

    async def play(spec: EpisodeSpec) -> list[Trajectory]:
        async with slots:
            async with environments.lend() as env:
                played = await player.play_seats(env, spec)
            scored = [trajectory for trajectory in played if trajectory.seat not in player.others]
            if on_episode is not None:
                await on_episode(scored)
        return scored

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(play(spec)) for spec in episodes]
    except BaseExceptionGroup as failures:
        raise single_error(failures) from None
    return [trajectory for task in running for trajectory in task.result()]


async def with_rewards_of_groups(env: Env, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories, with the rewards that compare the samples of a task (of each seat) added; order is kept."""
    if type(env).group_rewards is Env.group_rewards:
        return list(trajectories)
    siblings: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        siblings[trajectory.group_id].append(trajectory)
    rewarded = {
        trajectory.id: trajectory
        for each in siblings.values()
        for trajectory in await with_group_rewards(env, sorted(each, key=lambda sample: sample.sample_index))
    }
    return [rewarded[trajectory.id] for trajectory in trajectories]
