"""Engines of one's own: `Clerk` speaks in messages, `Dice` in token ids.

python -m miles_agents.evaluate env=./examples/my_env.py:Weekdays engine=chat engine.name=./examples/my_engine.py:Clerk
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from miles_agents.contracts import RolloutEngine
from miles_agents.contracts.chat_model import ChatCompletion, ChatModel, ChatParams, Conversation
from miles_agents.errors import EngineError
from miles_agents.types import (
    Completion,
    GenerateRequest,
    LogprobsMode,
    Message,
    PauseMode,
    Reply,
    Role,
    StopReason,
    ToolCall,
    VersionSpan,
)


class Clerk(ChatModel):
    """Asks a tool about the first thing of a pattern in the task, then repeats what the tool said.

    Args:
        asks: the tool.
        about: a regular expression.
    """

    def __init__(self, *, asks: str = "calendar", about: str = r"\d{4}-\d\d-\d\d") -> None:
        self.asks, self.about = asks, re.compile(about)

    async def start(self) -> None:
        """Nothing to connect to."""

    def conversation(self, tools: Sequence[Mapping[str, Any]]) -> Conversation:
        """`tools` are OpenAI-style schemas; the argument that is asked with is the tool's first."""
        offered = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
        return _Questions(self, next(iter(offered.get(self.asks, {})), ""))

    async def close(self) -> None:
        """Nothing to free."""


class _Questions(Conversation):
    def __init__(self, clerk: Clerk, argument: str) -> None:
        self.clerk, self.argument = clerk, argument
        self.heard: list[Message] = []

    def add(self, messages: Sequence[Message]) -> None:
        self.heard += messages

    async def reply(self, params: ChatParams) -> ChatCompletion | None:
        last = self.heard[-1]
        found = self.clerk.about.search(last.text)
        if last.role is Role.USER and found and self.argument:
            call = ToolCall(
                id=f"call_{len(self.heard)}", name=self.clerk.asks, arguments={self.argument: found[0]}, raw=""
            )
            reply = Reply(text=f"{call.name}({found[0]})", calls=(call,))
        else:
            reply = Reply.of(last.text)
        return ChatCompletion(reply=reply, stop_reason=StopReason.STOP, completion_tokens=1)


class Dice(RolloutEngine):
    """Every token is as likely as every other; one of each running request is drawn at a time."""

    logprobs_mode = LogprobsMode.PROCESSED  # of the distribution that is sampled from

    def __init__(self, *, vocabulary: int = 256, context_length: int = 128) -> None:
        self.vocabulary, self.context_length = vocabulary, context_length
        self._aborted: set[str] = set()
        self._running: set[str] = set()
        self._state = asyncio.Condition()  # told whenever one of these changes
        self._paused = self._closed = False

    @property
    def version(self) -> int:
        """It has no weights that change."""
        return 0

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample until a stop token, the limit, an abort, or the deadline."""
        length = len(request.ids) + request.params.max_new_tokens
        if not len(request.ids) or length > self.context_length:
            raise ValueError(f"{length} tokens, and a prompt of {len(request.ids)}: from 1 to {self.context_length}")
        self._running.add(request.request_id)
        try:
            async with asyncio.timeout(request.deadline_s):
                ids, reason = await self._sampled(request)
        except TimeoutError as error:
            raise EngineError(f"{request.request_id} passed its deadline of {request.deadline_s} s") from error
        finally:
            self._running.discard(request.request_id)
            self._aborted.discard(request.request_id)
        return Completion(
            ids=np.array(ids, np.int32),
            logprobs=np.full(len(ids), -np.log(self.vocabulary), np.float32),
            stop_reason=reason,
            versions=(VersionSpan(self.version, 0, len(ids)),) if ids else (),
        )

    async def _sampled(self, request: GenerateRequest) -> tuple[list[int], StopReason]:
        rng = np.random.default_rng(request.params.seed)  # the seed alone decides, whoever else is served
        ids: list[int] = []
        while len(ids) < request.params.max_new_tokens:
            async with self._state:
                await self._state.wait_for(lambda: not self._paused or self._closed or self._is_aborted(request))
            if self._closed:
                raise EngineError("the engine is closed")
            if self._is_aborted(request):
                return ids, StopReason.ABORT
            ids.append(int(rng.integers(self.vocabulary)))
            if ids[-1] in request.params.stop_token_ids:
                return ids, StopReason.STOP
            await asyncio.sleep(0)  # others' turn
        return ids, StopReason.LENGTH

    def _is_aborted(self, request: GenerateRequest) -> bool:
        return request.request_id in self._aborted

    async def abort(self, request_id: str) -> None:
        """End one request with what it has."""
        async with self._state:
            self._aborted |= {request_id} & self._running
            self._state.notify_all()

    async def pause(self, mode: PauseMode) -> None:
        """Draw no more; without a cache, keeping and retracting requests are one."""
        async with self._state:
            self._paused = True
            if mode is PauseMode.ABORT:
                self._aborted |= self._running
            self._state.notify_all()

    async def resume(self) -> None:
        """Draw again."""
        async with self._state:
            self._paused = False
            self._state.notify_all()

    async def close(self) -> None:
        """Requests in flight end with an error."""
        async with self._state:
            self._closed = True
            self._state.notify_all()
