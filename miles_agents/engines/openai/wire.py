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

from miles_agents.chat import MalformedCallError, parse_arguments
from miles_agents.errors import EngineError
from miles_agents.types import Message, Reply, Role, TextPart, ToolCall

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_MAX_ID_CHARS = 200
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
    content = message.get("content") or message.get("refusal") or ""
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    written = message.get("tool_calls") or ()
    if not isinstance(content, str) or not isinstance(reasoning, str) or not isinstance(written, (list, tuple)):
        raise EngineError(f"the server's message cannot be read: {_encode(message)[:200]}")
    calls = tuple(_call(each, known_ids) for each in written)
    return Reply(
        text=_as_text(content, reasoning, calls), content=content, reasoning=reasoning, calls=calls, truncated=truncated
    )


def _call(written: Any, known_ids: set[str]) -> ToolCall:
    function = written.get("function") if isinstance(written, Mapping) else None
    if not isinstance(function, Mapping):
        raise EngineError(f"the server's tool call cannot be read: {_encode(written)[:200]}")
    name = function.get("name")
    arguments = function.get("arguments")
    raw = arguments if isinstance(arguments, str) else "" if arguments is None else _encode(arguments)
    call_id = written.get("id")
    if not isinstance(call_id, str) or not call_id or call_id in known_ids or len(call_id) > _MAX_ID_CHARS:
        call_id = f"call_{len(known_ids)}"
    known_ids.add(call_id)
    try:
        if not isinstance(name, str) or not name.strip():
            raise MalformedCallError("no tool name")  # noqa: TRY301
        return ToolCall(id=call_id, name=name, arguments=parse_arguments(raw), raw=raw)
    except MalformedCallError as error:
        shown = name if isinstance(name, str) else ""
        return ToolCall(id=call_id, name=shown, arguments=None, raw=raw, error=f"bad tool call: {error}")


def _as_text(content: str, reasoning: str, calls: Sequence[ToolCall]) -> str:
    """The reply in one text, for people and for environments that read `Reply.text`."""
    thinking = [f"<think>{reasoning}</think>"] if reasoning else []
    written = [
        f'<tool_call>\n{{"name": {json.dumps(c.name)}, "arguments": {c.raw or "{}"}}}\n</tool_call>' for c in calls
    ]
    return "\n".join([*thinking, *([content] if content else []), *written])


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    data = base64.b64encode(part.data).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}
