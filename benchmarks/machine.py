"""Facts about the machine that every figure depends on, and a warning when it is busy."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from benchmarks.measuring import Settings
from miles_agents.cluster import LocalCluster, usable_cores

_BUSY_LOAD = 0.5  # processes running or waiting, averaged over a minute


def machine_facts(settings: Settings) -> str:
    """One paragraph: processor, cores, threads, versions, load. Call it before anything is measured."""
    load = os.getloadavg()[0]
    lines = [
        f"processor      {_processor()}",
        f"cores          {usable_cores()} usable of {os.cpu_count()}",
        f"torch threads  {LocalCluster(threads=settings.threads).threads_of(None)} for each part",
        f"versions       Python {platform.python_version()}, torch {torch.__version__}, {platform.system()}",
        f"load average   {load:.2f} before the start",
        f"repetitions    {settings.repeats}, interleaved; medians are shown",
    ]
    if load > _BUSY_LOAD:
        lines.append(
            f"WARNING: the load average is {load:.2f}, above {_BUSY_LOAD}: something else is running, "
            "and these figures are lower than an idle machine's"
        )
    return "\n".join(lines)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
