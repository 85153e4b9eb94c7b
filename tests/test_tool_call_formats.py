"""Tool-call formats one by one. Cases B01, B02, B03, B05 for every format they apply to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tool_call_texts import FORMATS, TEXT, TEXTUAL, TOOLS, add_call, add_text, recorded, tool

from miles_agents.chat import SegmentKind, ThinkingPolicy, get_format, parse_reply, reply_from_message, split_reply
from miles_agents.chat.formats import CodeTool, FencedFormat
from miles_agents.chat.formats.llama3 import Llama3Format
from miles_agents.contracts import ToolEnv
from miles_agents.contracts import tool as as_tool
from miles_agents.errors import UnknownNameError, UsageError
from miles_agents.types import Episode, Message, Reply, Task

ROOT = Path(__file__).parents[1]


def read(style: str, text: str, **settings: Any) -> Reply:
    return parse_reply(text, format=style, tools=TOOLS, **settings)


def calls(style: str, text: str) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in read(style, text).calls]


def error(style: str, text: str, **settings: Any) -> str:
    (call,) = read(style, text, **settings).calls
    assert call.arguments is None
    return str(call.error)


def qwen(name: str, **arguments: str) -> str:
    """A call as the template of Qwen3-Coder writes it; nothing is checked."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def glm(name: str, **arguments: str) -> str:
    """A call as the template of GLM-4.5 writes it; nothing is checked."""
    values = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{values}</tool_call>"


WRITE = {"qwen3_coder": qwen, "glm": glm}

# --- the table --------------------------------------------------------------------------------------------------------


def test_an_unknown_format_is_a_usage_error_that_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown tool-call format 'hermess'\. Did you mean 'hermes'\? Allowed:"
    ):
        parse_reply("hi", format="hermess")
    with pytest.raises(UsageError, match="no tool-call format"):
        parse_reply("hi", format="miles_agents.chat.arguments:JsonValue._make")


@pytest.mark.parametrize("style", [*FORMATS, "engine"])
def test_every_format_is_found_by_its_name_and_reads_plain_text_as_content(style: str) -> None:
    assert get_format(style).name == style
    assert f"| `{style}`" in (ROOT / "docs/tool-formats.md").read_text(encoding="utf-8")
    assert read(style, "The answer is 5.") == Reply.of("The answer is 5.")


@pytest.mark.parametrize("style", FORMATS)
def test_a_written_call_is_read_as_that_call(style: str) -> None:
    reply = read(style, f"I add.\n\n{add_text(style)}")
    assert calls(style, add_text(style)) == [add_call(style)]
    assert reply.content == "I add.\n\n"
    assert reply.errors == ()


@pytest.mark.parametrize("style", FORMATS)
def test_several_calls_keep_their_order_and_get_ids_of_their_own(style: str) -> None:
    reply = read(style, "\n".join([add_text(style)] * 3), first_call=4)
    assert [call.id for call in reply.calls] == ["call_4", "call_5", "call_6"]
    assert [(call.name, call.arguments) for call in reply.calls] == [add_call(style)] * 3
    assert reply.content.strip() == ""


@pytest.mark.parametrize("style", FORMATS)
def test_segments_of_every_recorded_output_are_its_text(style: str) -> None:
    for text in recorded(style):
        for thinking in ThinkingPolicy:
            segments = split_reply(text, format=style, tools=TOOLS, thinking=thinking)
            assert "".join(segment.source for segment in segments) == text


# --- case B01 ---------------------------------------------------------------------------------------------------------

ROWS = ['{"cmd": "ls"', '{"x":1,}', "{'x':1}", "[1,2]", "7", "null", '{"n":NaN}']
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


class Counting(ToolEnv):
    """Counts what is executed."""

    max_turns = 50

    def __init__(self) -> None:
        self.executed: list[Any] = []

    @as_tool
    def run(self, x: int = 0) -> str:
        """Run it."""
        self.executed.append(x)
        return f"ran {x}"

    @as_tool
    def python(self, code: str) -> str:
        """Run code."""
        self.executed.append(int(code))
        return f"ran {code}"

    def tasks(self, split: str) -> list[Task]:
        return [Task(id="t", prompt=(Message.user("go"),))]

    def reward(self, episode: Episode) -> float:
        return 1.0


async def counting() -> tuple[Counting, Any]:
    env = Counting()
    _, info = await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    return env, info["tools"]


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


@pytest.mark.parametrize("row", ROWS)
async def test_B01_argument_strings_of_an_engine_are_read_as_strictly(row: str) -> None:
    env, _ = await counting()
    for arguments, said in [(row, "Error: bad tool call"), ("", "ran 0"), ('{"x": 1}', "ran 1")]:
        entry = {"id": "abc", "type": "function", "function": {"name": "run", "arguments": arguments}}
        reply = reply_from_message({"content": None, "tool_calls": [entry]})
        (answer,) = (await env.step(reply)).observation
        assert answer.tool_call_id == "abc"
        assert answer.text.startswith(said)
    assert env.executed == [0, 1]


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

