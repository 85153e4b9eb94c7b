"""Rollout workers: draw → group of episodes → buffer.

A worker consumes draws admitted by the buffer, waits for its group's episodes, and is unblocked by the buffer
admitting another draw (after a weight push). Workers are asyncio tasks of one TaskGroup: an error that is no lost
episode ends all of them and the training loop with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from miles_agents.contracts import Draw, TrajectoryBuffer
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.group_rewards import with_group_rewards
from miles_agents.rollout.ledger import FailureLedger
from miles_agents.rollout.player import EpisodePlayer, EpisodeSpec
from miles_agents.rollout.seeds import derive_seed
from miles_agents.types import EpisodeStatus, Trajectory, TrajectoryGroup


class GroupWorkers:
    """Plays groups of episodes.

    Args:
        player: plays one episode.
        environments: lends environments.
        ledger: counts lost episodes and stops the run when there are too many.
        group_size: episodes per draw.
        concurrency: episodes in play at once.
        retries: times a lost episode is played again (with the same seed).
        seed: base seed of the run.
    """

    def __init__(
        self,
        *,
        player: EpisodePlayer,
        environments: EnvironmentPool,
        ledger: FailureLedger,
        group_size: int,
        concurrency: int,
        retries: int,
        seed: int,
    ) -> None:
        self._player = player
        self._environments = environments
        self._ledger = ledger
        self._group_size = group_size
        self._retries = retries
        self._seed = seed
        self._episodes = asyncio.Semaphore(concurrency)
        self.count = -(-concurrency // group_size)

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled so far, in all episodes."""
        return self._player.sampled_tokens

    async def run(self, buffer: TrajectoryBuffer) -> None:
        """One worker's life: groups, one after the other, until it is cancelled."""
        while True:
            draw = await buffer.admit()
            groups = await self.play_groups(draw)
            for group in groups:
                if not group.valid:
                    self._ledger.count(group)
            await buffer.put(*groups)

    async def play_group(self, draw: Draw) -> TrajectoryGroup:
        """The group of an environment with one seat; see `play_groups`."""
        [group] = await self.play_groups(draw)
        return group

    async def play_groups(self, draw: Draw) -> list[TrajectoryGroup]:
        """Play the episodes of one draw: a group for each seat that is trained.

        Lost episodes stay in their groups as failed trajectories.
        """
        async with asyncio.TaskGroup() as group:
            episodes = [group.create_task(self._play(draw, index)) for index in range(self._group_size)]
        seats: dict[str, list[Trajectory]] = {}
        for episode in episodes:
            for trajectory in episode.result():
                if trajectory.seat not in self._player.others:
                    seats.setdefault(trajectory.seat, []).append(trajectory)
        return [await self._group(draw, seat, siblings) for seat, siblings in seats.items()]

    async def _group(self, draw: Draw, seat: str, siblings: Sequence[Trajectory]) -> TrajectoryGroup:
        return TrajectoryGroup(
            id=siblings[0].group_id,
            task_id=draw.task.id,
            draw=draw.index,
            version=draw.version,
            trajectories=await with_group_rewards(self._environments.catalogue, siblings),
            seat=seat,
        )

    async def _play(self, draw: Draw, sample_index: int) -> tuple[Trajectory, ...]:
        spec = EpisodeSpec(
            task=draw.task,
            group_id=draw.group_id,
            sample_index=sample_index,
            draw=draw.index,
            # Hash of run seed, draw, task and sample: siblings differ, and nothing depends on order (case H05).
            seed=derive_seed(self._seed, "episode", draw.index, draw.task.id, sample_index),
            version=draw.version,
        )
        for attempt in range(self._retries + 1):
            async with self._episodes, self._environments.lend() as env:
                trajectories = await self._player.play_seats(env, spec)
            again = trajectories[0].status is EpisodeStatus.FAILED and attempt < self._retries
            self._ledger.attempt(trajectories[0], retried=again)
            if not again:
                break
        return trajectories


@asynccontextmanager
async def rollouts(workers: GroupWorkers, buffer: TrajectoryBuffer) -> AsyncIterator[None]:
    """Run the workers while the body runs; they are cancelled at its end.

    Raises:
        BaseExceptionGroup: what a worker raised, around the body's cancellation.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(workers.run(buffer)) for _ in range(workers.count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
