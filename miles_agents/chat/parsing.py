"""Reading a reply: thinking, content and Hermes tool calls (`<tool_call>{json}</tool_call>`).

The text is cut, from left to right and once, into segments that join to exactly the text. Policy for thinking: a call
written inside `<think>…</think>` is never executed; it is counted. A call's JSON is read by a string-aware scanner, so
tags inside its strings are data. Time is linear in the length of the text.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from miles_agents.chat.arguments import MalformedCallError, as_arguments, clipped, read_json
from miles_agents.types import Reply, ToolCall

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

_OPENING = re.compile(f"{THINK_OPEN}|{CALL_OPEN}")
_QUOTE_OR_CLOSE = re.compile(rf'\\.|"|{CALL_CLOSE}', re.DOTALL)  # an escaped quote opens no string
_JSON_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*+"')
_CALL_KEYS = {"name", "arguments"}


class SegmentKind(StrEnum):
    """What a stretch of a reply is."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


class Segment(NamedTuple):
    """A stretch of a reply: `opening + body + closing` is its exact text; `closing` is empty if it was never closed."""

    kind: SegmentKind
    opening: str
    body: str
    closing: str

    @property
    def source(self) -> str:
        """The stretch exactly as written."""
        return self.opening + self.body + self.closing


def parse_reply(text: str, *, truncated: bool = False, opens_thinking: bool = False, first_call: int = 0) -> Reply:
    """Read what the policy said.

    Args:
        text: the decoded completion without its end-of-turn token.
        truncated: the end-of-turn token was not sampled.
        opens_thinking: the prompt ended inside `<think>`, so the text begins with reasoning.
        first_call: number of the first call; ids are `call_0`, `call_1`, … over an episode.
    """
    segments = split_reply(text, opens_thinking=opens_thinking)
    reasoning = [segment for segment in segments if segment.kind is SegmentKind.REASONING]
    calls = [segment for segment in segments if segment.kind is SegmentKind.CALL]
    return Reply(
        text=text,
        content="".join(segment.body for segment in segments if segment.kind is SegmentKind.CONTENT),
        reasoning="".join(segment.body for segment in reasoning),
        calls=tuple(_call(segment, f"call_{first_call + index}") for index, segment in enumerate(calls)),
        truncated=truncated,
        calls_in_reasoning=sum(count_calls(segment.body) for segment in reasoning),
        reasoning_unclosed=any(not segment.closing for segment in reasoning),
    )


def split_reply(text: str, *, opens_thinking: bool = False) -> list[Segment]:
    """Cut a reply into segments; joined, their sources are the text again."""
    segments: list[Segment] = []
    at = 0
    if opens_thinking:
        segments.append(_thinking(text, 0, ""))
        at = len(segments[0].source)
    while at < len(text):
        opening = _OPENING.search(text, at)
        start = opening.start() if opening else len(text)
        if start > at:
            segments.append(Segment(SegmentKind.CONTENT, "", text[at:start], ""))
        if opening is None:
            break
        thinking = opening[0] == THINK_OPEN
        segment = _thinking(text, opening.end(), THINK_OPEN) if thinking else _call_segment(text, opening.end())
        segments.append(segment)
        at = start + len(segment.source)
    return segments


def count_calls(reasoning: str) -> int:
    """How many complete calls (tags and one JSON object) stand in a piece of thinking.

    Prose that mentions the opening tag before a call does not hide the call.
    """
    count = 0
    at = reasoning.find(CALL_OPEN)
    while at >= 0:
        body = at + len(CALL_OPEN)
        end = _end_of_call(reasoning, body)
        if end is None:
            break
        written = reasoning[body:end]
        count += _is_json_object(written) or _is_json_object(written.rpartition(CALL_OPEN)[2])
        at = reasoning.find(CALL_OPEN, end)
    return count


def _thinking(text: str, body: int, opening: str) -> Segment:
    end = text.find(THINK_CLOSE, body)
    if end < 0:
        return Segment(SegmentKind.REASONING, opening, text[body:], "")
    return Segment(SegmentKind.REASONING, opening, text[body:end], THINK_CLOSE)


def _call_segment(text: str, body: int) -> Segment:
    end = _end_of_call(text, body)
    if end is None:
        return Segment(SegmentKind.CALL, CALL_OPEN, text[body:], "")
    return Segment(SegmentKind.CALL, CALL_OPEN, text[body:end], CALL_CLOSE)


def _end_of_call(text: str, body: int) -> int | None:
    """Where the closing tag stands: the first one outside the JSON strings of the call.

    Strict JSON strings hold no raw newline; a quote that opens no such string hides nothing. Skipping escapes outside
    strings too keeps this linear: no line is searched in vain twice.
    """
    at = body
    while found := _QUOTE_OR_CLOSE.search(text, at):
        at = found.end()
        if found[0] == CALL_CLOSE:
            return found.start()
        if found[0] == '"':
            string = _JSON_STRING.match(text, found.start())
            if string is None:
                end = text.find(CALL_CLOSE, at)
                return end if end >= 0 else None
            at = string.end()
    return None


def _is_json_object(text: str) -> bool:
    try:
        value, end = read_json(text)
    except MalformedCallError:
        return False
    return isinstance(value, dict) and not text[end:].strip()


def _call(segment: Segment, call_id: str) -> ToolCall:
    name = ""
    try:
        if not segment.closing:
            raise MalformedCallError(f"the call is not closed by {CALL_CLOSE}")  # noqa: TRY301
        value, end = read_json(segment.body)
        if segment.body[end:].strip():
            raise MalformedCallError(f"text after the JSON object: {clipped(repr(segment.body[end:].strip()), 60)}")  # noqa: TRY301
        name = _call_name(value)
        arguments = as_arguments(value.get("arguments", {}))
    except MalformedCallError as error:
        return ToolCall(id=call_id, name=name, arguments=None, raw=segment.body, error=f"bad tool call: {error}")
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=segment.body)


def _call_name(value: object) -> str:
    expected = '{"name": "…", "arguments": {…}}'
    if not isinstance(value, dict):
        raise MalformedCallError(f"a call is a JSON object, {expected}")
    unknown = sorted(set(value) - _CALL_KEYS)
    if unknown:
        raise MalformedCallError(f"unknown key {clipped(repr(unknown[0]), 60)}; a call is {expected}")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise MalformedCallError(f"no tool name; a call is {expected}")
    return name
