"""Calls that a server found: OpenAI-style messages, whole and streamed. Cases B01, B02, B03, B05 and B07 for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_call_texts import ARGUMENTS, B02, B03, ROWS, add_text, counting, joined, read

from miles_agents.chat import (
    Delta,
    DeltaKind,
    MessageStream,
    ThinkingPolicy,
    get_format,
    parse_reply,
    reply_from_message,
)
from miles_agents.errors import EngineError
from miles_agents.types import Reply

ALONE = "the reply holds thinking alone: neither an answer nor a call"


def entry(name: str, arguments: Any, *, call_id: str = "abc") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def deltas_of(message: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """The deltas in which a server sends this message, in pieces of `size` characters."""
    yield {"role": "assistant", "content": ""}
    for key in ("reasoning_content", "content"):
        text = message.get(key) or ""
        yield from ({key: text[at : at + size]} for at in range(0, len(text), size))
    for index, each in enumerate(message.get("tool_calls") or ()):
        name, arguments = each["function"]["name"], each["function"]["arguments"]
        yield {"tool_calls": [{**each, "index": index, "function": {"name": name, "arguments": ""}}]}
        for at in range(0, len(arguments), size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[at : at + size]}}]}
    yield {}


def streamed(message: Mapping[str, Any], size: int) -> tuple[Reply, list[Delta]]:
    stream = MessageStream()
    deltas = [delta for each in deltas_of(message, size) for delta in stream.feed(each)]
    return reply_from_message(stream.message()), deltas


def check_stream(message: Mapping[str, Any], size: int) -> None:
    """Streamed, a message is the reply that it is whole, and the deltas say what it says."""
    reply, deltas = streamed(message, size)
    assert reply == reply_from_message(message)
    found = joined(deltas)
    assert found.pop((DeltaKind.CONTENT, None), "") == reply.content
    assert found.pop((DeltaKind.REASONING, None), "") == reply.reasoning
    for place, call in enumerate(reply.calls):
        assert found.pop((DeltaKind.CALL, place)) == call.name
        assert found.pop((DeltaKind.ARGUMENTS, place), "") == call.raw
    assert found == {}


# --- messages ---------------------------------------------------------------------------------------------------------


def test_an_openai_message_becomes_a_reply() -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "I "}, {"type": "text", "text": "add."}],
        "reasoning_content": "2 and 3",
        "tool_calls": [
            entry("add", '{"a": 2, "b": 3}', call_id="x"),
            entry("add", {"a": 1}, call_id="x"),
            {"type": "function", "function": {"name": "add", "arguments": None}},
            {"id": "y", "function": {"arguments": "{}"}},
        ],
    }
    known = {"old"}
    reply = reply_from_message(message, truncated=True, known_ids=known)
    assert (reply.content, reply.reasoning, reply.truncated) == ("I add.", "2 and 3", True)
    assert [call.id for call in reply.calls] == ["x", "call_2", "call_3", "y"]
    assert known == {"old", "x", "call_2", "call_3", "y"}
    assert [call.arguments for call in reply.calls] == [{"a": 2, "b": 3}, {"a": 1}, {}, None]
    assert reply.errors == ("y: bad tool call: no tool name",)


def test_its_text_is_that_of_a_model_that_writes_its_calls_itself() -> None:
    calls = [entry("add", '{"a": 2}'), entry("add", "", call_id="b"), entry('a"b', "{}", call_id="c")]
    reply = reply_from_message({"content": "So:", "reasoning": "hm", "tool_calls": calls})
    again = parse_reply(reply.text)
    assert again.reasoning == "hm"
    assert [(call.name, call.arguments) for call in again.calls] == [("add", {"a": 2}), ("add", {}), ('a"b', {})]


@pytest.mark.parametrize("message", [{}, {"content": None, "tool_calls": None}, {"content": "", "tool_calls": []}])
def test_an_empty_openai_message_is_an_empty_reply(message: dict[str, Any]) -> None:
    assert reply_from_message(message) == Reply(text="")


@pytest.mark.parametrize(
    "message",
    [
        {"content": 7},
        {"content": ["parts"]},
        {"reasoning": {}},
        {"tool_calls": 7},
        {"tool_calls": [None]},
        {"tool_calls": [{"id": "c"}]},
        {"tool_calls": [{"function": "add", "id": "x" * 10_000}]},
    ],
)
def test_what_is_no_message_is_the_engines_fault_and_never_an_empty_reply(message: dict[str, Any]) -> None:
    for tried in (reply_from_message, MessageStream().feed):
        with pytest.raises(EngineError, match="cannot be read") as caught:
            tried(message)
        assert len(str(caught.value)) < 300


def test_ids_of_a_message_are_all_different() -> None:
    ids = ["call_1", "", "call_1", None, "call_0", "x" * 201]
    entries = [{"id": each, "function": {"name": "f", "arguments": "{}"}} for each in ids]
    known: set[str] = set()
    for _ in range(2):
        reply_from_message({"tool_calls": entries}, known_ids=known)
    assert len(known) == 12
    assert max(map(len, known)) <= 200


def test_the_engine_format_looks_for_no_calls_in_the_text() -> None:
    reply = read("engine", f"<think>so</think>{add_text('hermes')}")
    assert (reply.reasoning, reply.content, reply.calls) == ("so", add_text("hermes"), ())


# --- case B01 ---------------------------------------------------------------------------------------------------------


async def test_B01_malformed_calls_of_a_server_are_answered_under_their_ids_and_the_episode_goes_on() -> None:
    env, _ = await counting()
    for number, row in enumerate([*ROWS, '{"x": 1}']):
        message = {"content": None, "tool_calls": [entry("run", row, call_id=f"id_{number}")]}
        check_stream(message, 3)
        reply = reply_from_message(message)
        result = await env.step(reply)
        assert not result.terminated
        assert not result.truncated
        (answer,) = result.observation
        assert answer.tool_call_id == f"id_{number}"
        assert len(answer.text) <= 500
        bad = row in ROWS
        assert answer.text.startswith("Error: bad tool call" if bad else "ran 1")
        assert [line.partition(":")[0] for line in reply.errors] == [f"id_{number}"] * bad
    assert env.executed == [1]


async def test_B01_an_empty_argument_string_of_a_server_means_no_arguments() -> None:
    env, _ = await counting()
    await env.step(reply_from_message({"tool_calls": [entry("run", "")]}))
    assert env.executed == [0]


def test_B01_errors_of_a_servers_calls_are_bounded_lines() -> None:
    reply = reply_from_message({"tool_calls": [entry("run" * 1000, "{\n" + "9" * 100_000, call_id="i" * 500)]})
    assert [len(line) <= 500 and "\n" not in line for line in reply.errors] == [True]


# --- cases B02 and B03 ------------------------------------------------------------------------------------------------


def message_with(all_arguments: list[dict[str, Any]], *, name: str = "g") -> dict[str, Any]:
    entries = [json.loads(get_format("engine").render_call(name, each)) for each in all_arguments]
    return {"tool_calls": [{**each, "id": f"id_{at}"} for at, each in enumerate(entries)]}


def test_B02_tags_braces_and_quotes_in_strings_of_a_servers_calls_are_data() -> None:
    for sent in ([B02[0]], [B02[1]], [B02[2]], B02[:2]):
        assert [call.arguments for call in reply_from_message(message_with(sent)).calls] == sent


@given(st.lists(ARGUMENTS, min_size=1, max_size=3), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_B02_any_arguments_come_back_equal_from_a_server(all_arguments: list[dict[str, Any]], size: int) -> None:
    message = message_with(all_arguments)
    assert [call.arguments for call in reply_from_message(message).calls] == all_arguments
    check_stream(message, size)


@pytest.mark.parametrize("value", B03)
def test_B03_white_space_of_a_servers_values_is_kept_exactly(value: str) -> None:
    message = message_with([{"old": value}], name="edit")
    for _ in range(3):
        (call,) = reply_from_message(message).calls
        assert call.arguments == {"old": value}
        assert message_with([dict(call.arguments)], name=call.name) == message


# --- case B05 ---------------------------------------------------------------------------------------------------------


def test_B05_a_call_that_a_server_leaves_inside_thinking_is_no_call_and_no_answer() -> None:
    reply = reply_from_message({"content": "", "reasoning_content": f"check it {add_text('hermes')}"})
    assert (reply.calls, reply.content) == ((), "")
    assert reply.reasoning == f"check it {add_text('hermes')}"
    assert reply.errors == (ALONE,)


def test_B05_a_tag_mentioned_in_a_servers_thinking_is_no_call_and_the_answer_is_kept() -> None:
    message = {"content": " The answer is 5", "reasoning_content": "one could write <tool_call> here"}
    reply = reply_from_message(message)
    assert (reply.calls, reply.content, reply.errors) == ((), " The answer is 5", ())
    check_stream(message, 4)


@pytest.mark.parametrize("thinking", list(ThinkingPolicy))
def test_B05_in_the_engine_format_no_text_of_thinking_is_a_call_under_either_policy(thinking: ThinkingPolicy) -> None:
    call = add_text("hermes")
    closed = read("engine", f"<think>check it {call}</think>", thinking=thinking)
    assert (closed.calls, closed.content, closed.errors) == ((), "", (ALONE,))
    mentioned = read("engine", "<think>one could write <tool_call> here</think> The answer is 5", thinking=thinking)
    assert (mentioned.calls, mentioned.content, mentioned.errors) == ((), " The answer is 5", ())
    unclosed = read("engine", f"<think>so {call} and", thinking=thinking)
    assert (unclosed.calls, unclosed.content, unclosed.reasoning_unclosed) == ((), "", True)
    assert unclosed.errors == ("the thinking is not closed by </think>",)


# --- case B07 ---------------------------------------------------------------------------------------------------------

B07 = ['{"id":42}', '{"id": true}', '{"id": null}', '{"id": {"k":[1]}}', '{"id": 42', "", "{}"]


@pytest.mark.parametrize("arguments", B07)
def test_B07_joined_argument_deltas_of_a_server_are_its_arguments_at_any_split(arguments: str) -> None:
    message = {"content": "I call.", "reasoning_content": "hm", "tool_calls": [entry("f", arguments)] * 2}
    for size in range(1, len(arguments) + 2):
        check_stream(message, size)


def test_B07_the_last_brace_is_not_lost_in_a_delta_of_several_tokens() -> None:
    stream = MessageStream()
    stream.feed({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"id": '}}]})
    (delta,) = stream.feed({"tool_calls": [{"index": 0, "function": {"arguments": "42}"}}]})
    assert delta == Delta(DeltaKind.ARGUMENTS, "42}", 0)
    assert reply_from_message(stream.message()).calls[0].arguments == {"id": 42}


def test_B07_servers_that_number_calls_otherwise_or_not_at_all_are_understood() -> None:
    pieces = [
        [{"index": 3, "id": "a", "function": {"name": "f", "arguments": '{"id"'}}],
        [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}],
        [{"index": 3, "id": "a", "function": {"name": "f", "arguments": ": 1}"}}],
        [{"id": "c", "function": {"name": "h", "arguments": {"k": 2}}}],
        [{"id": "d", "function": {"name": "h", "arguments": "{"}}, {"function": {"arguments": "}"}}],
    ]
    stream = MessageStream()
    for piece in pieces:
        stream.feed({"tool_calls": piece})
    calls = reply_from_message(stream.message()).calls
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("a", "f", {"id": 1}),
        ("b", "g", {}),
        ("c", "h", {"k": 2}),
        ("d", "h", {}),
    ]
