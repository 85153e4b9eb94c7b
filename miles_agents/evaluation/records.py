"""The trajectories of an evaluation as JSON lines, appended as episodes end and read back to go on.

A line is a trajectory as `runs/trajectories.py` writes it, arrays inside. Rewards that compare samples are worked out
when all have ended; a trajectory that has them keeps what it was before in `alone`, so that they can be worked out
again.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from miles_agents.errors import DataError, RunFolderError
from miles_agents.runs.durable import sync_folder, write_atomic
from miles_agents.runs.json_values import dumps
from miles_agents.runs.trajectories import trajectory_from_json, trajectory_to_json
from miles_agents.types import Trajectory

_ALONE = "alone"
_CHANGED = ("status", "cause", "error", "truncated_by", "reward", "rewards")  # by rewards that compare samples


class EpisodeLog:
    """A file that episodes are appended to. `close` it at the end; it may be opened again.

    Args:
        path: made with the first episode. What a crash left unfinished at its end is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._written = self._synced = 0
        self._syncing = asyncio.Lock()

    async def append(self, trajectories: Sequence[Trajectory]) -> None:
        """Write the seats of one episode, in one piece; returns once they are on the disk.

        Episodes that end while the disk is at work share its next turn.

        Raises:
            RunFolderError: the disk is full, or the file cannot be written; what was written before is intact.
            DataError: a value is no JSON value.
        """
        lines = "".join(_line(trajectory_to_json(trajectory)) for trajectory in trajectories)
        try:
            self._write(lines.encode("utf-8"))
            await self._sync()
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {error.strerror}; the episodes before are kept: make room and go on with "
                "resume=true"
            ) from error

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.lseek(self._file, _cut_unfinished(self._file), os.SEEK_SET)
            sync_folder(self.path.parent)
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._written += 1

    async def _sync(self) -> None:
        mine = self._written
        async with self._syncing:
            if self._synced < mine and self._file is not None:
                upto = self._written
                await asyncio.to_thread(os.fsync, self._file)
                self._synced = upto


def _cut_unfinished(file: int) -> int:
    """Cut the file behind its last line break; its length then comes back."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - (1 << 16))
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
    return end


def read_log(path: Path) -> list[Trajectory]:
    """The recorded trajectories as they were before rewards that compare samples; of equal ids the last one.

    A last line that a crash left unfinished is passed over.

    Raises:
        DataError: another line is no trajectory; it is named.
    """
    if not path.is_file():
        return []
    found: dict[str, Trajectory] = {}
    *lines, _unfinished = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            trajectory = trajectory_from_json({**record, **record.get(_ALONE, {})})
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not a trajectory ({type(error).__name__}: {error})") from error
        found[trajectory.id] = trajectory
    return list(found.values())


def write_log(path: Path, trajectories: Iterable[tuple[Trajectory, Trajectory]]) -> None:
    """Write the file anew, atomically.

    Args:
        path: the file.
        trajectories: each as it is, and as it was before rewards that compare samples (the same where it has none).
    """
    lines: list[str] = []
    for trajectory, alone in trajectories:
        record = trajectory_to_json(trajectory)
        if alone is not trajectory:
            before = trajectory_to_json(alone)
            record[_ALONE] = {key: before[key] for key in _CHANGED}
        lines.append(_line(record))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "".join(lines))


def _line(record: dict[str, Any]) -> str:
    return dumps(record) + "\n"
