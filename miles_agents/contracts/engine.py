"""The inference engine contract: token ids in, sampled token ids and their logprobs out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from miles_agents.types import Completion, GenerateRequest, LogprobsMode, PauseMode


class RolloutEngine(ABC):
    """Serves one policy. All methods are called from one event loop; none blocks it."""

    logprobs_mode: LogprobsMode = LogprobsMode.NONE
    context_length: int  # prompt + completion, in tokens

    @property
    @abstractmethod
    def version(self) -> int:
        """Policy version of the weights that new tokens are sampled with; −1 before the first push."""

    @abstractmethod
    async def start(self) -> None:
        """Make ready for requests."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample a continuation.

        Raises:
            EngineError: the engine failed or the request's deadline passed.
            ValueError: prompt + max_new_tokens exceeds `context_length`, or the prompt is empty.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request; its `generate` returns what it has with `StopReason.ABORT`. Unknown ids are ignored."""

    async def end_session(self, session_id: str) -> None:
        """The session will not be continued: its KV cache may go. Nothing to do by default."""

    @abstractmethod
    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling until `resume`; `mode` says what becomes of requests in flight."""

    @abstractmethod
    async def resume(self) -> None:
        """Sample again."""

    async def sleep(self, what: frozenset[str]) -> None:
        """Free the memory of `what` ("weights", "kv_cache"). Nothing to free by default."""

    async def wake(self, what: frozenset[str]) -> None:
        """Take the memory of `what` back."""

    @abstractmethod
    async def close(self) -> None:
        """End every request and free everything. May be called twice."""
