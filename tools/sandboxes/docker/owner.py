"""Whose a container is: names and labels that are known before it is made, and what tells that its owner is gone."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from miles_agents.tools.sandboxes.runner.cgroups import owner_name, start_time

LABEL = "miles-agents.run"  # on every container of ours; its value is the run's name
_PLACE, _USER, _PID, _START = (f"miles-agents.{name}" for name in ("place", "user", "pid", "start"))
_runs = itertools.count()


def _place() -> str:
    """Where process ids mean what they mean here: this boot of this machine, this pid namespace.

    Two containers may share a daemon and even the machine's id, and each has a process 7.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no Linux
        boot, namespace = f"{platform.node()}-{uuid.getnode()}", ""
    return hashlib.sha256(f"{boot} {namespace}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Owner:
    """One process's claim to its containers.

    Args:
        place: where process ids mean what this one means.
        user: of the owning process: another user's processes may be out of sight.
        pid: of the owning process.
        start: when it started: process ids are used again.
        run: which of the process's launchers.
    """

    place: str
    user: int
    pid: int
    start: str
    run: int = 0

    @classmethod
    def of_this_process(cls) -> Owner:
        """A claim that no other launcher has."""
        pid = os.getpid()
        return cls(_place(), os.getuid(), pid, start_time(pid) or "0", next(_runs))

    @property
    def name(self) -> str:
        """The run's name: what the names of its containers begin with."""
        return f"{owner_name(self.pid)}_{self.run}-{self.place[:8]}"

    def container_name(self, number: int) -> str:
        """The name of the run's n-th container."""
        return f"{self.name}-{number}"

    def labels(self) -> dict[str, str]:
        """What its containers carry."""
        own = {_PLACE: self.place, _USER: str(self.user), _PID: str(self.pid), _START: self.start}
        return {LABEL: self.name, **own}

    def may_reap(self, labels: Mapping[str, str]) -> bool:
        """Whether a container with these labels is left over: its owner was a process of this user here, and is gone.

        In doubt it is somebody's: another machine's, another pid namespace's, another user's.
        """
        if LABEL not in labels or labels.get(_PLACE) != self.place or labels.get(_USER) != str(self.user):
            return False
        return not is_alive(labels.get(_PID, ""), labels.get(_START, ""))


def is_alive(pid: str, start: str) -> bool:
    """Whether the process that started then is still there; what names no process is taken for alive."""
    if not pid.isdigit() or not start:
        return True
    if start != "0" and (found := start_time(int(pid))) is not None:
        return found == start
    # Its start cannot be told: it may be gone, or out of sight, or this process may have no descriptor left to look.
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