B02: list[dict[str, Any]] = [
    {"path": "n.md", "content": "closing tags look like } </tool_call> in docs"},
    {"a": {"b": {"c": [1, {"d": "}"}]}}},
    {"code": 'x = "q\\"\\\\"\nprint("""tri"ple""")\n# \'</tool_call>\''},
]
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

B03 = ["    if ok:\n        run()\n", " ", "", "\n", "\n\n", " \n", "\r\n", "\t", "x", "\n x \n"]

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


# --- Llama 3 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": 5}',
        '{"name": "Ann", "parameters": {"age": 3}}',
        '{"name": "Ann", "age": 3}',
        'Call {"name": "now", "parameters": {}} for the time.',
        '[\n{"n": 1}\n]',
        "{x: 1}\n{",
        '{"name": "Ann", ',
        '{"a": {\n"name": "now", "parameters": {}}}',
    ],
)
def test_llama3_json_that_is_no_call_of_a_known_tool_is_content(text: str) -> None:
    assert read("llama3", text) == Reply.of(text)


def test_llama3_calls_may_be_separated_by_semicolons_and_newlines_and_follow_prose() -> None:
    one = '{"name": "now", "parameters": {}}'
    for separator in ("; ", ";", "\n", ";\n", " ; "):
        reply = read("llama3", f"I look.\n{one}{separator}{one}")
        assert [call.name for call in reply.calls] == ["now", "now"]
        assert reply.content.strip() == "I look."


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"name": "now", "age": 3}', "unknown key 'age'"),
        ('{"name": "now", "parameters": {}, "arguments": {}}', "both 'parameters' and 'arguments'"),
        ('<|python_tag|>{"name": "who", "parameters": [1]}', "must be a JSON object"),
        ("<|python_tag|>print(1)", 'tool.call(key="value")'),
        ('<|python_tag|>brave_search.call(query="a "b" c")', "a value holds no quote"),
        ('<|python_tag|>brave_search.call(query="a", query="b")', "given twice"),
        ('<|python_tag|>brave_search.call(query="a",)', "key="),
        ('<|python_tag|>brave_search.call(query="a"', "tool.call"),
        ("<|python_tag|>", "tool.call"),
    ],
)
def test_llama3_what_is_wrong_with_a_call_is_said(text: str, says: str) -> None:
    assert says in error("llama3", text)


def test_llama3_built_in_tools_take_their_values_as_they_are() -> None:
    arguments = {"query": "C:\\new {x} (y), z=1; 'é'\n", "lang": ""}
    written = Llama3Format().render_built_in_call("brave_search", arguments)
    assert calls("llama3", written) == [("brave_search", arguments)]
    assert calls("llama3", "<|python_tag|>now.call()") == [("now", {})]
    for bad in ({"query": 'a"b'}, {"a b": "c"}):
        with pytest.raises(UsageError, match="cannot write this call"):
            Llama3Format().render_built_in_call("brave_search", bad)


def test_llama3_a_broken_object_ends_with_the_line_on_which_a_string_breaks() -> None:
    reply = read("llama3", '{"name": "now", "parameters": {"a": "b\n}}\n{"name": "now", "parameters": {}}')
    assert [call.error is None for call in reply.calls] == [False, True]


# --- fenced code ------------------------------------------------------------------------------------------------------


def test_fenced_an_open_block_runs_if_the_reply_ended_by_itself_and_is_an_error_if_it_was_cut() -> None:
    assert calls("fenced", "```python\nprint(1)") == [("python", {"code": "print(1)"})]
    assert "not closed" in error("fenced", "```python\nprint(1)", truncated=True)


def test_fenced_only_languages_whose_tool_is_there_are_calls() -> None:
    text = "```bash\nls\n```\n```ruby\nputs\n```\n```PY\n1\n```\n"
    assert [call.name for call in parse_reply(text, format="fenced").calls] == ["shell", "python"]
    python_alone = [each for each in TOOLS if each["function"]["name"] == "python"]
    assert [call.name for call in parse_reply(text, format="fenced", tools=python_alone).calls] == ["python"]


