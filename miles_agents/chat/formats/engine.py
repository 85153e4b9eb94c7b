"""Calls that the engine's own parser found: OpenAI-style messages, whole and streamed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from miles_agents.chat.arguments import MalformedCallError, clipped, parse_arguments
from miles_agents.chat.formats.base import CallReader, ToolFormat
from miles_agents.chat.formats.hermes import CALL_CLOSE, CALL_OPEN
from miles_agents.chat.schemas import ToolSchemas, as_json
from miles_agents.chat.segments import THINK_CLOSE, THINK_OPEN, THOUGHT_ALONE, Delta, DeltaKind
from miles_agents.errors import EngineError
from miles_agents.types import Reply, ToolCall

MAX_ID_CHARS = 200

_NEVER = re.compile(r"(?!)")
_SHOWN_CHARS = 200


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


def reply_from_message(
    message: Mapping[str, Any], *, truncated: bool = False, known_ids: set[str] | None = None
) -> Reply:
    """The reply that an OpenAI-style assistant message is.

    Argument strings are read as strictly as everywhere here; one that cannot be read is a malformed call under its id.
    The reply's `text` is put together for reading: it is not what was sampled, and nothing can be trained on it.

    Args:
        message: `content` (a text, a list of text parts or null), `tool_calls`, `reasoning_content` or `reasoning`.
        truncated: the server's `finish_reason` was `length`.
        known_ids: ids of earlier calls of the conversation; those of this reply are added. A call without an id, with
            one that is taken or one of more than 200 characters gets another: `call_0`, `call_1`, …

    Raises:
        EngineError: it is no message, or an entry of `tool_calls` is no call.
    """
    content = _text_of(message, "content")
    reasoning = _text_of(message, "reasoning_content") or _text_of(message, "reasoning")
    calls = _read_calls(message.get("tool_calls") or (), set() if known_ids is None else known_ids)
    errors = [f"{call.id}: {call.error}" for call in calls if call.error]
    if reasoning and not calls and not content.strip():
        errors.append(THOUGHT_ALONE)
    return Reply(
        text=_as_text(content, reasoning, calls),
        content=content,
        reasoning=reasoning,
        calls=calls,
        truncated=truncated,
        errors=tuple(errors),
    )


class MessageStream:
    """Puts the deltas of a streamed OpenAI-style message together.

    ```python
    stream = MessageStream()
    for chunk in chunks:
        for delta in stream.feed(chunk["choices"][0]["delta"]): ...
    reply = reply_from_message(stream.message(), truncated=finish_reason == "length")
    ```

    The deltas that come back, joined, are the content, reasoning, names and argument strings of that message, as those
    of `StreamingParser` are of a text.
    """

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_StreamedCall] = []
        self._places: dict[int, int] = {}  # the server's index → the place here

    def feed(self, delta: Mapping[str, Any]) -> list[Delta]:
        """Take in one `delta`; what it adds.

        Raises:
            EngineError: it cannot be read.
        """
        deltas: list[Delta] = []
        reasoning = _text_of(delta, "reasoning_content") or _text_of(delta, "reasoning")
        for kind, text, kept in (
            (DeltaKind.REASONING, reasoning, self._reasoning),
            (DeltaKind.CONTENT, _text_of(delta, "content"), self._content),
        ):
            if text:
                kept.append(text)
                deltas.append(Delta(kind, text))
        for entry in _entries(delta.get("tool_calls") or ()):
            deltas += self._add_to_call(entry)
        return deltas

    def message(self) -> dict[str, Any]:
        """The message so far, as a server gives it that does not stream."""
        return {
            "role": "assistant",
            "content": "".join(self._content),
            "reasoning_content": "".join(self._reasoning),
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.arguments)},
                }
                for call in self._calls
            ],
        }

    def _add_to_call(self, entry: Mapping[str, Any]) -> list[Delta]:
        function = _function_of(entry)
        place = self._place_of(entry)
        call = self._calls[place]
        call.id = call.id or _string(entry.get("id"))
        deltas: list[Delta] = []
        name, arguments = _string(function.get("name")), function.get("arguments")
        if name and not call.name:
            call.name = name
            deltas.append(Delta(DeltaKind.CALL, name, place))
        written = arguments if isinstance(arguments, str) else "" if arguments is None else as_json(arguments)
        if written:
            call.arguments.append(written)
            deltas.append(Delta(DeltaKind.ARGUMENTS, written, place))
        return deltas

    def _place_of(self, entry: Mapping[str, Any]) -> int:
        """The call that an entry goes on with, by its index; without one, an id or a name begins another call."""
        index = entry.get("index")
        if isinstance(index, int):
            if index not in self._places:
                self._places[index] = len(self._calls)
                self._calls.append(_StreamedCall())
            return self._places[index]
        if not self._calls or entry.get("id") or _function_of(entry).get("name"):
            self._calls.append(_StreamedCall())
        return len(self._calls) - 1


class _StreamedCall:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


def _text_of(message: Mapping[str, Any], key: str) -> str:
    value = message.get(key)
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        value = "".join(_text_of(part, "text") for part in value)
    if not isinstance(value, (str, type(None))):
        raise EngineError(f"the server's message cannot be read ({key}): {clipped(as_json(message), _SHOWN_CHARS)}")
    return value or ""


def _entries(written: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(written, (list, tuple)):
        raise EngineError(
            f"the server's message cannot be read (tool_calls): {clipped(as_json(written), _SHOWN_CHARS)}"
        )
    return written


def _read_calls(written: Any, known_ids: set[str]) -> tuple[ToolCall, ...]:
    """The one reader of `tool_calls`."""
    entries = _entries(written)
    functions = [_function_of(entry) for entry in entries]
    own_ids = {_string(entry.get("id")) for entry in entries}
    calls: list[ToolCall] = []
    for entry, function in zip(entries, functions, strict=True):
        call_id = _string(entry.get("id"))
        if not call_id or call_id in known_ids or len(call_id) > MAX_ID_CHARS:
            number = len(known_ids)
            while (call_id := f"call_{number}") in known_ids or call_id in own_ids:
                number += 1
        known_ids.add(call_id)
        calls.append(_call(function, call_id))
    return tuple(calls)


def _function_of(entry: Any) -> Mapping[str, Any]:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping):
        raise EngineError(f"the server's tool call cannot be read: {clipped(as_json(entry), _SHOWN_CHARS)}")
    return function


def _call(function: Mapping[str, Any], call_id: str) -> ToolCall:
    name, written = _string(function.get("name")), function.get("arguments")
    raw = written if isinstance(written, str) else "" if written is None else as_json(written)
    try:
        if not name.strip():
            raise MalformedCallError("no tool name")  # noqa: TRY301
        arguments = parse_arguments(raw)
    except MalformedCallError as error:
        return ToolCall(id=call_id, name=name, arguments=None, raw=raw, error=f"bad tool call: {error}")
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw)


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _as_text(content: str, reasoning: str, calls: Sequence[ToolCall]) -> str:
    """The reply in one text, for people and for environments that read `Reply.text`."""
    thinking = [f"{THINK_OPEN}{reasoning}{THINK_CLOSE}"] if reasoning else []
    written = [
        f'{CALL_OPEN}\n{{"name": {as_json(call.name)}, "arguments": {call.raw or "{}"}}}\n{CALL_CLOSE}'
        for call in calls
    ]
    return "\n".join([*thinking, *([content] if content else []), *written])
