"""Messages ⇄ the JSON of `/chat/completions`.

A conversation keeps each message as the JSON text it is sent as, so that a turn adds to the request and encodes nothing
twice.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from miles_agents.chat import reply_from_message
from miles_agents.types import Message, Reply, Role, TextPart, ToolCall

_encode = encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def messages_json(messages: Sequence[Message]) -> list[str]:
    """Messages of the environment, as they are sent.

    The API takes no images in tool messages: they go into a user message behind all answers to the same reply.
    """
    sent: list[str] = []
    images: list[dict[str, Any]] = []
    for message in messages:
        if images and message.role is not Role.TOOL:
            sent.append(_encode({"role": "user", "content": images}))
            images = []
        if message.role is Role.TOOL and message.images:
            images.append({"type": "text", "text": f"Images of {message.name or 'the tool'}:"})
            images += [_part(image) for image in message.images]
        sent.append(_message_json(message))
    return [*sent, _encode({"role": "user", "content": images})] if images else sent


def _message_json(message: Message) -> str:
    content: Any = message.text
    if message.role is Role.TOOL:
        return _encode({"role": "tool", "tool_call_id": message.tool_call_id or "", "content": content})
    if message.images:
        content = [_part(part) for part in message.parts]
    if message.tool_calls:
        written = [each if each.arguments is None else replace(each, raw="") for each in message.tool_calls]
        return reply_json(message.text, written)  # `raw` of a call that no server gave is more than its arguments
    return _encode({"role": message.role.value, "content": content})


def reply_json(content: str, calls: Sequence[ToolCall]) -> str:
    """A reply as the assistant's message of later requests. Thinking is not sent back.

    Servers decode the arguments of earlier calls. Those that are no JSON object are sent inside one, since otherwise
    the request would be refused.
    """
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": _sent_name(call.name),
                    "arguments": _sent_arguments(call),
                },
            }
            for call in calls
        ]
    else:
        message["content"] = content
    return _encode(message)


def _sent_name(name: str) -> str:
    """A name that servers take; the model may have made one up that they do not."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"


def _sent_arguments(call: ToolCall) -> str:
    if call.arguments is None:
        return _encode({"malformed": call.raw})
    return call.raw if call.raw.lstrip().startswith("{") else _encode(dict(call.arguments))


def tools_json(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tool schemas, as they are sent."""
    return _encode(list(tools))


def read_reply(message: Mapping[str, Any], *, truncated: bool, known_ids: set[str]) -> Reply:
    """The reply in a response's `message`.

    Args:
        message: the server's.
        truncated: a token limit cut it.
        known_ids: ids of earlier calls of the conversation; those of this reply are added. A call without an id, or
            with one that is taken, gets another.

    Raises:
        EngineError: it is no message.
    """
    said = message if message.get("content") else {**message, "content": message.get("refusal")}
    return reply_from_message(said, truncated=truncated, known_ids=known_ids)


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}
