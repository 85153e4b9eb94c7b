"""Parts of an evaluation's tasks, for several processes or machines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from miles_agents.errors import ConfigError
from miles_agents.types import Task


class Shard(NamedTuple):
    """Part `number` (from 0) of `parts`."""

    number: int
    parts: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`0/2` is the first of two.

        Raises:
            ConfigError: anything else.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None or int(match[1]) >= int(match[2]):
            raise ConfigError(f"shard={text}: write shard=0/2 for the first of two parts and shard=1/2 for the second")
        return cls(int(match[1]), int(match[2]))

    def tasks(self, tasks: Sequence[Task]) -> list[Task]:
        """This part of the tasks: dealt out in the order of a hash of their ids. Their own order is kept.

        Raises:
            ConfigError: it would be empty.
        """
        if self.parts > len(tasks):
            raise ConfigError(
                f"shard={self.number}/{self.parts}: there are {len(tasks)} tasks; write {len(tasks)} parts or fewer"
            )
        ids = sorted((task.id for task in tasks), key=_digest)
        mine = set(ids[self.number :: self.parts])
        return [task for task in tasks if task.id in mine]


def _digest(task_id: str) -> bytes:
    return hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
