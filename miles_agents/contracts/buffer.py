"""The buffer contract: admission control with bounded staleness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from miles_agents.types import Task, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One task drawn for one group, with the policy version at its admission."""

    index: int  # 0, 1, 2 … over the whole run; the group's place in the data order
    task: Task
    version: int

    @property
    def group_id(self) -> str:
        """Unique per draw: one task drawn twice gives two groups."""
        return f"d{self.index}"


class TrajectoryBuffer(ABC):
    """Bounds staleness by admitting draws, holds finished groups, is checkpointed.

    Staleness of a group = trainer version when it is trained on − version when it was admitted.
    """

    @abstractmethod
    async def admit(self) -> Draw:
        """The next draw; waits while admitting it could break the bound. For rollout workers."""

    @abstractmethod
    async def put(self, *groups: TrajectoryGroup) -> None:
        """A finished draw: its group, or one group per trained seat. For rollout workers."""

    @abstractmethod
    async def take(self, count: int) -> list[TrajectoryGroup]:
        """The groups of the next `count` draws to train on, in draw order. For the controller."""

    @abstractmethod
    async def release(self, groups: list[TrajectoryGroup], *, version: int) -> None:
        """These were trained on and `version` was pushed: forget them, admit more."""

    @abstractmethod
    def inject(self, tasks: list[Task]) -> None:
        """Draw these tasks before those of the task source."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """JSON state: cursor, version, finished groups, injected tasks; unfinished draws are drawn again."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
