"""Turning a fresh clone of the zygote into PID 1 of a session."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from miles_agents.tools.sandboxes.runner import linux
from miles_agents.tools.sandboxes.runner.cgroups import ControlGroups
from miles_agents.tools.sandboxes.runner.frames import encode, write_all
from miles_agents.tools.sandboxes.runner.identity import FIRST_ID, ID_COUNT
from miles_agents.tools.sandboxes.runner.rootfs import mount_private
from miles_agents.tools.sandboxes.runner.seccomp import build_filter
from miles_agents.tools.sandboxes.runner.supervisor import Supervisor

INNER_ID = 1000  # user and group as the code sees them, under an ordinary user
_SESSION_FD = 3
_FILTER = linux.SeccompFilter(build_filter())
NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


class Place(NamedTuple):
    """Where a session runs."""

    root: bool  # real root made it; otherwise an ordinary user in user namespaces
    serial: int  # makes the user id of root's sessions distinct
    slot: int | None  # of the control groups


def start_session(fd: int, place: Place, settings: dict[str, Any], groups: ControlGroups) -> int:
    """Clone a session that serves `fd`; its process id as the zygote sees it."""
    flags = NAMESPACES if place.root else NAMESPACES | linux.CLONE_NEWUSER
    pid = linux.clone(flags)
    if pid == 0:
        _become_session(fd, place, settings, groups)
    return pid


def _become_session(fd: int, place: Place, settings: dict[str, Any], groups: ControlGroups) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        # The kernel keeps signals from PID 1 only while it has no handler of its own for them.
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if place.slot is not None:
            groups.join(place.slot)
        os.dup2(fd, _SESSION_FD)
        os.closerange(0, _SESSION_FD)
        os.closerange(_SESSION_FD + 1, 1 << 16)
        for expected in range(_SESSION_FD):
            if os.open("/dev/null", os.O_RDWR) != expected:
                raise OSError("descriptors of the zygote are left open")
        try:
            _isolate(place, settings)
        except OSError as error:
            write_all(_SESSION_FD, encode({"failed": str(error)}))
            os._exit(1)
        Supervisor((_SESSION_FD, _SESSION_FD), settings, guard_memory=place.slot is None).serve()
    finally:
        os._exit(1)


def _isolate(place: Place, settings: dict[str, Any]) -> None:
    """Everything that needs a capability, then give them all up."""
    identity = FIRST_ID + place.serial % ID_COUNT if place.root else INNER_ID
    if not place.root:
        map_ids(inside=(INNER_ID, INNER_ID), outside=(0, 0))
    linux.set_host_name("sandbox")
    mount_private(tmp_mb=int(settings["tmp_mb"]), uid=identity, gid=identity)
    linux.drop_bounding_set()
    if place.root:
        os.setgroups([])
        os.setresgid(identity, identity, identity)
        os.setresuid(identity, identity, identity)
    linux.drop_capabilities()
    linux.set_dumpable(False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _FILTER.install()


def map_ids(*, inside: tuple[int, int], outside: tuple[int, int]) -> None:
    """Map one user and one group of the parent user namespace into the own, fresh one."""
    Path("/proc/self/setgroups").write_text("deny")
    for kind, inner, outer in zip(("uid", "gid"), inside, outside, strict=True):
        Path(f"/proc/self/{kind}_map").write_text(f"{inner} {outer} 1")
