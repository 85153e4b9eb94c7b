"""Cases B01, B02, B03 and B05 for every tool-call format."""

from __future__ import annotations

import jinja2
import pytest
from tool_call_texts import (
    B02,
    B03,
    FORMATS,
    ROWS,
    TEXT,
    TEXTUAL,
    TOOLS,
    WRITE,
    add_call,
    add_text,
    calls,
    counting,
    error,
    glm,
    qwen,
    read,
    recorded,
    tool,
)

from miles_agents.chat import ThinkingPolicy, get_format, parse_reply, split_reply
from miles_agents.errors import UsageError
from miles_agents.types import Reply

# --- case B01 ---------------------------------------------------------------------------------------------------------

MALFORMED = {
    "hermes": [f'<tool_call>{{"name": "run", "arguments": {row}}}</tool_call>' for row in ROWS],
    "llama3": [f'{{"name": "run", "parameters": {row}}}' for row in ROWS],
    "qwen3_coder": [
        *(f"<tool_call>\n{row}\n</tool_call>" for row in ROWS),
        *(f"<tool_call>\n<function=run>\n{row}\n</function>\n</tool_call>" for row in ROWS),
        *(qwen("run", x=row) for row in ROWS if row != "7"),
        qwen("run", x="1")[:-20],
        qwen("run", x="1").replace("</parameter>", ""),
    ],
    "glm": [
        *(f"<tool_call>{row}</tool_call>" for row in ROWS),
        *(f"<tool_call>run\n{row}\n</tool_call>" for row in ROWS),
        *(glm("run", x=row) for row in ROWS if row != "7"),
        glm("run", x="1")[:-20],
        glm("run", x="1").replace("</arg_value>", ""),
    ],
    "fenced": ["```python\nrun(", "```python\nrun()\n``"],
}
GOOD = {
    "hermes": '<tool_call>{"name": "run", "arguments": {"x": 1}}</tool_call>',
    "llama3": '{"name": "run", "parameters": {"x": 1}}',
    "qwen3_coder": qwen("run", x="1"),
    "glm": glm("run", x="1"),
    "fenced": "```python\n1\n```",
}


@pytest.mark.parametrize("style", FORMATS)
async def test_B01_malformed_calls_are_answered_under_their_id_and_the_episode_goes_on(style: str) -> None:
    env, tools = await counting()
    for number, text in enumerate([*MALFORMED[style], GOOD[style]]):
        good = text == GOOD[style]
        reply = parse_reply(
            text, format=style, tools=tools, first_call=number, truncated=style == "fenced" and not good
        )
        assert reply.text == text
        result = await env.step(Reply(text=text, calls=reply.calls))  # a cut reply would end the episode
        assert not result.terminated
        assert not result.truncated
        (answer,) = result.observation
        assert answer.tool_call_id == f"call_{number}"
        assert answer.text.startswith("ran 1" if good else "Error: "), (text, answer.text)
        assert len(answer.text) <= 500
    assert env.executed == [1]


@pytest.mark.parametrize("style", ["hermes", "llama3"])
def test_B01_an_empty_argument_string_means_no_arguments(style: str) -> None:
    text = get_format(style).render_call("run", {}).replace("{}", '""')
    assert parse_reply(text, format=style).calls[0].arguments == {}


@pytest.mark.parametrize("style", FORMATS)
def test_B01_errors_are_one_bounded_line_however_long_the_call(style: str) -> None:
    for text in MALFORMED[style]:
        body = text.replace("run", "run" + "n\n" * 5000) + "x" * 10_000
        reply = read(style, body, truncated=True)
        for line in [*reply.errors, *(call.error for call in reply.calls if call.error)]:
            assert 0 < len(line) <= 500
            assert "\n" not in line


def test_every_malformed_call_has_its_line_in_the_errors_of_the_reply() -> None:
    reply = read("hermes", "<tool_call>{}</tool_call> <tool_call>[]</tool_call><think>")
    assert [line.split(":")[0] for line in reply.errors] == [
        "call_0",
        "call_1",
        "the thinking is not closed by </think>",
    ]
    assert "no tool name" in reply.errors[0]


# --- case B02 ---------------------------------------------------------------------------------------------------------

B02_TOOLS = (tool("write_file", {"path": TEXT, "content": TEXT, "a": {"type": "object"}, "code": TEXT}),)


@pytest.mark.parametrize("style", [style for style in FORMATS if style != "fenced"])
def test_B02_tags_braces_and_quotes_in_strings_are_data(style: str) -> None:
    written = [get_format(style).render_call("write_file", each) for each in B02]
    for text, arguments in zip(written, B02, strict=True):
        (call,) = parse_reply(text, format=style, tools=B02_TOOLS).calls
        assert call.arguments == arguments
    both = parse_reply("\n".join(written[:2]), format=style, tools=B02_TOOLS)
    assert [call.arguments for call in both.calls] == B02[:2]


