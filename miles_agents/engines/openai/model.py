"""`OpenAIChatModel`: a model behind `/chat/completions`, with the server's own tool calling."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from miles_agents.contracts.chat_model import ChatCompletion, ChatModel, ChatParams, Conversation
from miles_agents.engines.openai.client import Client, NoRoomError, Server
from miles_agents.engines.openai.wire import encoded, messages_json, read_reply, reply_json, tools_json
from miles_agents.errors import ConfigError, EngineError
from miles_agents.types import Message, StopReason

_OWN_KEYS = frozenset({"model", "messages", "tools", "stream", "n", "temperature", "top_p", "top_k", "seed"})
_NO_REPLY = frozenset({"abort", "error"})  # what a server says of a reply that it gave up


class OpenAIChatModel(ChatModel):
    """Any OpenAI-compatible server: an API, SGLang, vLLM.

    Args:
        model: the server's name for it.
        server: where it is.
        max_tokens_key: `max_tokens`, or `max_completion_tokens` for models that want that.
        sends_seed: give each request its seed; servers that refuse the key need False.
        extra_body: further keys of every request, e.g. `{"reasoning_effort": "low"}`.

    Raises:
        ConfigError: `extra_body` holds a key that requests set themselves.
    """

    def __init__(
        self,
        *,
        model: str,
        server: Server,
        max_tokens_key: str = "max_tokens",
        sends_seed: bool = True,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        own = sorted({*_OWN_KEYS, max_tokens_key} & set(extra_body or {}))
        if own:
            raise ConfigError(f"{server.settings}.extra_body.{own[0]}: this key is set by the engine; leave it out")
        self._model = model
        self._client = Client(server)
        self._max_tokens_key = max_tokens_key
        self._sends_seed = sends_seed
        self._extra = dict(extra_body or {})
        self._tools: tuple[Sequence[Mapping[str, Any]], str] = ((), "")  # the last ones, and their JSON

    async def start(self) -> None:
        """See whether the server is there and knows the model."""
        await self._client.open()
        try:
            await self._client.check(self._model)
        except BaseException:
            await self._client.close()
            raise

    def conversation(self, tools: Sequence[Mapping[str, Any]]) -> Conversation:
        """A new conversation."""
        if tools != self._tools[0]:
            self._tools = (list(tools), tools_json(tools))
        return _OpenAIConversation(self, self._tools[1] if tools else "")

    async def close(self) -> None:
        """End all requests."""
        await self._client.close()

    async def ask(self, messages: Sequence[str], tools: str, params: ChatParams) -> Mapping[str, Any]:
        """One request; the server's answer. `messages` and `tools` are JSON texts."""
        keys = {"model": self._model, self._max_tokens_key: params.max_new_tokens, "temperature": params.temperature}
        if params.top_p != 1.0:
            keys["top_p"] = params.top_p
        if params.top_k:
            keys["top_k"] = params.top_k
        if self._sends_seed:
            keys["seed"] = params.seed % 2**31  # servers take 32 bits
        head = encoded({**keys, **self._extra})
        offered = f',"tools":{tools}' if tools else ""
        body = f'{head[:-1]},"messages":[{",".join(messages)}]{offered}}}'
        return await self._client.post(body.encode("utf-8", "replace"), deadline_s=params.deadline_s)


class _OpenAIConversation(Conversation):
    def __init__(self, model: OpenAIChatModel, tools: str) -> None:
        self._model = model
        self._tools = tools
        self._messages: list[str] = []
        self._call_ids: set[str] = set()

    def add(self, messages: Sequence[Message]) -> None:
        self._messages.extend(messages_json(messages))

    async def reply(self, params: ChatParams) -> ChatCompletion | None:
        began = time.perf_counter()
        try:
            answer = await self._model.ask(self._messages, self._tools, params)
        except NoRoomError:
            return None
        choice = _first_choice(answer)
        reason = choice.get("finish_reason")
        if reason in _NO_REPLY:
            raise EngineError(f"the server gave up the reply (finish_reason {reason!r})")
        cut = reason == "length"
        reply = read_reply(choice["message"], truncated=cut, known_ids=self._call_ids)
        self._messages.append(reply_json(reply.content, reply.calls))
        usage = answer.get("usage")
        usage = usage if isinstance(usage, Mapping) else {}
        return ChatCompletion(
            reply=reply,
            stop_reason=StopReason.LENGTH if cut else StopReason.STOP,
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            timings={"request": time.perf_counter() - began},
        )


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
        raise EngineError(f"the server's answer has no message: {json.dumps(answer)[:300]}")
    return choice
