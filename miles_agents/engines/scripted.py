"""`ScriptedEngine`: an engine without a model, for tests, demos and environments under development.

It answers each request from a script: fixed texts or ids, delays, failures. Everything it was asked is kept in
`requests`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from miles_agents.contracts import RolloutEngine
from miles_agents.errors import EngineError
from miles_agents.types import Completion, GenerateRequest, LogprobsMode, PauseMode, StopReason, VersionSpan


class Encoder(Protocol):
    """The part of a tokenizer that is needed to script texts."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of `text`; control tokens written out in it count as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One scripted completion: `text` or `ids`, or an `error`."""

    text: str | None = None
    ids: Sequence[int] | None = None
    error: str | None = None  # raise EngineError with this message
    delay_s: float = 0.0  # before answering
    stop_reason: StopReason | None = None  # None: worked out from the ids and the request
    logprobs: Sequence[float] | None = None  # None: plausible ones

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.text, self.ids, self.error)) != 1:
            raise ValueError("a ScriptedReply has exactly one of text, ids and error")


Script = Iterable[ScriptedReply | str] | Callable[[GenerateRequest], ScriptedReply | str]


class ScriptedEngine(RolloutEngine):
    """Answers from a script.

    The ids are cut after the first stop token and at `max_new_tokens`. Ids that end before either get the request's
    first stop token, as from a model that has learnt to end its turn.

    Args:
        script: replies in the order of requests (a list is not repeated), or a function of the request; a plain
            string stands for `ScriptedReply(text=…)`.
        tokenizer: needed for texts.
        context_length: longest prompt + completion, in tokens.
        version: policy version at the start.
    """

    logprobs_mode = LogprobsMode.PROCESSED

    def __init__(
        self, script: Script, *, tokenizer: Encoder | None = None, context_length: int = 4096, version: int = 0
    ) -> None:
        self.context_length = context_length
        self.requests: list[GenerateRequest] = []
        self.ended_sessions: list[str] = []
        self._next = script if callable(script) else _in_order(iter(script))
        self._tokenizer = tokenizer
        self._version = version
        self._running = asyncio.Event()
        self._running.set()
        self._aborts: dict[str, asyncio.Event] = {}
        self._closed = asyncio.Event()

    @property
    def version(self) -> int:
        """The version that replies are marked with."""
        return self._version

    def set_version(self, version: int) -> None:
        """Mark later replies with `version`, as a weight push would."""
        self._version = version

    async def start(self) -> None:
        """Nothing to start."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Give the scripted reply.

        Raises:
            EngineError: scripted so, the script is used up, the engine is closed, or the deadline passed.
            ValueError: the request does not fit the context length or is in flight already.
        """
        self._check(request)
        self.requests.append(request)
        reply = self._next(request)
        reply = ScriptedReply(text=reply) if isinstance(reply, str) else reply
        abort = self._aborts[request.request_id] = asyncio.Event()
        arrived = time.monotonic()
        try:
            async with asyncio.timeout(request.deadline_s):
                aborted = await self._wait(reply.delay_s, abort)
        except TimeoutError as error:
            raise EngineError(
                f"request '{request.request_id}' passed its deadline of {request.deadline_s} s"
            ) from error
        finally:
            del self._aborts[request.request_id]
        if reply.error is not None and not aborted:
            raise EngineError(reply.error)
        return self._completion(request, reply, aborted=aborted, waited_s=time.monotonic() - arrived)

    def _check(self, request: GenerateRequest) -> None:
        if self._closed.is_set():
            raise EngineError("the scripted engine is closed")
        prompt, new = len(request.ids), request.params.max_new_tokens
        if not prompt:
            raise ValueError(f"request '{request.request_id}': the prompt is empty")
        if prompt + new > self.context_length:
            raise ValueError(
                f"request '{request.request_id}': {prompt} prompt tokens + {new} new tokens = {prompt + new} exceed "
                f"the engine's context length of {self.context_length}"
            )
        if request.request_id in self._aborts:
            raise ValueError(f"request id '{request.request_id}' is in flight already")

    async def _wait(self, delay_s: float, abort: asyncio.Event) -> bool:
        """Wait until the reply is due and the engine not paused; True if aborted first."""

        async def due() -> None:
            await asyncio.sleep(delay_s)
            await self._running.wait()

        waits = [asyncio.ensure_future(wait) for wait in (due(), abort.wait(), self._closed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._closed.is_set():
            raise EngineError("the scripted engine is closed")
        return abort.is_set()

    def _completion(
        self, request: GenerateRequest, reply: ScriptedReply, *, aborted: bool, waited_s: float
    ) -> Completion:
        ids, reason = ([], StopReason.ABORT) if aborted else self._ids(request, reply)
        logprobs = np.array(reply.logprobs if reply.logprobs is not None else _plausible(ids), np.float32)[: len(ids)]
        return Completion(
            ids=np.array(ids, np.int32),
            logprobs=logprobs,
            stop_reason=reason,
            versions=(VersionSpan(self._version, 0, len(ids)),) if ids else (),
            timings={"queue": 0.0, "prefill": 0.0, "decode": waited_s},
        )

    def _ids(self, request: GenerateRequest, reply: ScriptedReply) -> tuple[list[int], StopReason]:
        if reply.ids is not None:
            ids = list(reply.ids)
        elif self._tokenizer is None:
            raise ValueError("a scripted text needs ScriptedEngine(…, tokenizer=…)")
        else:
            ids = list(self._tokenizer.encode(reply.text or ""))
        params = request.params
        if reply.stop_reason is not None:
            return ids[: params.max_new_tokens], reply.stop_reason
        stop = next((at for at, token in enumerate(ids) if token in params.stop_token_ids), None)
        if stop is None and params.stop_token_ids:
            ids, stop = [*ids, params.stop_token_ids[0]], len(ids)
        if stop is None or stop >= params.max_new_tokens:
            return ids[: params.max_new_tokens], StopReason.LENGTH
        return ids[: stop + 1], StopReason.STOP

    async def abort(self, request_id: str) -> None:
        """End a request with nothing; unknown ids are ignored."""
        event = self._aborts.get(request_id)
        if event is not None:
            event.set()

    async def end_session(self, session_id: str) -> None:
        """Keep the id in `ended_sessions`."""
        self.ended_sessions.append(session_id)

    async def pause(self, mode: PauseMode) -> None:
        """Hold replies back, or end those in flight."""
        self._running.clear()
        if mode is PauseMode.ABORT:
            for event in self._aborts.values():
                event.set()

    async def resume(self) -> None:
        """Reply again."""
        self._running.set()

    async def close(self) -> None:
        """End every request with EngineError."""
        self._closed.set()


def _in_order(replies: Iterator[ScriptedReply | str]) -> Callable[[GenerateRequest], ScriptedReply | str]:
    def next_reply(request: GenerateRequest) -> ScriptedReply | str:
        try:
            return next(replies)
        except StopIteration:
            raise EngineError(f"the script has no reply left for request '{request.request_id}'") from None

    return next_reply


def _plausible(ids: Sequence[int]) -> list[float]:
    """Logprobs between −1 and 0 that depend on the token alone."""
    return [-((token * 2654435761) % 997 + 1) / 1000 for token in ids]
