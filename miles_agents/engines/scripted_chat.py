"""`ScriptedChatModel`: a chat model without a model, for tests, demos and environments under development.

It answers each request from a script and keeps everything it was asked in `requests`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from miles_agents.contracts.chat_model import ChatCompletion, ChatModel, ChatParams, Conversation
from miles_agents.errors import EngineError
from miles_agents.types import Message, Reply, StopReason, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What the model was asked: everything said so far, its own replies included. Images are parts of messages."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    params: ChatParams
    turn: int  # of the conversation, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedChatReply:
    """One scripted reply, or an `error`.

    `calls` are (name, arguments); they get ids that are unique in the conversation.
    """

    content: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    truncated: bool = False  # a token limit cut it
    no_room: bool = False  # the conversation is too long for the model: no reply
    error: Exception | None = None  # raise this, e.g. EngineError("busy")
    delay_s: float = 0.0  # before answering
    tokens: int | None = None  # sampled; None: the words of the reply


ChatScript = Iterable[ScriptedChatReply | str] | Callable[[ChatRequest], ScriptedChatReply | str]


class ScriptedChatModel(ChatModel):
    """Answers from a script.

    Args:
        script: replies in the order of requests (a list is not repeated), or a function of the request; a plain string
            stands for `ScriptedChatReply(content=…)`.
    """

    def __init__(self, script: ChatScript) -> None:
        self.requests: list[ChatRequest] = []
        self.started = self.closed = False
        self._next = script if callable(script) else _in_order(iter(script))

    async def start(self) -> None:
        """Nothing to make ready."""
        self.started = True

    def conversation(self, tools: Sequence[Mapping[str, Any]]) -> Conversation:
        """A new conversation."""
        return _ScriptedConversation(self, tuple(tools))

    async def close(self) -> None:
        """Nothing to free."""
        self.closed = True

    async def answer(self, request: ChatRequest) -> ScriptedChatReply:
        """What the script says.

        Raises:
            EngineError: the model is closed, the script's list is at its end, or the deadline passed.
        """
        if self.closed:
            raise EngineError("the scripted chat model is closed")
        self.requests.append(request)
        scripted = self._next(request)
        reply = ScriptedChatReply(content=scripted) if isinstance(scripted, str) else scripted
        deadline_s = request.params.deadline_s
        if deadline_s is not None and reply.delay_s > deadline_s:
            await asyncio.sleep(deadline_s)
            raise EngineError(f"no reply within {deadline_s:g} s")
        await asyncio.sleep(reply.delay_s)
        if reply.error is not None:
            raise reply.error
        return reply


@dataclass(slots=True)
class _ScriptedConversation(Conversation):
    _model: ScriptedChatModel
    _tools: tuple[Mapping[str, Any], ...]
    _messages: list[Message] = field(default_factory=list)
    _turns: int = 0
    _calls: int = 0

    def add(self, messages: Sequence[Message]) -> None:
        self._messages.extend(messages)

    async def reply(self, params: ChatParams) -> ChatCompletion | None:
        scripted = await self._model.answer(
            ChatRequest(messages=tuple(self._messages), tools=self._tools, params=params, turn=self._turns)
        )
        if scripted.no_room:
            return None
        reply = self._written(scripted)
        self._turns += 1
        self._messages.append(reply.message())
        return ChatCompletion(
            reply=reply,
            stop_reason=StopReason.LENGTH if scripted.truncated else StopReason.STOP,
            prompt_tokens=sum(len(message.text.split()) for message in self._messages[:-1]),
            completion_tokens=len(reply.text.split()) if scripted.tokens is None else scripted.tokens,
        )

    def _written(self, scripted: ScriptedChatReply) -> Reply:
        calls = [
            ToolCall(id=f"call_{self._calls + number}", name=name, arguments=dict(arguments), raw="")
            for number, (name, arguments) in enumerate(scripted.calls)
        ]
        self._calls += len(calls)
        shown = [scripted.content, *(f"{call.name}({call.arguments})" for call in calls)]
        return Reply(
            text="\n".join(part for part in shown if part),
            content=scripted.content,
            reasoning=scripted.reasoning,
            calls=tuple(calls),
            truncated=scripted.truncated,
        )


def _in_order(replies: Iterator[ScriptedChatReply | str]) -> Callable[[ChatRequest], ScriptedChatReply | str]:
    def following(_: ChatRequest) -> ScriptedChatReply | str:
        try:
            return next(replies)
        except StopIteration:
            raise EngineError("the script has no further reply") from None

    return following
