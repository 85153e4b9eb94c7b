"""Replies read piece by piece say what they say in one piece. Case B07."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_call_texts import FORMATS, TOOLS, add_text, joined, recorded

from miles_agents.chat import (
    Delta,
    DeltaKind,
    Segment,
    StreamingParser,
    ThinkingPolicy,
    get_format,
    parse_reply,
    split_reply,
)
from miles_agents.types import Reply

OUTPUTS = [(style, text) for style in FORMATS for text in recorded(style)]
POLICIES = list(ThinkingPolicy)


def stream(chunks: Iterable[str], *, truncated: bool = False, **settings: Any) -> tuple[Reply, list[Delta]]:
    parser = StreamingParser(**settings)
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)]
    deltas += parser.flush(truncated=truncated)
    return parser.finish(), deltas


def check_deltas(reply: Reply, deltas: list[Delta]) -> None:
    """What was passed on is what the reply says."""
    found = joined(deltas)
    assert found.pop((DeltaKind.CONTENT, None), "") == reply.content
    assert found.pop((DeltaKind.REASONING, None), "") == reply.reasoning
    for place, call in enumerate(reply.calls):
        assert found.pop((DeltaKind.CALL, place)) == call.name
        arguments = found.pop((DeltaKind.ARGUMENTS, place), None)
        if call.error is None:
            assert arguments is not None
            assert json.loads(arguments) == call.arguments
    assert found == {}


# --- case B07 ---------------------------------------------------------------------------------------------------------

B07 = {"42": 42, "true": True, "null": None, '{"k":[1]}': {"k": [1]}}


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("value", B07)
def test_B07_the_last_brace_is_never_lost_at_any_split(style: str, value: str) -> None:
    name, arguments = ("python", {"code": value}) if style == "fenced" else ("f", {"id": B07[value]})
    text = get_format(style).render_call(name, arguments)
    splits: list[Iterable[str]] = [[text], text, *([text[:at], text[at:]] for at in range(1, len(text)))]
    for chunks in splits:
        reply, deltas = stream(chunks, format=style, tools=TOOLS)
        sent = "".join(each.text for each in deltas if each.kind is DeltaKind.ARGUMENTS)
        assert json.loads(sent) == arguments
        assert [call.arguments for call in reply.calls] == [arguments]
        check_deltas(reply, deltas)


def test_B07_joined_deltas_of_the_reported_call_are_its_arguments_to_the_letter() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {"id": 42}}\n</tool_call>'
    for size in range(1, len(text) + 1):
        _, deltas = stream([text[at : at + size] for at in range(0, len(text), size)], format="hermes")
        assert joined(deltas)[DeltaKind.ARGUMENTS, 0] == '{"id": 42}'


def test_there_are_some_twenty_recorded_outputs_of_each_format() -> None:
    for style in FORMATS:
        assert len(list(recorded(style))) >= 20


@pytest.mark.parametrize(("style", "text"), OUTPUTS)
@pytest.mark.parametrize("thinking", POLICIES)
def test_B07_every_split_of_a_recorded_output_says_the_same(style: str, text: str, thinking: ThinkingPolicy) -> None:
    settings: dict[str, Any] = {"format": style, "tools": TOOLS, "thinking": thinking}
    reply = parse_reply(text, **settings)
    for chunks in [[text], list(text), *([text[:at], text[at:]] for at in range(1, len(text)))]:
        streamed, deltas = stream(chunks, **settings)
        assert streamed == reply
        check_deltas(streamed, deltas)


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("truncated", [False, True])
def test_a_cut_at_any_place_says_the_same_streamed_and_whole(style: str, truncated: bool) -> None:
    whole = f"<think>so</think>I add.\n{add_text(style)}\n{add_text(style)}"
    for end in range(len(whole)):
        text = whole[:end]
        reply = parse_reply(text, format=style, tools=TOOLS, truncated=truncated)
        streamed, deltas = stream(text, format=style, tools=TOOLS, truncated=truncated)
        assert streamed == reply
        check_deltas(streamed, deltas)


# --- what is passed on, and when --------------------------------------------------------------------------------------


def test_content_and_reasoning_are_passed_on_at_once_and_beginnings_of_tags_are_held_back() -> None:
    parser = StreamingParser()
    assert parser.feed("Hello") == [Delta(DeltaKind.CONTENT, "Hello")]
    assert parser.feed(" <th") == [Delta(DeltaKind.CONTENT, " ")]
    assert parser.feed("ink>so</") == [Delta(DeltaKind.REASONING, "so")]
    assert parser.feed("b>") == [Delta(DeltaKind.REASONING, "</b>")]
    assert parser.feed("</think>1 <") == [Delta(DeltaKind.CONTENT, "1 ")]
    assert parser.feed(" 2") == [Delta(DeltaKind.CONTENT, "< 2")]


@pytest.mark.parametrize("style", FORMATS)
def test_long_arguments_are_passed_on_while_they_come(style: str) -> None:
    code = "print('line')\n" * 200
    name, key = ("python", "code")
    text = get_format(style).render_call(name, {key: code})
    parser = StreamingParser(format=style, tools=TOOLS)
    half = [delta for at in range(0, len(text) // 2, 7) for delta in parser.feed(text[at : at + 7])]
    assert half[0] == Delta(DeltaKind.CALL, "python", 0)
    assert len(joined(half)[DeltaKind.ARGUMENTS, 0]) > len(code) // 3


def test_a_stream_that_ended_takes_no_more_text() -> None:
    parser = StreamingParser()
    parser.feed("a")
    assert parser.finish(truncated=True).truncated
    assert parser.flush() == []
    assert parser.finish().content == "a"
    with pytest.raises(ValueError, match="make a new StreamingParser"):
        parser.feed("b")


def test_ids_go_on_from_the_first_call_of_the_turn() -> None:
    reply, _ = stream([add_text("hermes") * 2], first_call=5)
    assert [call.id for call in reply.calls] == ["call_5", "call_6"]


# --- any text ---------------------------------------------------------------------------------------------------------

BITS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=id>"),
    *("</parameter>", "<arg_key>id</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>", "f.call(", 'id="'),
    *('{"name": "f", ', '"parameters": {', '"arguments": {', '"id": ', "}", "]", "[", '"', "\\", ", ", "; ", "42"),
    *("```", "```python\n", "```\n", "````md\n", "\n", "\r\n", " ", "é", "\x00", "f", "<", "{"),
    *(add_text(style) for style in FORMATS),
]
texts = st.lists(st.one_of(st.sampled_from(BITS), st.text(max_size=4)), max_size=16).map("".join)


@given(
    st.sampled_from([*FORMATS, "engine"]),
    texts,
    st.lists(st.integers(1, 40), max_size=8),
    st.booleans(),
    st.booleans(),
    st.sampled_from(POLICIES),
    st.sampled_from([(), TOOLS]),
)
@settings(max_examples=600, deadline=None)
def test_any_text_is_read_without_an_error_lost_text_or_difference_between_splits(
    style: str, text: str, sizes: list[int], truncated: bool, opens_thinking: bool, thinking: ThinkingPolicy, tools: Any
) -> None:
    settings: dict[str, Any] = {"format": style, "tools": tools, "opens_thinking": opens_thinking, "thinking": thinking}
    reply = parse_reply(text, truncated=truncated, **settings)
    check_segments(split_reply(text, **settings), reply)
    chunks, at = [], 0
    for size in [*sizes, len(text)]:
        chunks.append(text[at : at + size])
        at += size
    for pieces in (chunks, list(text)):
        streamed, deltas = stream(pieces, truncated=truncated, **settings)
        assert streamed == reply
        check_deltas(streamed, deltas)


def check_segments(segments: list[Segment], reply: Reply) -> None:
    """No text is lost: segments re-assemble exactly, and every part of the reply is one of theirs."""
    assert "".join(segment.source for segment in segments) == reply.text
    bodies = {kind: [each.body for each in segments if each.kind == kind] for kind in ("content", "reasoning", "call")}
    assert reply.content == "".join(bodies["content"])
    assert reply.reasoning == "".join(bodies["reasoning"])
    assert [call.raw for call in reply.calls] == bodies["call"]
    assert len([line for line in reply.errors if line.startswith("call_")]) == sum(bool(c.error) for c in reply.calls)
    assert all(len(line) <= 500 and "\n" not in line for line in reply.errors)
    assert all(len(call.error) <= 500 for call in reply.calls if call.error)


# --- time -------------------------------------------------------------------------------------------------------------

LONG = {
    "prose": "word < word ` { \\ \n",
    "one argument": None,
    "one line": 'x "a" ',
    "tags": "<tool_call>",
    "closing tags": "</parameter>\n</arg_value> ",
    "openings": "<tool_call>\n<function=f>\n<parameter=id>\n",
    "objects": '{"name": "f", "parameters": {\n',
    "quotes": '<tool_call>{"a": "',
    "broken": '<tool_call>{"a": "b</tool_call>\n',
    "fences": "```python\nx\n````\n",
    "keys": "<tool_call>f<arg_key>id</arg_key><arg_value>",
    "spaces": "   \n\n\n\t",
    "backslashes": "\\",
    "nested": '{"name": {"a": ',
    "lists": '{"name": [\n',
}


def looked_at(style: str, kind: str, length: int, *, piece: int, **settings: Any) -> int:
    if kind == "one argument":
        name, key = ("python", "code") if style == "fenced" else ("write_file", "content")
        arguments = {key: "x = 1 # é\n" * (length // 10)}
        text = get_format(style).render_call(name, arguments if key == "code" else {"path": "p", **arguments})
    else:
        text = (LONG[kind] or "") * (length // len(LONG[kind] or "-"))
    parser = StreamingParser(format=style, tools=TOOLS, **settings)
    for at in range(0, len(text), piece):
        parser.feed(text[at : at + piece])
    assert parser.finish().text == text
    return parser.characters_read


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("kind", ["one argument", "prose"])
def test_long_replies_fed_by_single_characters_are_looked_at_a_bounded_number_of_times(style: str, kind: str) -> None:
    """Counted, not timed. A parser that began anew with every character would look at 800 million."""
    assert looked_at(style, kind, 40_000, piece=1) < 40_000 * 8


def test_200_kilobytes_fed_by_single_characters_are_looked_at_a_bounded_number_of_times() -> None:
    assert looked_at("hermes", "one argument", 200_000, piece=1) < 200_000 * 8


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("settings", [{}, {"opens_thinking": True, "thinking": ThinkingPolicy.END_THINKING}], ids=str)
def test_what_is_looked_at_grows_with_the_length_of_hostile_text_alone(
    style: str, kind: str, settings: dict[str, Any]
) -> None:
    short, long = (looked_at(style, kind, length, piece=3, **settings) for length in (2_500, 10_000))
    assert long < 4.5 * short
    assert long < 30 * 10_000
