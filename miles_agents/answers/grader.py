"""A pool of killable worker processes behind the fast exact comparison.

Most pairs are decided in the calling thread in microseconds. The rest goes to a worker, which is started when first
needed, is killed when it meets its limits, and replaced. What could not be decided is a verdict `None`, never a wrong
answer.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any
from weakref import WeakSet

from miles_agents.answers import patience
from miles_agents.answers.compare import NoProver, compare
from miles_agents.answers.verdicts import AnswerPolicy, GraderLimits, Verdict
from miles_agents.answers.workers import Nursery, Worker, WorkerLostError

logger = logging.getLogger(__name__)

_SHORT_CHARS = 1_000  # what is compared in the calling thread
_OWN_S = 0.02  # for which the calling thread compares; the rest is a worker's
_MAX_CHARS = 200_000

_graders: WeakSet[Grader] = WeakSet()  # for a forked child, which must let go of its parent's workers


class Grader:
    """Compares answers, from any thread, any event loop and any process.

    Args:
        limits: bounds of time and memory of the workers, and how many there are at most.
    """

    def __init__(self, limits: GraderLimits | None = None) -> None:
        self.limits = limits or GraderLimits()
        self.undecided: Counter[str] = Counter()  # reason → verdicts that were None
        self._nursery = Nursery(start_s=self.limits.start_s, memory_mb=self.limits.memory_mb)
        self._idle: list[Worker] = []
        self._begin()
        _graders.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(self.limits.workers)
        self._threads: ThreadPoolExecutor | None = None

    def forget_workers(self) -> None:
        """Let go of all processes and threads in a forked child, whose parent they serve."""
        for worker in self._idle:
            worker.forget()
        self._idle = []
        self._nursery.forget()
        self._begin()

    def grade(self, gold: str | None, answer: str | None, policy: AnswerPolicy | None = None) -> Verdict:
        """Whether two answers are equal; blocks, for the limit of time and what the pair waits for a worker."""
        quick = self._quick(gold, answer, policy or AnswerPolicy())
        if quick is not None:
            return quick
        return self._by_worker(str(gold), str(answer), policy or AnswerPolicy())

    async def grade_async(self, gold: str | None, answer: str | None, policy: AnswerPolicy | None = None) -> Verdict:
        """Like `grade`, without blocking the event loop."""
        quick = self._quick(gold, answer, policy or AnswerPolicy())
        if quick is not None:
            return quick
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.limits.workers, thread_name_prefix="answers")
        running = asyncio.get_running_loop()
        return await running.run_in_executor(
            self._threads, self._by_worker, str(gold), str(answer), policy or AnswerPolicy()
        )

    def worker_pids(self) -> list[int]:
        """The processes that wait for work."""
        with self._lock:
            return [worker.pid for worker in self._idle]

    def close(self) -> None:
        """End the workers, after what they are asked now; another `grade` starts new ones."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=True)
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.kill()
        self._nursery.close()

    def _quick(self, gold: str | None, answer: str | None, policy: AnswerPolicy) -> Verdict | None:
        """The verdict of exact arithmetic, or None if a worker has to see the pair."""
        if gold is None or answer is None or gold == answer:
            return compare(gold, answer, policy, NoProver())
        if max(len(gold), len(answer)) > _MAX_CHARS:
            return self._counted(Verdict(None, f"longer than {_MAX_CHARS} characters"))
        if len(gold) + len(answer) > _SHORT_CHARS:
            return None
        try:
            with patience.within(_OWN_S):
                verdict = compare(gold, answer, policy, NoProver())
        except patience.LateError:
            return None
        except Exception as error:  # noqa: BLE001 — seam: a fault of the checker is told, never a wrong answer
            return self._counted(Verdict(None, f"the checker failed: {type(error).__name__}: {str(error)[:200]}"))
        return verdict if verdict.correct is not None else None

    def _by_worker(self, gold: str, answer: str, policy: AnswerPolicy) -> Verdict:
        question = {"gold": gold, "answer": answer, "policy": asdict(policy)}
        with self._slots:
            return self._counted(self._asked(question))

    def _asked(self, question: dict[str, Any]) -> Verdict:
        worker: Worker | None = None
        try:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or self._nursery.worker()
            answer = worker.ask(question, self.limits.time_s)
            verdict = Verdict(answer["correct"], answer["reason"])
            leaving = "leave" in answer
        except TimeoutError:
            verdict, leaving = Verdict(None, "the time limit was met"), True
        except (WorkerLostError, OSError, ValueError, KeyError) as error:
            verdict, leaving = Verdict(None, f"the worker was lost: {error}"), True
        except BaseException:
            if worker is not None:
                worker.kill()
            raise
        if worker is not None and leaving:
            worker.kill()
        elif worker is not None:
            with self._lock:
                self._idle.append(worker)
        return verdict

    def _counted(self, verdict: Verdict) -> Verdict:
        if verdict.correct is None:
            with self._lock:
                self.undecided[verdict.reason] += 1
            logger.info("undecided: %s", verdict.reason)
        return verdict


_default: Grader | None = None
_default_lock = threading.Lock()


def default_grader() -> Grader:
    """The grader that `equivalent` uses, one per process, made when first needed and closed at exit."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Grader(GraderLimits(workers=max(1, min(4, os.cpu_count() or 1))))
            atexit.register(_default.close)
        return _default


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for grader in list(_graders):
        grader.forget_workers()


os.register_at_fork(after_in_child=_after_fork)


def equivalent(gold: str | None, answer: str | None, *, policy: AnswerPolicy | None = None) -> Verdict:
    """Whether an answer equals the gold one, by the policy of docs/answers.md; symmetric in the two.

    `correct` is None if that could not be decided within the limits; that is no wrong answer. Blocks if a worker is
    needed: on an event loop use `equivalent_async`.
    """
    return default_grader().grade(gold, answer, policy)


async def equivalent_async(gold: str | None, answer: str | None, *, policy: AnswerPolicy | None = None) -> Verdict:
    """Like `equivalent`, without blocking the event loop."""
    return await default_grader().grade_async(gold, answer, policy)
