"""The one thread that owns the model, the cache and the scheduler.

Everything that happens to them is a command run by this thread between two forward calls, so there are no locks and
no half-seen state. With nothing to run it waits for the next command.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from miles_agents.engines.local.model import Call, SlotModel
from miles_agents.engines.local.sampling import sample
from miles_agents.engines.local.scheduler import Job, Scheduler, Slot
from miles_agents.engines.local.shapes import Shapes, fit
from miles_agents.errors import EngineError
from miles_agents.types import StopReason

logger = logging.getLogger(__name__)

T = TypeVar("T")
Command = tuple[Callable[[], None], Callable[[EngineError], None]]  # what to do; what to do if the thread ends

# How many decode steps a prompt may wait for others, so that one prefill call serves several.
_PREFILL_PATIENCE = 2
# How many prefill calls in a row running requests put up with.
_PREFILL_BURST = 8
_CLOSED = "the local engine is closed"


class Worker:
    """Runs commands and, between them, prefill and decode calls.

    Args:
        scheduler: owned by the worker from now on.
        threads: torch threads of this worker; None leaves torch's setting.
    """

    def __init__(self, scheduler: Scheduler, *, threads: int | None) -> None:
        self.scheduler = scheduler
        self.model: SlotModel | None = None
        self.shapes: Shapes | None = None
        self.version = -1
        self.paused = False
        self.counters = dict.fromkeys(
            ("sampled_tokens", "prefill_tokens", "cached_tokens", "decode_calls", "prefill_calls", "decode_rows"), 0
        )
        self.busy_s = {"prefill": 0.0, "decode": 0.0}
        self._threads = threads
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._stopped: EngineError | None = None
        self._patience = 0
        self._burst = 0
        self._thread = threading.Thread(target=self._main, name="local-engine", daemon=True)

    def start(self) -> None:
        """Start the thread; later calls do nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def refuse_if_stopped(self) -> None:
        """Raise the EngineError that ended the thread, if it has ended."""
        if self._stopped is not None:
            raise EngineError(str(self._stopped)) from self._stopped

    def post(self, run: Callable[[], None], fail: Callable[[EngineError], None]) -> None:
        """Run `run` in the thread, soon, or `fail` if the thread ends before. Neither may raise.

        Raises:
            EngineError: the thread has ended.
        """
        with self._gate:
            self.refuse_if_stopped()
            self._inbox.put((run, fail))

    def post_if_running(self, run: Callable[[], None]) -> None:
        """Run `run` in the thread, soon; nothing happens if the thread has ended."""
        with self._gate:
            if self._stopped is None:
                self._inbox.put((run, lambda _: None))

    async def call(self, command: Callable[[], T]) -> T:
        """Run `command` in the thread and return what it returns or raise what it raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            try:
                result = command()
            except Exception as error:  # noqa: BLE001  # the seam: the caller gets it
                settle(future, error)
            else:
                settle(future, result)

        self.post(run, lambda error: settle(future, error))
        return await future

    def stop(self) -> None:
        """End every request with EngineError and wait for the thread."""
        with self._gate:
            if self._stopped is None:
                if self._thread.ident is None:
                    self._stopped = EngineError(_CLOSED)
                else:
                    self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _main(self) -> None:
        reason = EngineError(_CLOSED)
        try:
            if self._threads is not None:
                torch.set_num_threads(self._threads)
            while self._run_commands():
                self._step()
        except Exception as error:  # the seam: nobody awaits this thread, so its failure becomes every request's
            logger.exception("the local engine's worker failed")
            reason = EngineError(f"the local engine failed: {type(error).__name__}: {error}")
            reason.__cause__ = error
        finally:
            self._end(reason)

    def _end(self, reason: EngineError) -> None:
        with self._gate:
            self._stopped = reason
            while not self._inbox.empty():
                command = self._inbox.get()
                if command is not None:
                    command[1](reason)
        for job in list(self.scheduler.jobs.values()):
            settle(job.future, EngineError(str(reason)))
        self.scheduler.jobs.clear()
        self.model = None

    def _run_commands(self) -> bool:
        """Run what was posted, waiting for a command when nothing can run; False when it is time to stop."""
        wait = self._seconds_to_wait()
        while True:
            try:
                command = self._inbox.get(timeout=wait) if wait != 0 else self._inbox.get_nowait()
            except queue.Empty:
                return True
            if command is None:
                return False
            command[0]()
            wait = 0

    def _seconds_to_wait(self) -> float | None:
        if self.paused or self.model is None:
            return None
        now = time.monotonic()
        self.scheduler.admit(now)
        if any(slot.job is not None for slot in self.scheduler.slots):
            return 0
        return self.scheduler.seconds_to_eviction(now)

    def _step(self) -> None:
        if self.paused or self.model is None:
            return
        self.scheduler.admit(time.monotonic())
        prefilling = self.scheduler.running(lambda slot: not slot.is_decoding)
        decoding = self.scheduler.running(lambda slot: slot.is_decoding)
        if prefilling and self._prefill_now(len(prefilling), len(decoding)):
            self._burst, self._patience = self._burst + 1, 0
            self._timed("prefill", self._prefill, prefilling)
        elif decoding:
            self._burst, self._patience = 0, self._patience + 1
            self._timed("decode", self._decode, decoding)

    def _prefill_now(self, prefilling: int, decoding: int) -> bool:
        if not decoding:
            return True
        if self._burst >= _PREFILL_BURST:
            return False
        return prefilling >= self._known_shapes.prefill_rows[-1] or self._patience >= _PREFILL_PATIENCE

    def _timed(self, what: str, run: Callable[[list[Slot]], None], slots: list[Slot]) -> None:
        start = time.perf_counter()
        run(slots)
        self.busy_s[what] += time.perf_counter() - start

    @property
    def _known_shapes(self) -> Shapes:
        assert self.shapes is not None
        return self.shapes

    @property
    def _known_model(self) -> SlotModel:
        assert self.model is not None
        return self.model

    def _prefill(self, slots: list[Slot]) -> None:
        shapes = self._known_shapes
        # The earliest arrivals first: they can start decoding.
        slots = sorted(slots, key=lambda slot: _job(slot).rank)[: shapes.prefill_rows[-1]]
        ends = [min(slot.filled + shapes.prefill_widths[-1], len(slot.tokens) - 1) for slot in slots]
        rows = fit(shapes.prefill_rows, len(slots))
        width = fit(shapes.prefill_widths, max(end - slot.filled for slot, end in zip(slots, ends, strict=True)))
        ids = np.zeros((rows, width), np.int64)
        positions = np.zeros((rows, width), np.int64)
        valid = np.zeros((rows, width), np.bool_)
        cache_rows = np.zeros(rows, np.int64)
        for n, (slot, end) in enumerate(zip(slots, ends, strict=True)):
            count = end - slot.filled
            ids[n, :count] = slot.tokens[slot.filled : end]
            positions[n, :count] = np.arange(slot.filled, end)
            valid[n, :count] = True
            cache_rows[n] = slot.row
        self._known_model.forward(
            Call(ids, positions, valid, cache_rows, fit(shapes.prefill_keys, max(*ends, width)), front=False)
        )
        for slot, end in zip(slots, ends, strict=True):
            self.counters["prefill_tokens"] += end - slot.filled
            slot.filled = end
        self.counters["prefill_calls"] += 1

    def _decode(self, slots: list[Slot]) -> None:
        model, shapes = self._known_model, self._known_shapes
        rows = fit(shapes.decode_rows, len(slots))
        slots = self._gather(slots, rows)
        ids = np.zeros((rows, 1), np.int64)
        positions = np.zeros((rows, 1), np.int64)
        valid = np.zeros((rows, 1), np.bool_)
        at = [slot.row for slot in slots]
        ids[at, 0] = [slot.tokens[-1] for slot in slots]
        positions[at, 0] = [slot.filled for slot in slots]
        valid[at] = True
        keys = fit(shapes.keys, int(positions.max()) + 1)
        logits = model.forward(Call(ids, positions, valid, np.arange(rows), keys, front=True))
        jobs = [_job(slot) for slot in slots]
        noise = [job.noise[len(job.logprobs)] for job in jobs]
        with torch.inference_mode():
            sampled = sample(logits[at], [job.request.params for job in jobs], noise)
        self.counters["sampled_tokens"] += len(slots)
        self.counters["decode_calls"] += 1
        self.counters["decode_rows"] += rows
        self._deliver(slots, sampled.tokens, sampled.logprobs)

    def _gather(self, slots: list[Slot], rows: int) -> list[Slot]:
        """Move decoding slots into the first `rows` rows of the cache, so that no more rows are computed."""
        outside = [slot for slot in slots if slot.row >= rows]
        if outside:
            inside = [slot for slot in self.scheduler.slots if slot.row < rows and not slot.is_decoding]
            inside.sort(key=lambda slot: slot.filled)
            for slot, other in zip(outside, inside, strict=False):
                self._known_model.cache.swap(slot.row, other.row, max(slot.filled, other.filled))
                slot.row, other.row = other.row, slot.row
        return sorted(slots, key=lambda slot: slot.row)

    def _deliver(self, slots: list[Slot], tokens: list[int], logprobs: list[float]) -> None:
        now = time.monotonic()
        finished: list[tuple[asyncio.Future[Any], Any]] = []
        for slot, token, logprob in zip(slots, tokens, logprobs, strict=True):
            job = _job(slot)
            if not math.isfinite(logprob):
                finished.append((job.future, self._refuse(job, now)))
                continue
            if not job.logprobs:
                job.decoding = now
                self.counters["cached_tokens"] += job.cached
            slot.filled += 1
            job.append(token, logprob, self.version)
            reason = job.stop_reason
            if reason is not None:
                self.scheduler.remove(job, keep_cache=True, now=now)
                finished.append((job.future, job.completion(reason, now)))
        settle_all(finished)

    def _refuse(self, job: Job, now: float) -> EngineError:
        # What is not finite stays in the cache row and would poison the next request there.
        if job.slot is not None:
            self._known_model.cache.clear(job.slot.row)
        self.scheduler.remove(job, keep_cache=False, now=now)
        return EngineError(
            f"the logits for request '{job.request.request_id}' are not finite (policy version {self.version})"
        )

    # ------------------------------------------------------------------ commands

    def abort(self, job: Job) -> None:
        """End a request with what it has. Its session's cache goes: how much of it is filled depends on timing."""
        if self.scheduler.jobs.get(job.request.request_id) is job:
            now = time.monotonic()
            self.scheduler.remove(job, keep_cache=False, now=now)
            settle(job.future, job.completion(StopReason.ABORT, now))

    def abort_all(self) -> None:
        """End every request with what it has."""
        for job in list(self.scheduler.jobs.values()):
            self.abort(job)

    def new_weights(self, version: int) -> None:
        """From the next token on, `version` samples; everything computed before is computed again."""
        self.forget()
        self.version = version

    def forget(self) -> None:
        """Drop every key and value."""
        self.scheduler.forget_all()
        if self.model is not None:
            self.model.cache.clear()


def _job(slot: Slot) -> Job:
    assert slot.job is not None
    return slot.job


def settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Give a future its result, or its exception, from another thread."""
    settle_all([(future, outcome)])


def settle_all(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give several futures of one event loop their results or exceptions."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for future, outcome in outcomes:
        by_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set, group)
        except RuntimeError:  # that loop is closed: nobody waits there any more
            logger.debug("%d results for a closed event loop", len(group))


def _set(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
