"""The policy that is trained: token ids from an engine, exactly as sampled.

Each prompt is the prompt before it, the sampled ids and the ids of the observation, unless the chat template rewrites
history: then it is rendered anew, and the trajectory becomes several training samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from miles_agents.chat import is_long
from miles_agents.contracts import RolloutEngine
from miles_agents.errors import EngineError
from miles_agents.rollout.policy import Policy, Sampled, Seat, SeatSpec
from miles_agents.types import Completion, GenerateRequest, IntArray, Message, Reply, SamplingParams, StopReason, Turn


class Chat(Protocol):
    """What a seat needs of a chat format (`miles_agents.chat.ChatFormat`)."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a turn."""
        ...

    @property
    def appends(self) -> bool:
        """True if each prompt begins with the prompt before it and what was sampled; False: it is made anew."""
        ...

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> IntArray:
        """(P,) int32 ids of the conversation's beginning, generation prompt included."""
        ...

    def next_prompt(
        self,
        *,
        ids: IntArray,
        completion_ids: IntArray,
        messages: Sequence[Message],
        observation: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
    ) -> IntArray:
        """(Q,) int32 ids of the next turn's whole prompt.

        Args:
            ids: (P,) the prompt before.
            completion_ids: (C,) what was sampled on it.
            messages: the whole conversation, the reply and the observation included.
            observation: the new messages, the last of `messages`.
            tools: schemas, as in the first prompt.
        """
        ...

    def parse(
        self, completion: IntArray, *, truncated: bool, first_call: int, tools: Sequence[Mapping[str, Any]]
    ) -> Reply:
        """Read a completion; `first_call` numbers its first call, `tools` give arguments their types."""
        ...

    def history_message(self, reply: Reply, tools: Sequence[Mapping[str, Any]]) -> Message:
        """A reply as the assistant message that `next_prompt` is given; `tools` as for `parse`."""
        ...

    def decode(self, ids: IntArray) -> str:
        """Text for people, control tokens shown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the policy samples; `max_new_tokens` is per turn, `max_tokens` per trajectory."""

    max_new_tokens: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class TokenPolicy(Policy):
    """Samples from an engine.

    Args:
        engine: where completions come from.
        chat: messages ⇄ ids of the engine's model.
        sampling: how to sample, and the token limits.
        request_deadline_s: of one generation.
        name: shown in trajectories.
        trained: its trajectories are trained on; False for an opponent with weights of its own.
    """

    def __init__(
        self,
        *,
        engine: RolloutEngine,
        chat: Chat,
        sampling: Sampling,
        request_deadline_s: float | None = None,
        name: str = "policy",
        trained: bool = True,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.sampling = sampling
        self.request_deadline_s = request_deadline_s
        self.name = name
        self.trained = trained

    def seat(self, spec: SeatSpec) -> Seat:
        """A seat in one episode."""
        return _TokenSeat(self, spec)


class _TokenSeat(Seat):
    def __init__(self, policy: TokenPolicy, spec: SeatSpec) -> None:
        self._policy = policy
        self._spec = spec
        self._ids: IntArray = np.zeros(0, np.int32)
        self._messages: list[Message] = []
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._said: Completion | None = None  # the last one
        self._turns = 0

    async def hear(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Make the next prompt; tokenise long texts in a thread, so that the event loop goes on."""
        chat, said = self._policy.chat, self._said
        self._tools = tools
        self._messages.extend(messages)
        known = tuple(self._messages)

        def make() -> IntArray:
            if said is None:
                return chat.first_prompt(known, tools)
            return chat.next_prompt(
                ids=self._ids, completion_ids=said.ids, messages=known, observation=messages, tools=tools
            )

        work: Callable[[], IntArray] = make
        tokenised = messages if chat.appends else known
        self._ids = await asyncio.to_thread(work) if is_long(tokenised) else work()

    async def generate(self) -> Sampled | None:
        policy, sampling = self._policy, self._policy.sampling
        room = sampling.max_tokens - len(self._ids)
        if room <= 0:
            return None
        completion = await policy.engine.generate(
            GenerateRequest(
                ids=self._ids,
                params=SamplingParams(
                    max_new_tokens=min(sampling.max_new_tokens, room),
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    stop_token_ids=policy.chat.stop_token_ids,
                    seed=self._spec.seed("sample", self._turns),
                ),
                request_id=f"{self._spec.id}/{self._turns}",
                session_id=self._spec.id,
                deadline_s=policy.request_deadline_s,
            )
        )
        policy.sampled_tokens += len(completion.ids)
        self._said = completion
        self._turns += 1
        return Sampled(self._turn(completion), fills_context=room < sampling.max_new_tokens)

    def read(self, sampled: Sampled, *, first_call: int) -> Reply:
        chat, turn = self._policy.chat, sampled.turn
        reply = chat.parse(
            turn.completion_ids,
            truncated=turn.stop_reason is StopReason.LENGTH,
            first_call=first_call,
            tools=self._tools,
        )
        self._messages.append(chat.history_message(reply, self._tools))
        return reply

    async def close(self) -> None:
        with suppress(EngineError):  # an engine that is lost holds no session
            await self._policy.engine.end_session(self._spec.id)

    def _turn(self, completion: Completion) -> Turn:
        return Turn(
            prompt_ids=self._ids,
            completion_ids=completion.ids,
            logprobs=completion.logprobs,
            stop_reason=completion.stop_reason,
            versions=completion.versions,
            text=self._policy.chat.decode(completion.ids),
            timings=completion.timings,
            routed_experts=completion.routed_experts,
        )