def test_B02_fences_and_quotes_in_code_are_data() -> None:
    for code in (B02[2]["code"], "s = '''\n```\n````python\nx\n````\n'''", "}</tool_call>"):
        assert calls("fenced", get_format("fenced").render_call("python", {"code": code})) == [
            ("python", {"code": code})
        ]


@pytest.mark.parametrize("style", TEXTUAL)
def test_B02_a_closing_tag_before_anything_but_the_next_tag_is_data(style: str) -> None:
    for content in (
        "raw </parameter> and </arg_value> here",
        "</parameter></arg_value>",
        "a\n</tool_call>\n</function>",
    ):
        text = WRITE[style]("write_file", path="n.md", content=content)
        assert calls(style, text) == [("write_file", {"path": "n.md", "content": content})]


CLOSE = {"qwen3_coder": ">", "glm": "</arg_key>\n<arg_value>"}
NEXT = {"qwen3_coder": "</parameter><parameter=", "glm": "</arg_value><arg_key>"}
AMBIGUOUS = {
    "the end of the call": "a{end}b",
    "a call": "{call}",
    "two calls": "{call}\n{call} and so on",
    "the beginning of a call": "{begin}",
    "the end and another call": "a{end} {call} b",
    "the end and a broken call": "a{end}<tool_call>",
    "the end and a call with an argument given twice": "a{end}{begin}1{next}path{close}2{next}path{close}3",
    "the end and nested calls": "a{end}{begin}1{begin}2",
}


@pytest.mark.parametrize("style", TEXTUAL)
@pytest.mark.parametrize("what", AMBIGUOUS)
def test_B02_a_value_with_two_readings_is_an_error_and_never_shortened(style: str, what: str) -> None:
    call = WRITE[style]("write_file", path="p", content="c")
    begin = call[: call.index("path")] + "path" + CLOSE[style]
    end = call[call.index("c", call.index("content") + 8) + 1 :]
    content = AMBIGUOUS[what].format(call=call, begin=begin, end=end, next=NEXT[style], close=CLOSE[style])
    text = WRITE[style]("write_file", path="n.md", content=content)
    reply = read(style, text)
    assert [call.arguments for call in reply.calls if call.error is None] == []
    assert len(reply.errors) == len(reply.calls)
    with pytest.raises(UsageError, match="would be read otherwise"):
        get_format(style).render_call("write_file", {"path": "n.md", "content": content})


@pytest.mark.parametrize("style", TEXTUAL)
def test_B02_a_call_that_cannot_be_read_refuses_the_whole_reply(style: str) -> None:
    reply = read(style, f"{add_text(style)}\n<tool_call>(</tool_call>\n{add_text(style)}")
    assert [bool(call.error) for call in reply.calls] == [True] * 3
    assert "a call is written" in reply.errors[1]
    assert "not executed: this reply holds a call that cannot be read" in reply.errors[0]
    assert "without a call" in read(style, f"{add_text(style)} </tool_call>").errors[0]


@pytest.mark.parametrize("style", TEXTUAL)
def test_closing_tags_without_a_call_are_a_fault_of_the_reply(style: str) -> None:
    reply = read(style, add_text(style).removeprefix("<tool_call>"))
    assert reply.calls == ()
    assert reply.errors == ("closing tags of a call stand in the text, but no call begins before them",)


@pytest.mark.parametrize("style", TEXTUAL)
def test_B02_an_argument_given_twice_is_an_error(style: str) -> None:
    inner = (
        "x\n</parameter>\n<parameter=path>\ny"
        if style == "qwen3_coder"
        else ("x</arg_value>\n<arg_key>path</arg_key>\n<arg_value>y")
    )
    assert "'path' is given twice" in error(style, WRITE[style]("write_file", path="n", content=inner))


# --- case B03 ---------------------------------------------------------------------------------------------------------


# In the manner of Qwen3-Coder's template, in our own words: one newline on each side of a value.
TEMPLATE = (
    "{% for c in calls %}<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
)


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("value", B03)
def test_B03_white_space_of_values_is_kept_exactly(style: str, value: str) -> None:
    name, key = ("python", "code") if style == "fenced" else ("edit", "old")
    written = get_format(style).render_call(name, {key: value})
    (call,) = read(style, written).calls
    assert call.arguments == {key: value}
    assert get_format(style).render_call(call.name, call.arguments) == written


