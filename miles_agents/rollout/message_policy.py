"""The policy of a model that is spoken to in messages (`ChatModel`): evaluated, never trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_agents.contracts.chat_model import ChatModel, ChatParams, Conversation
from miles_agents.rollout.policy import Policy, Sampled, Seat, SeatSpec, untrained_turn
from miles_agents.types import Message, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """How a chat model samples; `max_new_tokens` is per turn, `max_tokens` per conversation, prompts included."""

    max_new_tokens: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class MessagePolicy(Policy):
    """Asks a chat model.

    Args:
        model: started by whoever made it.
        limits: how to sample, and the token limits, in the tokens that the model reports.
        request_deadline_s: of one reply, retries included.
        name: shown in trajectories.
    """

    def __init__(
        self, *, model: ChatModel, limits: ChatLimits, request_deadline_s: float, name: str = "policy"
    ) -> None:
        self.model = model
        self.limits = limits
        self.request_deadline_s = request_deadline_s
        self.name = name

    def seat(self, spec: SeatSpec) -> Seat:
        """A seat in one episode."""
        return _MessageSeat(self, spec)


class _MessageSeat(Seat):
    def __init__(self, policy: MessagePolicy, spec: SeatSpec) -> None:
        self._policy = policy
        self._spec = spec
        self._conversation: Conversation | None = None
        self._reply = Reply.of("")
        self._tokens = 0  # of the conversation so far, as the model counts
        self._turns = 0

    async def hear(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        if self._conversation is None:
            self._conversation = self._policy.model.conversation(tools)
        self._conversation.add(messages)

    async def generate(self) -> Sampled | None:
        assert self._conversation is not None, "generate() before hear()"
        policy, limits = self._policy, self._policy.limits
        room = limits.max_tokens - self._tokens
        if room <= 0:
            return None
        completion = await self._conversation.reply(
            ChatParams(
                max_new_tokens=min(limits.max_new_tokens, room),
                temperature=limits.temperature,
                top_p=limits.top_p,
                top_k=limits.top_k,
                seed=self._spec.seed("sample", self._turns),
                deadline_s=policy.request_deadline_s,
            )
        )
        if completion is None:
            return None
        self._turns += 1
        self._tokens = completion.prompt_tokens + completion.completion_tokens
        self._reply = completion.reply
        policy.sampled_tokens += completion.completion_tokens
        turn = untrained_turn(
            completion.reply.text,
            stop_reason=completion.stop_reason,
            info={
                "completion_tokens": float(completion.completion_tokens),
                "prompt_tokens": float(completion.prompt_tokens),
            },
        )
        return Sampled(turn, fills_context=room < limits.max_new_tokens)

    def read(self, sampled: Sampled, *, first_call: int) -> Reply:
        """The reply; its calls keep the ids that the model gave them."""
        return self._reply
