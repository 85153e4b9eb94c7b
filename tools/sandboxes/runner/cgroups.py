"""Control groups, where this process may make them (as root): memory, processes and CPU of a session.

A session takes a free slot (one group a controller) and gives it back empty; slots are made as needed. Groups carry
the owner's process id and start time in their name, so that a later run can sweep what a killed owner left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

_PREFIX = "miles-agents"
_MOUNTS = Path("/sys/fs/cgroup")
_RUNNER_MB = 64  # the supervisor and the pages it shares with the zygote
_RUNNER_PROCESSES = 8
_CPU_PERIOD_US = 100_000
# A group counts as one against each process beside it, whatever the niceness inside: so it weighs what one process at
# nice 10 weighs (110 of 1024).
_CPU_SHARES, _CPU_WEIGHT = 110, 11
_SWEEP_S = 2.0


def start_time(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def owner_name(pid: int) -> str:
    """What the names of all groups made for a process begin with."""
    return f"{_PREFIX}-{pid}-{start_time(pid)}"


def _settings(memory_mb: int, processes: int, *, unified: bool) -> dict[str, dict[str, str]]:
    """Files to write, by controller."""
    memory = str((memory_mb + _RUNNER_MB) << 20)
    tasks = str(processes + _RUNNER_PROCESSES)
    if unified:
        weight = {"cpu.weight": str(_CPU_WEIGHT)}
        both = {"memory.max": memory, "memory.swap.max": "0", "memory.oom.group": "0"}
        return {"": {**both, "pids.max": tasks, "cpu.max": f"{_CPU_PERIOD_US} {_CPU_PERIOD_US}", **weight}}
    return {
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": tasks},
        "cpu": {"cpu.cfs_quota_us": str(_CPU_PERIOD_US), "cpu.shares": str(_CPU_SHARES)},
    }


def _own_groups() -> dict[str, str]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    fields = (line.split(":", 2) for line in lines)
    return {controller: path for _, controllers, path in fields for controller in controllers.split(",")}


def parent_folders() -> dict[str, Path]:
    """Where groups can be made, by controller (`""` for the unified hierarchy); empty if they cannot."""
    if (_MOUNTS / "cgroup.controllers").exists():
        enabled = (_MOUNTS / "cgroup.subtree_control").read_text().split()
        return {"": _MOUNTS} if {"memory", "pids", "cpu"} <= set(enabled) and os.access(_MOUNTS, os.W_OK) else {}
    own = _own_groups()
    folders = {name: _MOUNTS / name / own.get(name, "").lstrip("/") for name in ("memory", "pids", "cpu")}
    usable = all(folder.is_dir() and os.access(folder, os.W_OK) for folder in folders.values())
    return folders if usable else {}


class ControlGroups:
    """The slots of one zygote, reached through open folders: they work after the zygote has left the host's tree.

    Args:
        owner: `owner_name` of the host process, and `_` with a number of its own.
        memory_mb: of one session, in all its processes.
        processes: of one session.
    """

    def __init__(self, owner: str, *, memory_mb: int, processes: int) -> None:
        self._owner = owner
        self._limits = (memory_mb, processes)
        self._parents: dict[str, int] = {}
        self._free: list[int] = []
        self._made = 0
        if os.getuid() != 0:
            return
        for name, folder in parent_folders().items():
            self._parents[name] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def active(self) -> bool:
        """Whether sessions are bounded by control groups."""
        return bool(self._parents)

    def check(self) -> None:
        """Make one slot and join nothing; where that fails, go without control groups."""
        if not self.active:
            return
        try:
            self.release(self.take())
        except OSError:
            for folder in self._parents.values():
                os.close(folder)
            self._parents = {}

    def take(self) -> int:
        """A free slot, made if there is none."""
        if self._free:
            return self._free.pop()
        slot = self._made
        self._made += 1
        memory_mb, processes = self._limits
        settings = _settings(memory_mb, processes, unified="" in self._parents)
        for controller, files in settings.items():
            group = self._group(slot)
            os.mkdir(group, dir_fd=self._parents[controller])
            for file, value in files.items():
                self._write(controller, f"{group}/{file}", value)
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back, once all its processes are gone."""
        self._free.append(slot)

    def join(self, slot: int) -> None:
        """Put the calling process into a slot; its children follow."""
        for controller in self._parents:
            self._write(controller, f"{self._group(slot)}/cgroup.procs", "0")

    def remove(self) -> None:
        """Remove every slot."""
        for slot in range(self._made):
            for folder in self._parents.values():
                with contextlib.suppress(OSError):  # one that is busy is swept later, by its name
                    os.rmdir(self._group(slot), dir_fd=folder)

    def _group(self, slot: int) -> str:
        return f"{self._owner}-{slot}"

    def _write(self, controller: str, name: str, value: str) -> None:
        optional = name.endswith((".memsw.limit_in_bytes", ".swap.max", ".oom.group"))
        try:
            fd = os.open(name, os.O_WRONLY, dir_fd=self._parents[controller])
        except FileNotFoundError:
            if optional:  # a kernel without swap accounting
                return
            raise
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def sweep(owner: str | None = None) -> None:
    """Remove the groups of `owner`, or of every owner that is no longer alive."""
    for folder in parent_folders().values():
        for group in _groups_in(folder):
            name, _, _ = group.name.rpartition("-")
            process = name.partition("_")[0]
            left_over = name == owner if owner else process != owner_name(int(name.split("-")[2]))
            if left_over:
                _remove(group)


def _groups_in(folder: Path) -> Iterable[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(group for group in folder.glob(f"{_PREFIX}-*-*-*") if group.is_dir())


def _remove(group: Path) -> None:
    """Groups of dead namespaces empty by themselves; the kernel may need a moment."""
    deadline = time.monotonic() + _SWEEP_S
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return
        time.sleep(0.005)
