"""Models that are spoken to in messages: they can be evaluated, never trained on, since they give no token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from miles_agents.types import Message, Reply, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParams:
    """How to sample one reply. `top_k=0` and `top_p=1` are off."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    deadline_s: float | None = None  # seconds from the call, retries included; then EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """One reply and what it cost."""

    reply: Reply
    stop_reason: StopReason
    prompt_tokens: int = 0  # 0 where the model does not say
    completion_tokens: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds


class Conversation(ABC):
    """One seat's conversation. `add` what the environment says, `reply`, and so on; replies are remembered."""

    @abstractmethod
    def add(self, messages: Sequence[Message]) -> None:
        """Append messages.

        Raises:
            UsageError: the model cannot be shown one of them.
        """

    @abstractmethod
    async def reply(self, params: ChatParams) -> ChatCompletion | None:
        """The model's next reply. None: the conversation has no room for one.

        Raises:
            EngineError: the model failed, or the deadline passed.
            UsageError: no request to it can succeed, e.g. a refused key.
        """


class ChatModel(ABC):
    """A model behind an API. All methods are called from one event loop; none blocks it."""

    @abstractmethod
    async def start(self) -> None:
        """Make ready for requests.

        Raises:
            UsageError: it cannot be reached as it is set up.
        """

    @abstractmethod
    def conversation(self, tools: Sequence[Mapping[str, Any]]) -> Conversation:
        """A new conversation with these tool schemas, OpenAI-style."""

    @abstractmethod
    async def close(self) -> None:
        """End every request and free everything. May be called twice."""
