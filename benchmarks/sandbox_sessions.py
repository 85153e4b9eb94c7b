"""Sandbox sessions per second: open, one call, close."""

from __future__ import annotations

import asyncio
import time

from benchmarks.bare_python import BARE, CODE, FORKED, bare_subprocess, forked
from benchmarks.measuring import Measure, Settings, Table, compared, interleaved
from benchmarks.runs import ground
from miles_agents.contracts import SandboxProvider

_TOGETHER = 32


async def measure(settings: Settings) -> list[Table]:
    """Sessions per second, one after the other and 32 at a time."""
    async with ground(settings.words()) as place:
        provider = place.opened.sandboxes
        if provider is None:
            raise RuntimeError("python_math needs a sandbox, yet none was opened")
        medians = await interleaved(
            {
                BARE: bare_subprocess(settings.count(10, least=2)),
                FORKED: forked(settings.count(100, least=4)),
                "one after the other": _sessions(provider, settings.count(32, least=2), together=1),
                f"{_TOGETHER} at a time": _sessions(provider, settings.count(128, least=4), together=_TOGETHER),
            },
            repeats=settings.repeats,
        )
        description = provider.description
    rows = compared(medians, "sessions/s", baseline=BARE)
    return [Table(title="sandbox sessions", rows=rows, notes=(description, f"open, {CODE}, close"))]


def _sessions(provider: SandboxProvider, count: int, *, together: int) -> Measure:
    async def one(slots: asyncio.Semaphore) -> None:
        async with slots, await provider.open() as sandbox:
            await sandbox.exec(CODE, timeout_s=5.0)

    async def measured() -> float:
        slots = asyncio.Semaphore(together)
        started = time.perf_counter()
        await asyncio.gather(*(one(slots) for _ in range(count)))
        return count / (time.perf_counter() - started)

    return measured
