"""Tool-call formats one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tool_call_texts import FORMATS, TOOLS, add_call, add_text, calls, error, read

from miles_agents.chat import SegmentKind, ThinkingPolicy, get_format, parse_reply, split_reply
from miles_agents.chat.formats import CodeTool, FencedFormat
from miles_agents.chat.formats.llama3 import Llama3Format
from miles_agents.errors import UnknownNameError, UsageError
from miles_agents.types import Reply

ROOT = Path(__file__).parents[1]

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
