"""The processes, descriptors and control groups of this machine, as tests count them before and after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from miles_agents.tools.sandboxes.runner.cgroups import parent_folders


def process_table() -> dict[int, tuple[int, str]]:
    """Parent and state of every process, by process id."""
    table = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit():
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                table[int(folder.name)] = (int(fields[1]), fields[0].decode())
    return table


def descendants(root: int) -> dict[int, str]:
    """States of all processes below `root`, by process id."""
    table, found, waiting = process_table(), {}, [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, (its_parent, _) in table.items() if its_parent == parent]
        found.update({pid: table[pid][1] for pid in children})
        waiting += children
    return found


def living() -> set[int]:
    """Every process that has not ended, whether or not it was waited for."""
    return {pid for pid, (_, state) in process_table().items() if state not in "ZX"}


def descriptors_of(pid: int) -> dict[int, str]:
    """What a process holds open, by number."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found[int(link.name)] = str(link.readlink())
    return found


def groups_of(pid: int) -> list[Path]:
    """Control groups made for the sandboxes of a process."""
    return [group for folder in parent_folders().values() for group in folder.glob(f"miles-agents-{pid}-*")]


async def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
