"""Placement: what each part of a run gets of this machine.

Here everything runs in one process: the trainer and the engine have a worker thread each, episodes are asyncio tasks,
tools run in sandbox processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


def usable_cores() -> int:
    """The cores this process may use: its CPU affinity, which containers and `taskset` set."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """One machine, one process.

    `threads`: PyTorch threads of a part that does not set its own; None: the usable cores, at most 8 (a laptop-sized
    model gains nothing from more).
    """

    threads: int | None = None

    def threads_of(self, own: int | None) -> int:
        """PyTorch threads of a part that asks for `own`."""
        return own or self.threads or min(usable_cores(), 8)

    def engine_threads(self, own: int | None) -> int:
        """PyTorch threads of the engine: by default one core is left to the event loop and the tools.

        Measured on two cores with a sandboxed tool: a step's episodes take 1.0 s with one engine thread, 1.3 s with
        two.
        """
        return own or max(1, self.threads_of(None) - 1)
