"""The data order: which task the n-th draw of a run is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from miles_agents.errors import DataError
from miles_agents.types import Task


def refuse_equal_ids(tasks: Sequence[Task]) -> None:
    """Episodes are told apart by their tasks' ids.

    Raises:
        DataError: two tasks have the same.
    """
    [(twice, times)] = Counter(task.id for task in tasks).most_common(1)
    if times > 1:
        raise DataError(f"two tasks have the id {twice!r}; task ids must be unique in a split")


class TaskSource:
    """An endless, seeded sequence of tasks: epoch after epoch, each in its own random order.

    `task_at(n)` depends on the seed, the tasks and n alone, so that a resumed run needs nothing but n.

    Raises:
        DataError: no tasks, or two tasks of one id.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        if not tasks:
            raise DataError("the environment has no tasks in the train split: nothing to train on")
        refuse_equal_ids(tasks)
        self._tasks = tuple(tasks)
        self._seed = seed
        self._epoch = -1
        self._order = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._tasks)

    def task_at(self, draw: int) -> Task:
        """The task of the draw with this index (0, 1, 2 …)."""
        epoch, place = divmod(draw, len(self._tasks))
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self._tasks))
            self._epoch = epoch
        return self._tasks[int(self._order[place])]
