"""Control groups, where this process may make them: memory, processes and CPU of a session.

A session takes a free slot (one group a controller) and gives it back empty; slots are made as needed. Groups carry
the owner's process id and start time in their name, so that a later run can sweep what a killed owner left.

Where slots are made:

- version 2, in the own group, where whoever manages the machine's groups has handed it over (`Delegate=yes` in
  systemd): as root or as an ordinary user. The kernel lets a group have processes or limited subgroups, not both, so
  the group's processes first move into a subgroup of it, where they stay until the group ends.
- version 2, otherwise, below the machine's root group: as root.
- version 1, below the own group of each controller: as root.

Any other group is somebody else's and left as it is.
"""

from __future__ import annotations

import contextlib
import errno
import functools
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
_PROCESSES_GROUP = f"{_PREFIX}-processes"  # where the processes of a delegated group move
# Kernels without swap accounting; before Linux 4.19; groups that were delegated without the CPU.
_OPTIONAL = (".memsw.limit_in_bytes", ".swap.max", ".oom.group", "/cpu.max", "/cpu.weight")
_MOVES = 50  # each takes what is there; more come while processes fork
_NEEDED, _WANTED = {"memory", "pids"}, {"memory", "pids", "cpu"}
_DELEGATED = ("user.delegate", "trusted.delegate")  # what systemd ≥ 251 notes on a group's folder; the latter for root
_SYSTEMD = Path("/run/systemd/system")  # there while systemd manages the machine's groups
_ASK_S = 10.0


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


@functools.cache
def parent_folders() -> dict[str, Path]:
    """Where groups can be made, by controller (`""` for the unified hierarchy); empty if they cannot.

    Found once: this process may become another user, in a user namespace, to whom the groups look like others' groups.
    """
    own = _own_groups()
    if (_MOUNTS / "cgroup.controllers").exists():
        folder = _delegated_folder(own.get("", "/")) or _machine_folder()
        return {"": folder} if folder else {}
    folders = {name: _MOUNTS / name / own.get(name, "").lstrip("/") for name in ("memory", "pids", "cpu")}
    usable = os.getuid() == 0 and all(folder.is_dir() and os.access(folder, os.W_OK) for folder in folders.values())
    return folders if usable else {}


def _controllers(file: Path) -> set[str]:
    return set(file.read_text().split())


def _machine_folder() -> Path | None:
    """The root group, which may hold processes and limited groups; that of a container is no such group."""
    is_root = not (_MOUNTS / "cgroup.type").exists()
    usable = is_root and os.getuid() == 0 and os.access(_MOUNTS, os.W_OK)
    return _MOUNTS if usable and _controllers(_MOUNTS / "cgroup.subtree_control") >= _NEEDED else None


def _delegated_folder(own: str) -> Path | None:
    """The own group, where it has been handed over to this user with the controllers that are needed."""
    folder = _MOUNTS / own.lstrip("/")
    if folder.name == _PROCESSES_GROUP:  # an earlier start moved this process
        folder = folder.parent
    if folder == _MOUNTS or ".." in folder.parts:  # a container's root group, or one outside of it
        return None
    try:
        writable = all(os.access(folder / file, os.W_OK) for file in ("", "cgroup.procs", "cgroup.subtree_control"))
        usable = writable and _controllers(folder / "cgroup.controllers") >= _NEEDED
        return folder if usable and _is_delegated(folder) else None
    except OSError:
        return None


def _is_delegated(folder: Path) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            return os.getxattr(folder, name) == b"1"
    if os.getuid() == 0 or folder.stat().st_uid != os.getuid():
        return False  # what root can write, or all of a group can, has not been handed over
    return not _SYSTEMD.exists() or _systemd_delegates(folder)


def _systemd_delegates(folder: Path) -> bool:
    """Ask the user's systemd: every group it makes belongs to the user, few are for others to divide."""
    import subprocess  # not at the top: every session is a fork of the zygote, which has no use for it

    command = ["systemctl", "--user", "show", "--property=Delegate", folder.name]
    environment = {"PATH": os.defpath, "XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, timeout=_ASK_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.split() == [b"Delegate=yes"]


def _divide(folder: Path) -> None:
    """Let a delegated group have limited subgroups.

    Raises:
        OSError: the kernel refuses.
    """
    wanted = _WANTED & _controllers(folder / "cgroup.controllers")
    if _controllers(folder / "cgroup.subtree_control") >= wanted:
        return
    (folder / _PROCESSES_GROUP).mkdir(exist_ok=True)
    for _ in range(_MOVES):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (folder / _PROCESSES_GROUP / "cgroup.procs").write_text(pid)
        try:
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(wanted)))
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, f"processes keep coming in {folder}")


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

    @property
    def active(self) -> bool:
        """Whether sessions are bounded by control groups."""
        return bool(self._parents)

    def check(self) -> None:
        """Find where slots can be made, and make one; where that fails, go without control groups."""
        try:
            for name, folder in parent_folders().items():
                if name == "" and folder != _MOUNTS:
                    _divide(folder)
                self._parents[name] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if self._parents:
                self.release(self.take())
        except OSError:
            for fd in self._parents.values():
                os.close(fd)
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
        optional = name.endswith(_OPTIONAL)
        try:
            fd = os.open(name, os.O_WRONLY, dir_fd=self._parents[controller])
        except FileNotFoundError:
            if optional:
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
