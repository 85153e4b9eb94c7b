"""Measuring one library's episodes, in a process of its own: `python -m benchmarks.envs_rounds NAME`.

Says in one JSON line whether it is ready, then reads a plan a line and answers each with what it measured. What a
library writes to standard output goes to standard error.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.envs_work import EXPECTED, Outcome, allow_many_files

SUBJECTS = {
    "loop": "benchmarks.envs_loop:HandWritten",
    "miles_agents": "benchmarks.envs_subjects:Ours",
    "verifiers": "benchmarks.envs_peers:Verifiers",
    "gem": "benchmarks.envs_peers:Gem",
    "skyrl-gym": "benchmarks.envs_peers:SkyRL",
}


class Subject(Protocol):
    """A way to play the episodes."""

    description: str

    async def play(self, plan: Plan) -> Sequence[Outcome]:
        """Play `plan.episodes` episodes, `plan.together` at a time; what each came to."""
        ...


class Plan(NamedTuple):
    """One round."""

    base_url: str
    episodes: int
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What was measured."""

    cpu_ms: float  # per episode: user and system time of all threads of this process
    wall_s: float  # of the round
    peak_kb: float | None  # per episode in play: memory of the process at its highest, less that before the round


def measure(subject: Subject, plan: Plan) -> Round:
    """Play one round on an event loop of its own.

    Raises:
        RuntimeError: an episode did not come to what it should.
    """
    gc.collect()
    before_kb = _reset_peak_kb()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    outcomes = asyncio.run(_within(subject, plan))
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    found = Counter(outcomes)
    if found != Counter({EXPECTED: plan.episodes}):
        raise RuntimeError(f"of {plan.episodes} episodes: {found.most_common(3)}")
    peak_kb = None if before_kb is None else (_status_kb("VmHWM") - before_kb) / plan.together
    return Round(cpu_ms=1000 * cpu_s / plan.episodes, wall_s=wall_s, peak_kb=peak_kb)


async def _within(subject: Subject, plan: Plan) -> Sequence[Outcome]:
    async with asyncio.timeout(300.0):
        return await subject.play(plan)


def _reset_peak_kb() -> float | None:
    """Have the kernel forget the highest memory so far; the memory now. None where it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status_kb("VmRSS")


def _status_kb(key: str) -> float:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return float(found[1])


def load(name: str) -> Subject:
    """The subject of that name, made."""
    module, _, attribute = SUBJECTS[name].partition(":")
    subject: Subject = getattr(importlib.import_module(module), attribute)()
    return subject


def main(words: Sequence[str]) -> int:
    """Answer plans until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    allow_many_files()
    subject = load(words[0])
    say({"ready": subject.description})
    for line in sys.stdin:
        say(asdict(measure(subject, Plan(*json.loads(line)))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