def test_fenced_languages_can_be_set() -> None:
    style = FencedFormat({"sql": CodeTool("query", "statement")})
    text = style.render_call("query", {"statement": "select 1"})
    assert text == "```sql\nselect 1\n```"
    assert parse_reply(text, format=style).calls[0].arguments == {"statement": "select 1"}
    assert parse_reply("```python\n1\n```", format=style).calls == ()
    for name, arguments in [("query", {"q": "x"}), ("python", {"code": "1"}), ("query", {"statement": 1})]:
        with pytest.raises(UsageError, match="a block holds one text"):
            style.render_call(name, arguments)
    with pytest.raises(UsageError, match="99 backticks"):
        style.render_call("query", {"statement": "`" * 120})


def test_fenced_blocks_inside_other_blocks_are_content() -> None:
    text = "````md\n```python\nshown\n```\n````\n"
    assert read("fenced", text) == Reply.of(text)


# --- types of values between tags -------------------------------------------------------------------------------------

TYPED = {
    "int": ({"type": "integer"}, "42", 42),
    "int spelled": ({"type": "integer"}, "forty", "forty"),
    "int as number": ({"type": "number"}, "42", 42),
    "number": ({"type": "number"}, "-1.5e3", -1500.0),
    "too large": ({"type": "number"}, "1e999", "1e999"),
    "fraction for int": ({"type": "integer"}, "1.5", "1.5"),
    "text": ({"type": "string"}, "42", "42"),
    "quoted text": ({"type": "string"}, '"42"', '"42"'),
    "true": ({"type": "boolean"}, "true", True),
    "True": ({"type": "boolean"}, "True", True),
    "True as text": ({"type": "string"}, "True", "True"),
    "bool as int": ({"type": "integer"}, "true", "true"),
    "null": ({"type": ["integer", "null"]}, "null", None),
    "None": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
    "nullable": ({"type": "string", "nullable": True}, "null", None),
    "nullable text": ({"type": ["string", "null"]}, "nil", "nil"),
    "null for int": ({"type": "integer"}, "null", "null"),
    "list": ({"type": "array", "items": {"type": "integer"}}, " [1, 2]\n", [1, 2]),
    "broken list": ({"type": "array"}, "[1, 2", "[1, 2"),
    "object": ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
    "python object": ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
    "twice": ({"type": "object"}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    "union": ({"type": ["string", "integer"]}, "42", 42),
    "union text": ({"type": ["string", "integer"]}, "42a", "42a"),
    "union quoted": ({"type": ["string", "integer"]}, '"42"', '"42"'),
    "enum of texts": ({"enum": ["1", "2"]}, "1", "1"),
    "enum of numbers": ({"type": "number", "enum": [1, 2.5]}, "1", 1),
    "const": ({"const": 3}, "3", 3),
    "reference": ({"$ref": "#/$defs/Level"}, "3", 3),
    "reference to nothing": ({"$ref": "#/$defs/None"}, "3", 3),
    "allOf": ({"allOf": [{"$ref": "#/$defs/Level"}]}, "3", 3),
    "any": ({}, "[1]", [1]),
    "any text": ({}, "hello", "hello"),
    "true schema": (True, "3", "3"),
}


@pytest.mark.parametrize("style", TEXTUAL)
@pytest.mark.parametrize("kind", TYPED)
def test_the_schema_decides_what_a_written_value_is(style: str, kind: str) -> None:
    schema, written, value = TYPED[kind]
    tools = [tool("g", {"v": schema}, **{"$defs": {"Level": {"type": "integer"}}})]
    (call,) = parse_reply(WRITE[style]("g", v=written), format=style, tools=tools).calls
    assert call.arguments == {"v": value}
    assert type(call.arguments["v"]) is type(value)


@pytest.mark.parametrize("style", TEXTUAL)
def test_without_a_schema_a_value_is_text(style: str) -> None:
    text = WRITE[style]("g", v="42")
    assert parse_reply(text, format=style).calls[0].arguments == {"v": "42"}
    assert parse_reply(text, format=style, tools=[tool("g", {})]).calls[0].arguments == {"v": "42"}
    schema = tool("g", {}, additionalProperties={"type": "integer"})
    assert parse_reply(text, format=style, tools=[schema]).calls[0].arguments == {"v": 42}
    assert parse_reply(text, format=style, tools=[schema["function"]]).calls[0].arguments == {"v": 42}


async def test_a_value_that_does_not_fit_its_type_is_reported_by_validation() -> None:
    env, tools = await counting()
    reply = parse_reply(qwen("run", x="three"), format="qwen3_coder", tools=tools)
    (answer,) = (await env.step(reply)).observation
    assert "'x' must be an integer, got \"three\"" in answer.text


VALID = [
    ({"type": "object", "required": ["a"]}, {"a": 1}, True),
    ({"type": "object", "required": ["a"]}, {}, False),
    ({"properties": {"a": {"enum": [1, "x"]}}}, {"a": 1}, True),
    ({"properties": {"a": {"enum": [1, "x"]}}}, {"a": True}, False),
    ({"properties": {"a": {"const": 1}}}, {"a": 2}, False),
    ({"properties": {}, "additionalProperties": False}, {"a": 2}, False),
    ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, False),
    ({"properties": {"a": {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}}}, {"a": ["x", 1]}, True),
    ({"properties": {"a": {"anyOf": [{"type": "null"}, {"type": "array"}]}}}, {"a": {}}, False),
    ({"properties": {"a": {"nullable": True, "type": "integer"}}}, {"a": None}, True),
    ({"properties": {"a": {"allOf": [{"required": ["b"]}]}}}, {"a": {}}, False),
    ({"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}, "required": ["t"]}}}, {}, False),
    ({"$ref": "#"}, {"a": 1}, True),
]


@pytest.mark.parametrize(("schema", "arguments", "valid"), VALID)
def test_a_call_ends_thinking_exactly_if_its_arguments_are_valid(
    schema: dict[str, Any], arguments: dict[str, Any], valid: bool
) -> None:
    tools = [{"name": "g", "parameters": schema}]
    text = f"<think>{get_format('hermes').render_call('g', arguments)}</think>"
    assert len(parse_reply(text, tools=tools, thinking=ThinkingPolicy.END_THINKING).calls) == int(valid)


# --- the engine's own parser ------------------------------------------------------------------------------------------


def test_an_openai_message_becomes_a_reply() -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": "I "}, {"type": "text", "text": "add."}],
        "reasoning_content": "2 and 3",
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}},
            {"id": "x", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
            {"type": "function", "function": {"name": "add", "arguments": None}},
            {"id": "y", "function": {"arguments": "{}"}},
        ],
    }
    reply = reply_from_message(message, truncated=True, first_call=7)
    assert (reply.content, reply.reasoning, reply.truncated) == ("I add.", "2 and 3", True)
    assert [call.id for call in reply.calls] == ["x", "call_8", "call_9", "y"]
    assert [call.arguments for call in reply.calls] == [{"a": 2, "b": 3}, {"a": 1}, {}, None]
    assert reply.errors == ("y: bad tool call: no tool name",)


