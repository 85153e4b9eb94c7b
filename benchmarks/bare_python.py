"""What people use where they have no sandbox, as measures to compare with."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from benchmarks import forked_interpreter
from benchmarks.measuring import Measure

BARE, FORKED = "bare subprocess", "forked interpreter"
CODE = "print(417*23+58)"


def bare_subprocess(count: int) -> Measure:
    """Calls per second with `python -I -c CODE` for each."""

    async def measured() -> float:
        started = time.perf_counter()
        for _ in range(count):
            await _printed_by("-c", CODE)
        return count / (time.perf_counter() - started)

    return measured


def forked(count: int) -> Measure:
    """Calls per second with a fork of a warm interpreter for each."""
    program = Path(forked_interpreter.__file__)

    async def measured() -> float:
        return float(await _printed_by(str(program), str(count), CODE))

    return measured


async def _printed_by(*words: str) -> bytes:
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", *words, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    if process.returncode != 0 or not printed:
        raise RuntimeError(f"python -I {' '.join(words)} ended with code {process.returncode}")
    return printed
