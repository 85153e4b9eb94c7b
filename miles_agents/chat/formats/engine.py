"""Calls that the engine's own parser found: OpenAI-style messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from miles_agents.chat.arguments import MalformedCallError, as_arguments, clipped, parse_arguments
from miles_agents.chat.formats.base import CallReader, ToolFormat
from miles_agents.chat.formats.hermes import CALL_CLOSE, CALL_OPEN
from miles_agents.chat.schemas import ToolSchemas, as_json
from miles_agents.chat.segments import THINK_CLOSE, THINK_OPEN
from miles_agents.types import Reply, ToolCall

_NEVER = re.compile(r"(?!)")


class EngineFormat(ToolFormat):
    """No call is looked for in the text: the server gives them apart, see `reply_from_message`."""

    name = "engine"
    opening = _NEVER
    unfinished = _NEVER

    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """Nothing opens a call in this format."""
        raise NotImplementedError("this format has no calls in its text")

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The call as a server gives it: one entry of `tool_calls`, in JSON."""
        return as_json({"type": "function", "function": {"name": name, "arguments": as_json(arguments)}})


def reply_from_message(message: Mapping[str, Any], *, truncated: bool = False, first_call: int = 0) -> Reply:
    """The reply that an OpenAI-style assistant message is.

    Argument strings are read as strictly as everywhere here; one that cannot be read is a malformed call under its id.
    The reply's `text` is put together for reading: it is not what was sampled, and nothing can be trained on it.

    Args:
        message: `content` (a text, a list of text parts or null), `tool_calls`, `reasoning_content` or `reasoning`.
        truncated: the server's `finish_reason` was `length`.
        first_call: number of the first call, for calls to which the server gave no id, or one it gave twice.
    """
    content = _text_of(message.get("content"))
    reasoning = _text_of(message.get("reasoning_content")) or _text_of(message.get("reasoning"))
    given = message.get("tool_calls")
    entries = [entry for entry in given if isinstance(entry, Mapping)] if isinstance(given, list) else []
    calls: list[ToolCall] = []
    taken = {str(entry.get("id")) for entry in entries}
    for number, entry in enumerate(entries):
        own = entry.get("id")
        known = {call.id for call in calls}
        call_id = own if isinstance(own, str) and own and own not in known else f"call_{first_call + number}"
        while call_id in known or (call_id != own and call_id in taken):
            call_id += "_"
        calls.append(_call(entry, call_id))
    shown = f"{THINK_OPEN}{reasoning}{THINK_CLOSE}" if reasoning else ""
    shown += content + "\n".join(f"{CALL_OPEN}{call.name}({call.raw}){CALL_CLOSE}" for call in calls)
    return Reply(
        text=shown,
        content=content,
        reasoning=reasoning,
        calls=tuple(calls),
        truncated=truncated,
        errors=tuple(f"{clipped(call.id, 60)}: {call.error}" for call in calls if call.error),
    )


def _text_of(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_text_of(part.get("text")) for part in value if isinstance(part, Mapping))
    return value if isinstance(value, str) else ""


def _call(entry: Mapping[str, Any], call_id: str) -> ToolCall:
    function = entry.get("function")
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    name = name if isinstance(name, str) else ""
    written = function.get("arguments")
    raw = written if isinstance(written, str) else as_json(written)
    try:
        if not name.strip():
            raise MalformedCallError("no tool name")  # noqa: TRY301
        arguments = parse_arguments(written) if isinstance(written, str) else as_arguments(written or {})
    except MalformedCallError as error:
        return ToolCall(id=call_id, name=name, arguments=None, raw=raw, error=f"bad tool call: {error}")
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)