@pytest.mark.parametrize(
    "message",
    [{}, {"content": None, "tool_calls": None}, {"content": 7, "tool_calls": {}}, {"tool_calls": [None, 7]}],
)
def test_an_empty_openai_message_is_an_empty_reply(message: dict[str, Any]) -> None:
    assert reply_from_message(message) == Reply(text="")


def test_ids_of_a_message_are_all_different() -> None:
    entries = [{"id": each, "function": {"name": "f", "arguments": "{}"}} for each in ("call_1", "", "call_1", None)]
    ids = [call.id for call in reply_from_message({"tool_calls": entries}).calls]
    assert len(set(ids)) == 4


def test_the_engine_format_looks_for_no_calls_in_the_text() -> None:
    reply = read("engine", f"<think>so</think>{add_text('hermes')}")
    assert (reply.reasoning, reply.content, reply.calls) == ("so", add_text("hermes"), ())
    entry = json.loads(get_format("engine").render_call("add", {"a": 2}))
    assert reply_from_message({"tool_calls": [entry]}).calls[0].arguments == {"a": 2}


# --- one's own --------------------------------------------------------------------------------------------------------


def test_the_example_format_reads_writes_and_streams() -> None:
    style = get_format(str(ROOT / "examples/my_format.py") + ":MyFormat")
    text = "Now: " + style.render_call("add", {"a": 2, "b": 3})
    assert text == 'Now: [[add {"a": 2, "b": 3}]]'
    assert [(call.name, call.arguments) for call in parse_reply(text, format=style).calls] == [
        ("add", {"a": 2, "b": 3})
    ]
    for bad in ("[[add {]]", "[[add", '[[{"a": 2}]]'):
        (call,) = parse_reply(bad, format=style).calls
        assert call.error is not None
        assert call.error.startswith("bad tool call: ")
    thought = f"<think>[[ {text} ]]</think>"
    reply = parse_reply(thought, format=style, tools=TOOLS, thinking=ThinkingPolicy.END_THINKING)
    assert [call.name for call in reply.calls] == ["add"]
    assert [each.kind for each in split_reply(text, format=style)] == [SegmentKind.CONTENT, SegmentKind.CALL]


def test_the_example_format_says_what_it_cannot_write() -> None:
    with pytest.raises(UsageError, match="cannot write this call"):
        get_format("./examples/my_format.py:MyFormat").render_call("add", {"a": "]]"})


def test_the_document_shows_the_example_format_as_it_is() -> None:
    source = (ROOT / "examples/my_format.py").read_text(encoding="utf-8")
    assert source[source.index("class MyFormat") :] in (ROOT / "docs/tool-formats.md").read_text(encoding="utf-8")
