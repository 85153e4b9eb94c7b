"""Reading replies: Hermes calls, malformed ones, thinking. Cases B01, B02, B05."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from chat_models import family
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_agents.chat import MalformedCallError, SegmentKind, parse_arguments, parse_reply, split_reply
from miles_agents.contracts import ToolEnv, tool
from miles_agents.errors import ToolError
from miles_agents.types import Episode, Message, Task

CUT = '{"cmd": "ls"'
NOT_EXECUTED = [CUT, '{"x":1,}', "{'x':1}", "[1,2]", "7", "null", '{"n":NaN}']


def call_text(arguments: str, *, name: str = "run") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# --- case B01 ---------------------------------------------------------------------------------------------------------


class Counting(ToolEnv):
    """Counts what is executed."""

    max_turns = 20

    def __init__(self) -> None:
        self.executed: list[Any] = []

    @tool
    def run(self, x: int = 0) -> str:
        """Run it."""
        self.executed.append(x)
        return f"ran {x}"

    def tasks(self, split: str) -> list[Task]:
        return [Task(id="t", prompt=(Message.user("go"),))]

    def reward(self, episode: Episode) -> float:
        return 1.0


@pytest.mark.parametrize("text", NOT_EXECUTED)
def test_B01_malformed_argument_strings_raise_a_bounded_tool_error(text: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_arguments(text)
    assert 0 < len(str(caught.value)) <= 300


def test_B01_empty_string_means_no_arguments_and_a_good_string_is_read() -> None:
    assert parse_arguments("") == parse_arguments(" \n") == {}
    assert parse_arguments('{"x":1}') == {"x": 1}


@pytest.mark.parametrize("as_string", [False, True], ids=["written out", "as a JSON string"])
async def test_B01_malformed_calls_are_answered_and_the_episode_goes_on(as_string: bool) -> None:
    # case B01: each malformed call gets one tool message of its id, only the good call runs, ids stay as sampled
    chat = family("starter")
    env = Counting()
    await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    for answered, text in enumerate([*NOT_EXECUTED, '{"x":1}']):
        written = call_text(json.dumps(text) if as_string else text)
        sampled = chat.encode_reply(written)
        before = sampled.copy()
        reply = chat.parse(sampled, first_call=answered)
        result = await env.step(reply)
        assert (sampled == before).all()
        assert reply.text == written
        assert not result.terminated
        assert not result.truncated
        (answer,) = result.observation
        assert answer.tool_call_id == reply.calls[0].id == f"call_{answered}"
        assert len(answer.text) < 400
        good = text == '{"x":1}'
        assert answer.text.startswith("ran 1" if good else "Error: bad tool call: "), answer.text
    assert env.executed == [1]
    final = await env.step(chat.parse(chat.encode_reply("done")))
    assert final.terminated
    assert final.reward == 1.0


async def test_B01_empty_argument_string_runs_with_no_arguments() -> None:
    env = Counting()
    await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    await env.step(parse_reply(call_text('""')))
    assert env.executed == [0]


def test_B01_error_messages_stay_short_however_long_the_call() -> None:
    for body in ("{" + "9" * 100_000, '{"name": "' + "n" * 100_000 + '", "x": 1}', '{"' + "k" * 100_000 + '": 1}'):
        (call,) = parse_reply(f"<tool_call>{body}</tool_call>").calls
        assert call.error is not None
        assert len(call.error) < 350


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', "twice"),
        ('{"name": "f", "arguments": {"x": 1e999}}', "too large"),
        ('{"name": "f", "arguments": {"x": -Infinity}}', "Infinity"),
        ('{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}", "digits"),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', "unpaired"),
        ('{"name": "f", "arguments": {"x": ' + "[" * 100 + "]" * 100 + "}}", "nested"),
        ('{"name": "f", "arguments": {"x": ' + '{"a":' * 100_000 + "}}", "nested"),
        ('{"name": "f", "arguments": {}} }', "after"),
        ('{"name": "f", "args": {}}', "'args'"),
        ('{"arguments": {}}', "name"),
        ('{"name": 7, "arguments": {}}', "name"),
        ("[]", "object"),
        ("", "JSON"),
        ('{"name": "f", "arguments": {"x": "raw\nnewline"}}', "control character"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(body: str, says: str) -> None:
    (call,) = parse_reply(f"<tool_call>{body}</tool_call>").calls
    assert call.arguments is None
    assert call.error is not None
    assert says in call.error


def test_unclosed_call_is_an_error_call_and_keeps_its_text() -> None:
    reply = parse_reply('Let me see. <tool_call>{"name": "f", "arguments": {}}')
    assert reply.content == "Let me see. "
    assert reply.calls[0].raw == '{"name": "f", "arguments": {}}'
    assert "not closed" in (reply.calls[0].error or "")


def test_a_broken_call_does_not_swallow_the_next_one() -> None:
    broken = '<tool_call>{"name": "f", "arguments": {"cmd": "ls}}\n</tool_call>'
    reply = parse_reply(broken + "\n" + call_text('{"x": 1}'))
    assert [call.arguments for call in reply.calls] == [None, {"x": 1}]
    assert [call.id for call in reply.calls] == ["call_0", "call_1"]


def test_malformed_call_error_is_for_the_model() -> None:
    assert issubclass(MalformedCallError, ToolError)


# --- case B02 ---------------------------------------------------------------------------------------------------------

B02_ARGUMENTS = [
    {"path": "n.md", "content": "closing tags look like } </tool_call> in docs"},
    {"a": {"b": {"c": [1, {"d": "}"}]}}},
    {"code": 'x = "q\\"\\\\"\nprint("""tri"ple""")\n# \'</tool_call>\''},
]


