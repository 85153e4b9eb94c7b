"""Which request has which slot. Plain Python, used by the worker thread alone.

A slot is a row of the KV cache. A request holds one from admission to its end; a session goes on holding it between
its requests, with the keys and values of everything but its last sampled token. What a request computes is therefore
a function of the weights, its ids and its session's own earlier requests, never of other sessions.

Waiting requests are admitted by priority, then by arrival. When sessions hold every slot, the longest idle one gives
way to a waiting request once it has been idle for `session_idle_s` (at once if `steal_idle`); its next request
computes everything again. So a session that nobody ends cannot block the engine for ever.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from miles_agents.types import Completion, GenerateRequest, StopReason, VersionSpan


@dataclass(slots=True, eq=False)
class Slot:
    """A row of the cache and who has it. `filled` keys are those of `tokens[:filled]`."""

    row: int
    job: Job | None = None
    session_id: str | None = None
    tokens: list[int] = field(default_factory=list)
    filled: int = 0
    idle_since: float = 0.0

    @property
    def is_free(self) -> bool:
        """True if neither a request nor a session has it."""
        return self.job is None and self.session_id is None

    @property
    def is_decoding(self) -> bool:
        """True if only the last token is yet to be fed."""
        return self.job is not None and self.filled == len(self.tokens) - 1

    def vacate(self) -> None:
        """Give it up, contents included."""
        self.job, self.session_id, self.tokens, self.filled = None, None, [], 0


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way. `tokens` (prompt + completion) is shared with its slot."""

    request: GenerateRequest
    future: asyncio.Future[Completion]
    order: int  # of arrival
    arrived: float  # seconds, monotonic
    noise: NDArray[np.float64]
    tokens: list[int]
    stop_ids: frozenset[int]
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    slot: Slot | None = None
    cached: int = 0
    admitted: float = 0.0
    decoding: float = 0.0  # when its first token was sampled

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts waiting requests: higher priority first, then earlier arrival."""
        return -self.request.priority, self.order

    def append(self, token: int, logprob: float, version: int) -> None:
        """Add a sampled token."""
        count = len(self.logprobs)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = VersionSpan(version, self.spans[-1].start, count + 1)
        else:
            self.spans.append(VersionSpan(version, count, count + 1))

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it ends after the last token, or None if it goes on."""
        if self.tokens[-1] in self.stop_ids and self.logprobs:
            return StopReason.STOP
        return StopReason.LENGTH if len(self.logprobs) >= self.request.params.max_new_tokens else None

    def completion(self, reason: StopReason, now: float) -> Completion:
        """What `generate` returns."""
        prompt = len(self.tokens) - len(self.logprobs)
        admitted = self.admitted or now
        decoding = self.decoding or now
        return Completion(
            ids=np.array(self.tokens[prompt:], np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            stop_reason=reason,
            versions=tuple(self.spans),
            cached_tokens=self.cached,
            timings={
                "queue": admitted - self.arrived,
                "prefill": decoding - admitted,
                "decode": now - decoding,
            },
        )


class Scheduler:
    """Slots, sessions and the waiting line.

    Args:
        slots: how many requests and idle sessions have a place at a time.
        session_idle_s: how long a session may keep a slot between requests while others wait.
        steal_idle: an idle session gives way at once (the bits of its next request then depend on the load).
    """

    def __init__(self, *, slots: int, session_idle_s: float, steal_idle: bool) -> None:
        self.slots = [Slot(row) for row in range(slots)]
        self.jobs: dict[str, Job] = {}
        self.evictions = 0
        self._sessions: dict[str, Slot] = {}
        self._waiting: list[Job] = []
        self._idle_s = 0.0 if steal_idle else session_idle_s
        self._changed = False

    def add(self, job: Job) -> None:
        """Put a request in line."""
        self.jobs[job.request.request_id] = job
        insort(self._waiting, job, key=lambda waiting: waiting.rank)
        self._changed = True

    def admit(self, now: float) -> None:
        """Give slots to waiting requests."""
        if not self._waiting or not (self._changed or self.seconds_to_eviction(now) == 0):
            return
        self._changed = False
        free = sorted((slot for slot in self.slots if slot.is_free), key=lambda slot: slot.row, reverse=True)
        still_waiting = []
        for job in self._waiting:
            slot = self._slot_for(job, free, now)
            if slot is None:
                still_waiting.append(job)
            else:
                self._occupy(slot, job, now)
        self._waiting = still_waiting

    def _slot_for(self, job: Job, free: list[Slot], now: float) -> Slot | None:
        session_id = job.request.session_id
        held = self._sessions.get(session_id) if session_id is not None else None
        if held is not None:
            return held if held.job is None else None  # requests of one session follow each other
        if free:
            return free.pop()
        idle = self._longest_idle()
        if idle is None or now - idle.idle_since < self._idle_s:
            return None
        self.evictions += 1
        self._drop(idle)
        return idle

    def _occupy(self, slot: Slot, job: Job, now: float) -> None:
        if job.request.session_id is not None:
            slot.session_id = job.request.session_id
            self._sessions[slot.session_id] = slot
        extends = slot.filled < len(job.tokens) and job.tokens[: slot.filled] == slot.tokens[: slot.filled]
        job.cached = slot.filled = slot.filled if extends else 0
        slot.job, slot.tokens, job.slot, job.admitted = job, job.tokens, slot, now

    def _longest_idle(self) -> Slot | None:
        idle = (slot for slot in self._sessions.values() if slot.job is None)
        return min(idle, key=lambda slot: slot.idle_since, default=None)

    def seconds_to_eviction(self, now: float) -> float | None:
        """When a waiting request may take an idle session's slot; None if there is nothing to wait for."""
        idle = self._longest_idle() if self._waiting else None
        return None if idle is None else max(0.0, idle.idle_since + self._idle_s - now)

    def remove(self, job: Job, *, keep_cache: bool, now: float) -> None:
        """Take a request out. Its session keeps the slot, and what it computed only if `keep_cache`."""
        self.jobs.pop(job.request.request_id, None)
        self._changed = True
        slot = job.slot
        if slot is None:
            self._waiting.remove(job)
            return
        job.slot = slot.job = None
        if slot.session_id is None:
            slot.vacate()
            return
        slot.idle_since = now
        slot.tokens = slot.tokens[: slot.filled]
        if not keep_cache:
            slot.tokens, slot.filled = [], 0

    def end_session(self, session_id: str) -> None:
        """Free the session's slot, after its running request if it has one."""
        slot = self._sessions.get(session_id)
        if slot is not None:
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        if slot.session_id is not None:
            del self._sessions[slot.session_id]
            slot.session_id = None
        if slot.job is None:
            slot.vacate()
        self._changed = True

    def forget_all(self) -> None:
        """No computed key or value is valid any more."""
        for slot in self.slots:
            slot.filled = 0
            if slot.job is None:
                slot.tokens = []

    def running(self, holds: Callable[[Slot], bool]) -> list[Slot]:
        """Slots with a request for which `holds`, by row."""
        return sorted((slot for slot in self.slots if slot.job is not None and holds(slot)), key=lambda slot: slot.row)

    @property
    def waiting(self) -> int:
        """How many requests have no slot yet."""
        return len(self._waiting)

    @property
    def idle_sessions(self) -> int:
        """How many slots are held by sessions without a running request."""
        return sum(slot.job is None and slot.session_id is not None for slot in self.slots)