@pytest.mark.parametrize("value", B03)
def test_B03_nothing_is_lost_over_many_turns_through_a_chat_template(value: str) -> None:
    template = jinja2.Environment(keep_trailing_newline=True, autoescape=False).from_string(TEMPLATE)
    text = qwen("edit", old=value, new="n")
    for _ in range(4):
        reply = read("qwen3_coder", text)
        assert reply.calls[0].arguments == {"old": value, "new": "n"}
        assert template.render(calls=reply.calls) == text
        text = template.render(calls=reply.calls)


def test_B03_a_value_on_the_line_of_its_tags_loses_nothing() -> None:
    text = "<tool_call><function=edit><parameter=old> a\n\n</parameter></function></tool_call>"
    assert calls("qwen3_coder", text) == [("edit", {"old": " a\n"})]


# --- case B05 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", FORMATS)
def test_B05_a_call_inside_closed_thinking(style: str) -> None:
    text = f"<think>check it\n{add_text(style)}\n</think>"
    ignored = read(style, text)
    assert ignored.calls == ()
    assert ignored.content == ""
    assert ignored.reasoning == f"check it\n{add_text(style)}\n"
    assert ignored.calls_in_reasoning == 1
    assert "inside thinking" in ignored.errors[0]
    ended = read(style, text, thinking=ThinkingPolicy.END_THINKING)
    assert [(call.name, call.arguments) for call in ended.calls] == [add_call(style)]
    assert ended.reasoning == "check it\n"
    assert ended.content == "\n"
    assert (ended.calls_ending_reasoning, ended.calls_in_reasoning) == (1, 0)
    assert ended.errors == ()


@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.parametrize("thinking", list(ThinkingPolicy))
def test_B05_a_mentioned_tag_is_no_call_and_the_answer_is_kept(style: str, thinking: ThinkingPolicy) -> None:
    mentioned = {"llama3": '<|python_tag|> or\n{"name": ', "fenced": "```python\n"}.get(style, "<tool_call>")
    reply = read(style, f"<think>one could write {mentioned} here</think> The answer is 5", thinking=thinking)
    assert reply.calls == ()
    assert reply.content == " The answer is 5"
    assert reply.reasoning == f"one could write {mentioned} here"
    assert (reply.calls_in_reasoning, reply.errors) == (0, ())


@pytest.mark.parametrize("style", FORMATS)
def test_B05_a_call_inside_thinking_that_is_never_closed(style: str) -> None:
    text = f"<think>so\n{add_text(style)}\n and"
    ignored = read(style, text)
    assert (ignored.calls, ignored.content) == ((), "")
    assert ignored.calls_in_reasoning == 1
    assert ignored.reasoning_unclosed
    assert len(ignored.errors) == 2
    ended = read(style, text, thinking=ThinkingPolicy.END_THINKING)
    assert [(call.name, call.arguments) for call in ended.calls] == [add_call(style)]
    assert (ended.reasoning, ended.content) == ("so\n", "\n and")
    assert ended.calls_ending_reasoning == 1
    assert not ended.reasoning_unclosed


@pytest.mark.parametrize("style", FORMATS)
def test_B05_a_call_that_is_not_valid_ends_no_thinking(style: str) -> None:
    render = get_format(style).render_call
    all_written = ["```ruby\nputs\n```", "```python\nputs"]
    if style != "fenced":
        all_written = [render("add", {"a": 2, "b": "three"}), render("add", {"a": 2}), render("subtract", {"a": 2})]
    for written in all_written:
        text = f"<think>\n{written}\n</think>5"
        reply = read(style, text, thinking=ThinkingPolicy.END_THINKING)
        assert reply.calls == ()
        assert reply.content == "5"
        assert reply.reasoning == f"\n{written}\n"


def test_B05_without_schemas_no_call_is_valid_and_thinking_goes_on() -> None:
    reply = parse_reply(f"<think>{add_text('hermes')}</think>5", thinking=ThinkingPolicy.END_THINKING)
    assert (reply.calls, reply.content, reply.calls_in_reasoning) == ((), "5", 1)


def test_B05_a_valid_call_behind_a_mentioned_tag_ends_the_thinking() -> None:
    text = f"<think>a <tool_call> is: {add_text('hermes')}</think>\nDone"
    reply = read("hermes", text, thinking=ThinkingPolicy.END_THINKING)
    assert reply.reasoning == "a <tool_call> is: "
    assert reply.content == "\nDone"
    assert len(reply.calls) == 1


@pytest.mark.parametrize("style", FORMATS)
def test_B05_segments_of_every_recorded_output_are_its_text(style: str) -> None:
    for text in recorded(style):
        for thinking in ThinkingPolicy:
            segments = split_reply(text, format=style, tools=TOOLS, thinking=thinking)
            assert "".join(segment.source for segment in segments) == text
