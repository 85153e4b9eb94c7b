"""The trajectory buffer: bounded staleness by admission control, in draw order.

With G groups a step, a draw behind n others that are still to be trained has its turn n // G versions from now. It is
admitted only once that is at most `max_staleness`, so no group can be staler than the bound when its turn comes,
however long it plays. Groups are handed out in draw order: slow episodes are waited for, never dropped or put behind
fast ones, so the data order does not depend on timing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from miles_agents.contracts import Draw, TrajectoryBuffer
from miles_agents.errors import ConfigError, MilesError
from miles_agents.rollout.source import TaskSource
from miles_agents.runs.trajectories import group_from_json, group_to_json, task_from_json, task_to_json
from miles_agents.types import Task, TrajectoryGroup

_log = logging.getLogger(__name__)


class BoundedStalenessBuffer(TrajectoryBuffer):
    """The buffer of one run; lives in one event loop.

    Args:
        source: the data order.
        groups_per_step: G.
        max_staleness: the bound, in policy versions; 0 is synchronous.
        steps: the version at which training ends: what would have its turn then is not drawn. None: it never ends.
    """

    def __init__(
        self, source: TaskSource, *, groups_per_step: int, max_staleness: int, steps: int | None = None
    ) -> None:
        self._source = source
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._steps = steps
        self.version = 0
        self._next_draw = 0  # index of the next new draw
        self._next_task = 0  # place of the next draw in the task source (injected tasks have none)
        self._injected: list[Task] = []
        self._again: list[tuple[int, Task]] = []  # draws that were in flight when the state was saved
        self._in_flight: dict[int, Draw] = {}
        self._ready: dict[int, tuple[TrajectoryGroup, ...]] = {}
        self._taken: dict[int, tuple[TrajectoryGroup, ...]] = {}
        self.discarded = 0  # groups without a valid trajectory
        self.restarted = 0  # unfinished draws that were begun again after a resume
        self._changed = asyncio.Condition()

    async def admit(self) -> Draw:
        """The next draw; waits while admitting it could break the bound."""
        async with self._changed:
            await self._changed.wait_for(self._may_admit)
            if self._again:
                index, task = self._again.pop(0)
            else:
                index, task = self._next_draw, self._next_new_task()
                self._next_draw += 1
            draw = Draw(index=index, task=task, version=self.version)
            self._in_flight[index] = draw
            return draw

    def _may_admit(self) -> bool:
        index = self._again[0][0] if self._again else self._next_draw
        ahead = sum(other < index for draws in (self._taken, self._ready, self._in_flight) for other in draws)
        wait = ahead // self._groups_per_step
        return wait <= self._max_staleness and (self._steps is None or self.version + wait < self._steps)

    def _next_new_task(self) -> Task:
        if self._injected:
            return self._injected.pop(0)
        self._next_task += 1
        return self._source.task_at(self._next_task - 1)

    async def put(self, *groups: TrajectoryGroup) -> None:
        """A finished draw; groups without a valid trajectory are discarded; if none is left, the draw is replaced."""
        [draw] = {group.draw for group in groups}
        async with self._changed:
            if self._in_flight.pop(draw, None) is None:
                raise MilesError(f"group {groups[0].id} was put twice or was never admitted")
            valid = tuple(group for group in groups if group.valid)
            if valid:
                self._ready[draw] = valid
            else:
                self.discarded += 1
                _log.warning("group %s of task %s has no valid episode: replaced", groups[0].id, groups[0].task_id)
            self._changed.notify_all()

    async def take(self, count: int) -> list[TrajectoryGroup]:
        """The groups of the next `count` draws, in order; waits until they and all draws before them are finished."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._complete(count))
            chosen = sorted(self._ready)[:count]
            taken = {index: self._ready.pop(index) for index in chosen}
            self._taken.update(taken)
            return [group for groups in taken.values() for group in groups]

    def _complete(self, count: int) -> bool:
        ready = sorted(self._ready)[:count]
        pending = [*self._in_flight, *(index for index, _ in self._again)]
        return len(ready) == count and all(index > ready[-1] for index in pending)

    async def release(self, groups: list[TrajectoryGroup], *, version: int) -> None:
        """These were trained on and `version` was pushed: forget them, admit more."""
        async with self._changed:
            for draw in {group.draw for group in groups}:
                del self._taken[draw]
            self.version = version
            self._changed.notify_all()

    def inject(self, tasks: list[Task]) -> None:
        """Draw these tasks before those of the task source."""
        self._injected.extend(tasks)

    def state_dict(self) -> dict[str, Any]:
        """JSON state. Taken groups are saved as ready: a step that was not finished is trained again."""
        flying = [(draw.index, draw.task) for draw in self._in_flight.values()]
        again = sorted([*self._again, *flying], key=lambda entry: entry[0])
        ready = {**self._ready, **self._taken}
        return {
            "version": self.version,
            "next_draw": self._next_draw,
            "next_task": self._next_task,
            "discarded": self.discarded,
            "restarted": self.restarted,
            "injected": [task_to_json(task) for task in self._injected],
            "again": [[index, task_to_json(task)] for index, task in again],
            "ready": [group_to_json(group) for index in sorted(ready) for group in ready[index]],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; unfinished draws start again from reset, with their seeds.

        Raises:
            ConfigError: it was saved under a larger `max_staleness` or `groups_per_step`, and holds groups that would
                be staler than the bound when their turn comes.
        """
        self.version = int(state["version"])
        self._next_draw = int(state["next_draw"])
        self._next_task = int(state["next_task"])
        self.discarded = int(state["discarded"])
        self._injected = [task_from_json(each) for each in state["injected"]]
        self._again = [(int(index), task_from_json(each)) for index, each in state["again"]]
        self.restarted = int(state["restarted"]) + len(self._again)
        self._ready = {}
        for group in (group_from_json(each) for each in state["ready"]):
            self._ready[group.draw] = (*self._ready.get(group.draw, ()), group)
        self._taken = {}
        self._in_flight = {}
        self._refuse_stale()

    def _refuse_stale(self) -> None:
        coming = sorted([*self._ready, *(index for index, _ in self._again)])
        ages = [
            self.version + place // self._groups_per_step - trajectory.min_version
            for place, index in enumerate(coming)
            for group in self._ready.get(index, ())
            for trajectory in group.valid
        ]
        if max(ages, default=0) > self._max_staleness:
            raise ConfigError(
                f"the checkpoint holds finished episodes that will be {max(ages)} policy versions old when trained on: "
                f"go on with rollout.max_staleness={max(ages)} or more, or with the former rollout.groups_per_step"
            )