@pytest.mark.parametrize("arguments", B02_ARGUMENTS)
def test_B02_tags_braces_and_quotes_in_strings_are_data(arguments: dict[str, Any]) -> None:
    (call,) = parse_reply(call_text(json.dumps(arguments), name="write_file")).calls
    assert call.error is None
    assert call.arguments == arguments


def test_B02_two_such_calls_back_to_back() -> None:
    text = "".join(call_text(json.dumps(arguments)) for arguments in B02_ARGUMENTS[:2])
    assert [call.arguments for call in parse_reply(text).calls] == B02_ARGUMENTS[:2]


nasty = st.sampled_from(
    ["</tool_call>", "<tool_call>", "<think>", "</think>", "{", "}", '"', "\\", "'", "\n", "```", '"""', "é", "\x00"]
)
strings = st.lists(st.one_of(nasty, st.text(max_size=4)), max_size=6).map("".join)
values = st.recursive(
    st.one_of(strings, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
    max_leaves=8,
)
objects = st.dictionaries(strings, values, max_size=4)


@given(st.lists(objects, min_size=1, max_size=3), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_B02_any_arguments_come_back_equal(all_arguments: list[dict[str, Any]], ascii_only: bool, twice: bool) -> None:
    written = [json.dumps(arguments, ensure_ascii=ascii_only) for arguments in all_arguments]
    text = "So:\n" + "\n".join(call_text(json.dumps(each) if twice else each) for each in written)
    reply = parse_reply(text)
    assert [call.arguments for call in reply.calls] == all_arguments
    assert reply.content == "So:\n" + "\n" * (len(all_arguments) - 1)


@given(st.lists(objects, min_size=1, max_size=2))
@settings(max_examples=40, deadline=None)
def test_B02_any_arguments_survive_template_tokens_and_parser(all_arguments: list[dict[str, Any]]) -> None:
    """Rendered by the chat template, sampled as those ids, decoded and parsed."""
    chat = family("qwen2.5")
    written = "\n".join(call_text(json.dumps(each, ensure_ascii=False)) for each in all_arguments)
    calls = chat.parse(chat.encode_reply(written)).calls
    rendered = chat.supervised([Message.user("q"), Message.assistant("", tool_calls=calls)])
    sampled = rendered.ids[rendered.mask == 1]
    assert [call.arguments for call in chat.parse(sampled).calls] == all_arguments


# --- case B05 ---------------------------------------------------------------------------------------------------------

ADD = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


def test_B05_call_inside_closed_thinking_is_counted_never_executed() -> None:
    reply = parse_reply(f"<think>check it {ADD}</think>")
    assert reply.calls == ()
    assert reply.content == ""
    assert reply.reasoning == f"check it {ADD}"
    assert reply.calls_in_reasoning == 1
    assert not reply.reasoning_unclosed


def test_B05_a_mentioned_tag_is_no_call_and_the_answer_is_kept() -> None:
    reply = parse_reply("<think>one could write <tool_call> here</think> The answer is 5")
    assert reply.calls == ()
    assert reply.content == " The answer is 5"
    assert reply.calls_in_reasoning == 0


def test_B05_call_inside_unclosed_thinking_is_counted_never_executed() -> None:
    reply = parse_reply(f"<think>so <tool_call> is it: {ADD} and")
    assert reply.calls == ()
    assert reply.content == ""
    assert reply.calls_in_reasoning == 1
    assert reply.reasoning_unclosed


def test_B05_thinking_opened_by_the_prompt_is_thinking() -> None:
    reply = parse_reply(f"check {ADD}</think>\n{ADD}", opens_thinking=True)
    assert reply.reasoning == f"check {ADD}"
    assert [call.name for call in reply.calls] == ["add"]
    assert reply.calls_in_reasoning == 1
    assert parse_reply(f"check {ADD}", opens_thinking=True).reasoning_unclosed


def test_thinking_tags_in_a_call_s_strings_open_no_thinking() -> None:
    reply = parse_reply(call_text('{"s": "<think>"}') + " after")
    assert [call.arguments for call in reply.calls] == [{"s": "<think>"}]
    assert reply.content == " after"
    assert reply.reasoning == ""


fragments = st.lists(st.one_of(nasty, st.just(ADD), st.text(max_size=5)), max_size=12).map("".join)


@given(fragments, st.booleans())
@settings(max_examples=300, deadline=None)
def test_B05_no_text_is_lost(text: str, opens_thinking: bool) -> None:
    segments = split_reply(text, opens_thinking=opens_thinking)
    assert "".join(segment.source for segment in segments) == text
    reply = parse_reply(text, opens_thinking=opens_thinking)
    by_kind = {kind: "".join(segment.body for segment in segments if segment.kind is kind) for kind in SegmentKind}
    assert reply.text == text
    assert reply.reasoning == by_kind[SegmentKind.REASONING]
    assert reply.content == by_kind[SegmentKind.CONTENT]
    assert "".join(call.raw for call in reply.calls) == by_kind[SegmentKind.CALL]


@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000,
        "<tool_call>" * 90_000,
        "<tool_call>{" * 83_000,
        "<tool_call>{</tool_call>" * 41_000,
        '<tool_call>{"a":' + '{"a":' * 200_000 + "</tool_call>",
        '<tool_call>"</tool_call>' + '<tool_call>\\"</tool_call>' * 38_000,
        '<tool_call>"a</tool_call>\n' * 38_000,
        "<think>" + "<tool_call>{" * 83_000 + "</tool_call>",
        "<think>" + '<tool_call>{"a"</tool_call>' * 37_000,
        "<think>" * 140_000,
        "<tool_call>" + '"' * 1_000_000,
        "<tool_call>" + " " * 1_000_000 + "</tool_call>",
        "<tool_call>" + "9" * 1_000_000 + "</tool_call>",
    ],
    ids=range(13),
)
def test_a_megabyte_of_hostile_text_is_read_in_linear_time(text: str) -> None:
    """Up to 1 s on one idle core, for 40,000 broken calls; quadratic time would be minutes."""
    started = time.process_time()
    assert parse_reply(text).text == text
    assert time.process_time() - started < 6.0
