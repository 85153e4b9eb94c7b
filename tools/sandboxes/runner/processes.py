"""The other processes of a session, as its PID 1 sees them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from pathlib import Path
from typing import NamedTuple

_STOP_LOOKS = 200  # at whether the worker stands: far more than it needs on a free processor
_STRAYS_S = 2.0  # for a busy machine; a dying process needs microseconds


def _process_folders() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 — after every call: no Path objects


def _others(worker: int) -> dict[int, bytes]:
    """The state of every process but PID 1 and the worker, by process id."""
    found = {}
    for name in _process_folders():
        if int(name) not in (1, worker):
            with contextlib.suppress(OSError):
                stat = Path("/proc", name, "stat").read_bytes()  # a process's name may be any bytes
                found[int(name)] = stat.rpartition(b")")[2].split()[0]
    return found


def await_collected(worker: int, within_s: float) -> None:
    """Wait until the worker has taken the ends of its dead children; it may also not care to."""
    deadline = time.monotonic() + within_s
    while any(state in b"ZX" for state in _others(worker).values()) and time.monotonic() < deadline:
        time.sleep(0.001)


def reap() -> dict[int, int]:
    """Collect every dead child that is there now: exit codes by process id, negative for signals."""
    endings = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            endings[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return endings


def kill_everything() -> dict[int, int]:
    """Kill all processes of the session but PID 1; exit codes by process id.

    One signal reaches all of them at once (the kernel holds its process list still), and a fork under way fails.
    """
    endings = reap()
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, 0)
            endings[pid] = os.waitstatus_to_exitcode(status)
    return endings


def interrupt_everything() -> None:
    """Interrupt all processes of the session but PID 1, as Ctrl-C does: whoever waits for a child goes on then."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGINT)


class Strays(NamedTuple):
    """What `kill_strays` did."""

    killed: int
    dead: int  # processes whose end the worker has not taken yet
    all_gone: bool  # False: they multiply faster than they die, or the worker would not stand still


def kill_strays(worker: int) -> Strays:
    """Stop the worker and kill what a call left running.

    Nothing lives on unseen: the last look is taken when all threads of the worker stand, so that none can be starting
    a process, and when no other process is there to wake it.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + _STRAYS_S
    while True:
        stands = _stop(worker)
        others = _others(worker)
        strays = [pid for pid, state in others.items() if state not in b"ZX"]
        if stands and not strays:
            break
        if time.monotonic() > deadline:
            return Strays(len(seen), len(others) - len(strays), False)
        seen.update(strays)
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.0005)
    _reap_orphans(worker)
    return Strays(len(seen), len(others), True)


def _stop(worker: int) -> bool:
    """Stop the worker; True once all its threads stand, or it is dead. False if one takes longer, as in a vfork.

    That it says its call ended is the code's word: it may be in the middle of a fork all the same.
    """
    os.kill(worker, signal.SIGSTOP)
    for _ in range(_STOP_LOOKS):
        if os.waitid(os.P_PID, worker, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        os.sched_yield()
    return False


def _reap_orphans(worker: int) -> None:
    """Collect dead orphans, but leave the worker's own end to be noticed as such."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if found.si_pid == worker:
                return
            os.waitpid(found.si_pid, 0)


def memory_mb() -> float:
    """Private memory of all processes but PID 1, shared pages counted by their share."""
    return sum(_memory_kb(name) for name in _process_folders() if name != "1") / 1024


def _memory_kb(name: str) -> int:
    try:
        lines = Path("/proc", name, "smaps_rollup").read_bytes().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))
    except PermissionError:  # it made itself undumpable; its resident pages, shared ones in full, can still be read
        return _resident_kb(name)
    except OSError:
        return 0


def _resident_kb(name: str) -> int:
    try:
        return int(Path("/proc", name, "statm").read_bytes().split()[1]) * resource.getpagesize() // 1024
    except OSError:
        return 0
