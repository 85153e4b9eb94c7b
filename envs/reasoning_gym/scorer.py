"""The package in processes that can be killed.

Its scorers run sympy and other code on what a model wrote, and some of its generators search, for as long as the
settings make them.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from miles_agents.envs.reasoning_gym.puzzles import PuzzleSource
from miles_agents.errors import DataError, GraderError

_START = "import sys; sys.path[:] = {path!r}; from miles_agents.envs.reasoning_gym.worker import main; sys.exit(main())"
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerLimits:
    """Bounds of the workers."""

    time_s: float = 10.0  # for one answer
    puzzle_s: float = 60.0  # for making one puzzle
    memory_mb: int = 1024  # that one worker may take on top of what it starts with
    start_s: float = 90.0  # for a worker to be ready: it imports the package
    workers: int = max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True)
class Score:
    """What came of scoring one answer."""

    value: float  # 0 to 1
    unreadable: str = ""  # why the scorer could not read the answer; its value is then 0


class Puzzle(NamedTuple):
    """One puzzle, as far as a task needs it."""

    question: str
    own_answer: str | None  # the package's


class Scorer:
    """Makes puzzles and scores answers, from any thread; workers are started when first needed and kept.

    Args:
        limits: bounds of the workers.
    """

    def __init__(self, limits: ScorerLimits | None = None) -> None:
        self.limits = limits or ScorerLimits()
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(self.limits.workers)
        self._idle: list[_Worker] = []

    def score(self, source: PuzzleSource, index: int, answer: str) -> Score:
        """The score of an answer to the puzzle at a place of a dataset; blocks.

        Raises:
            GraderError: the worker could not be started, took too long, died, or gave what is no score.
        """
        told = self._ask({"source": list(source), "index": index, "answer": answer}, self.limits.time_s)
        if "unreadable" in told:
            return Score(0.0, told["unreadable"])
        value = told["score"]
        if not 0.0 <= value <= 1.0:
            raise GraderError(f"the scorer of {source.family} gave {value!r}, which is not between 0 and 1")
        return Score(value)

    def puzzle(self, source: PuzzleSource, index: int) -> Puzzle | None:
        """The puzzle at a place of a dataset; None behind the last one of a family that has a last one; blocks.

        Raises:
            DataError: the family cannot make it with these settings, or not in time.
        """
        try:
            told = self._ask({"source": list(source), "index": index}, self.limits.puzzle_s)
        except GraderError as error:
            told = {"failed": str(error)}
        if "failed" in told:
            raise DataError(
                f"env.family={source.family}: with env.settings={source.settings} puzzle {index} cannot be made: "
                f"{told['failed']}; give other settings"
            )
        return None if "end" in told else Puzzle(told["question"], told["own_answer"])

    def _ask(self, question: dict[str, Any], time_s: float) -> dict[str, Any]:
        with self._slots, self._worker() as worker:
            return worker.ask({**question, "time_s": time_s}, time_s)

    def close(self) -> None:
        """End the workers that wait for work; another `score` starts new ones."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.kill()

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or _Worker(self.limits)
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        with self._lock:
            self._idle.append(worker)


class _Worker:
    """One process, asked one thing at a time."""

    def __init__(self, limits: ScorerLimits) -> None:
        self._process = subprocess.Popen(  # noqa: S603 — this interpreter, own code
            [sys.executable, "-c", _START.format(path=sys.path), str(limits.memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            bufsize=0,
            start_new_session=True,  # a Ctrl-C in the terminal is the parent's affair
        )
        try:
            self._line(limits.start_s, "did not start")
        except BaseException:
            self.kill()
            raise

    def ask(self, question: dict[str, Any], time_s: float) -> dict[str, Any]:
        """The answer to a question.

        Raises:
            GraderError: none came in time, or the worker died.
        """
        assert self._process.stdin is not None
        try:
            # It waits for input whenever it is asked: a line of any length is read without delay.
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except OSError as error:
            raise GraderError("the scoring process died") from error
        told: dict[str, Any] = json.loads(self._line(time_s, "did not answer"))
        return told

    def _line(self, time_s: float, failing: str) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + time_s
        read = b""
        while not read.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise GraderError(f"the scoring process {failing} within {time_s:g} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise GraderError(f"the scoring process {failing}: it died")
            read += piece
        return read

    def kill(self) -> None:
        """End it now."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()


_shared: Scorer | None = None
_shared_lock = threading.Lock()


def shared_scorer() -> Scorer:
    """The scorer of this process, made when first needed and closed at its end."""
    global _shared  # its workers take seconds to start and serve all environments
    with _shared_lock:
        if _shared is None:
            _shared = Scorer()
            atexit.register(_shared.close)
        return _shared
