"""What every process of a session that runs the model's code begins with: streams, limits, a modest priority."""

from __future__ import annotations

import os
import resource
from typing import Any, NamedTuple

from miles_agents.tools.sandboxes.runner.linux import set_dumpable

WORK_FOLDER = "/tmp"  # noqa: S108 — of the session's own tree
NICENESS = 10  # sessions yield to the engine, the trainer and the event loop they serve
_RLIMIT_SIGPENDING = 11  # Python has no name for it
_MAX_TIMERS = 256  # POSIX timers and queued signals, which come out of one budget of the host's user


class ChildLimits(NamedTuple):
    """What one process of a session may use."""

    memory_mb: int
    processes: int
    file_mb: int
    cpu_s: int
    open_files: int


def child_limits(settings: dict[str, Any]) -> ChildLimits:
    """The part of the session's limits that holds for each process."""
    return ChildLimits(**{name: int(settings[name]) for name in ChildLimits._fields})


def begin_child(stdout: int, stderr: int, kept: list[int], limits: ChildLimits) -> None:
    """Turn a fresh fork of the supervisor into a process for the model's code.

    Args:
        stdout: becomes descriptor 1.
        stderr: becomes descriptor 2.
        kept: descriptors that stay open besides.
        limits: of this process and of each below it.
    """
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    for target, source in ((0, null), (1, stdout), (2, stderr)):
        os.dup2(source, target)
    low = 3
    for fd in [*sorted(kept), 1 << 16]:
        os.closerange(low, fd)
        low = fd + 1
    set_dumpable(True)
    _prefer_for_oom()
    os.nice(NICENESS)
    _apply(limits)


def _apply(limits: ChildLimits) -> None:
    """Memory is counted on top of what the interpreter maps already."""
    mapped = int(_read_small("/proc/self/statm").split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, mapped + (limits.memory_mb << 20))
    _limit(resource.RLIMIT_FSIZE, limits.file_mb << 20)
    _limit(resource.RLIMIT_NPROC, limits.processes + 1)  # the supervisor counts too
    _limit(resource.RLIMIT_NOFILE, limits.open_files)
    _limit(resource.RLIMIT_CPU, limits.cpu_s)
    _limit(_RLIMIT_SIGPENDING, _MAX_TIMERS)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    _limit(resource.RLIMIT_MEMLOCK, 0)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _read_small(name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY)  # pathlib and text files cost more than all else here
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _prefer_for_oom() -> None:
    """When memory runs out the kernel shall take the code's processes, not the supervisor."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:  # /proc is read-only on an old kernel: the supervisor is the smaller one anyway
        return
    os.write(fd, b"1000")
    os.close(fd)
