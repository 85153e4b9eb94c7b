"""Any arguments, written and read again in every tool-call format. Cases B02 and B03 as properties."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tool_call_texts import ARGUMENTS, TEXTUAL, TOOLS, WRITE, strings, tool, values

from miles_agents.chat import SegmentKind, get_format, parse_reply, split_reply
from miles_agents.errors import UsageError

keys = st.text("abcxyz_-.é", min_size=1, max_size=8)
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}


def tool_for(*all_arguments: dict[str, Any]) -> dict[str, Any]:
    """A tool that takes these arguments, every one of the type it has there."""
    found: dict[str, Any] = {}
    for arguments in all_arguments:
        for key, value in arguments.items():
            found.setdefault(key, {"type": KINDS.get(type(value), "object")})
    return tool("g", found)


@pytest.mark.parametrize("style", ["hermes", "llama3"])
@given(st.lists(ARGUMENTS, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_B02_any_arguments_come_back_equal_from_json(style: str, all_arguments: list[dict[str, Any]]) -> None:
    render = get_format(style).render_call
    text = "\n".join(render("g", each) for each in all_arguments)
    assert [call.arguments for call in parse_reply(text, format=style, tools=[tool("g", {})]).calls] == all_arguments
    again = [render(call.name, call.arguments or {}) for call in parse_reply(text, format=style).calls]
    assert "\n".join(again) == text


@given(st.lists(strings, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_B02_any_code_comes_back_equal_from_fences(codes: list[str]) -> None:
    render = get_format("fenced").render_call
    text = "\n".join(render("python", {"code": code}) for code in codes)
    calls = parse_reply(text, format="fenced", tools=TOOLS).calls
    assert [call.arguments for call in calls] == [{"code": code} for code in codes]


@pytest.mark.parametrize("style", TEXTUAL)
@given(st.dictionaries(keys, values, max_size=4))
@settings(max_examples=250, deadline=None)
def test_B02_B03_any_arguments_come_back_equal_from_tags_or_are_refused(style: str, arguments: dict[str, Any]) -> None:
    try:
        text = get_format(style).render_call("g", arguments)
    except UsageError:
        assert "<" in json.dumps(arguments)
        return
    reply = parse_reply(text, format=style, tools=[tool_for(arguments)])
    assert reply.errors == ()
    (call,) = reply.calls
    assert call.arguments == arguments
    assert json.dumps(call.arguments) == json.dumps(arguments)  # True is not 1, nor 1.0
    assert get_format(style).render_call("g", call.arguments or {}) == text
    assert reply.content == ""


@pytest.mark.parametrize("style", TEXTUAL)
@given(st.text(alphabet=" \n\t\r\x0b a", max_size=8))
@settings(max_examples=150, deadline=None)
def test_B03_white_space_of_any_value_comes_back(style: str, value: str) -> None:
    (call,) = parse_reply(WRITE[style]("edit", old=value), format=style, tools=TOOLS).calls
    assert call.arguments == {"old": value}


@pytest.mark.parametrize("style", TEXTUAL)
@given(st.dictionaries(st.sampled_from("abc"), strings, min_size=1, max_size=3))
@example({"a": "x\n</parameter>\n</function>\n</tool_call>"})
@example({"a": "x</arg_value>\n</tool_call>"})
@example({"a": "x\n</parameter>\n</function>\n</tool_call><tool_call>"})
@settings(max_examples=400, deadline=None)
def test_B02_no_value_is_ever_shortened_silently(style: str, arguments: dict[str, str]) -> None:
    """Texts as a template writes them, unchecked: the arguments come back, or there is an error.

    The one thing no reader can tell: a value that spells the end of its argument (or call) and the beginning of the
    next one is two of them. Then every piece of the text is a complete argument of a complete call.
    """
    text = WRITE[style]("g", **arguments)
    reply = parse_reply(text, format=style, tools=[tool_for(arguments)])
    good = [call for call in reply.calls if call.error is None]
    if reply.errors:
        assert good == []
        return
    if [call.arguments for call in good] == [arguments]:
        return
    pieces = len(good) + sum(len(call.arguments or {}) for call in good)
    assert pieces > 1 + len(arguments), "shortened"
    bodies = [segment for segment in split_reply(text, format=style) if segment.kind is SegmentKind.CALL]
    assert all(segment.closing == "</tool_call>" for segment in bodies)


@given(st.dictionaries(keys, values, max_size=4), st.sampled_from(TEXTUAL))
@settings(max_examples=100, deadline=None)
def test_a_refused_call_would_indeed_not_come_back(arguments: dict[str, Any], style: str) -> None:
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    plain = WRITE[style]("g", **text)
    try:
        get_format(style).render_call("g", text)
    except UsageError:
        reply = parse_reply(plain, format=style)
        assert reply.errors or [call.arguments for call in reply.calls] != [text]
    else:
        assume("<" in plain)
        assert parse_reply(plain, format=style).calls[0].arguments == text
