"""Replies in every tool-call format, as models of the families write them, for the tests of parsing and streaming."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from miles_agents.chat import get_format

FORMATS = ("hermes", "qwen3_coder", "llama3", "fenced", "glm")
TEXTUAL = ("qwen3_coder", "glm")  # values stand between tags as they are


def tool(name: str, properties: dict[str, Any], *, required: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), **more}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = (
    tool("add", {"a": INTEGER, "b": INTEGER}, required=("a", "b"), additionalProperties=False),
    tool("f", {"id": {}}),
    tool("write_file", {"path": TEXT, "content": TEXT}, required=("path", "content")),
    tool("edit", {"old": TEXT, "new": TEXT}),
    tool("python", {"code": TEXT}, required=("code",), additionalProperties=False),
    tool("shell", {"command": TEXT}, required=("command",)),
    tool("brave_search", {"query": TEXT}, required=("query",)),
    tool("now", {}),
)


class Spoken(NamedTuple):
    """One call as a format's users say it: fenced agents can only run code."""

    name: str
    arguments: dict[str, Any]


def add_call(style: str) -> Spoken:
    """The call of `add(2, 3)`, in code where there is nothing but code."""
    return Spoken("python", {"code": "add(2, 3)"}) if style == "fenced" else Spoken("add", {"a": 2, "b": 3})


def add_text(style: str) -> str:
    return get_format(style).render_call(*add_call(style))


# What the families write, by hand. Every line stands for a habit seen in real outputs.
_WRITTEN: dict[str, tuple[str, ...]] = {
    "hermes": (
        '<tool_call>{"name":"f","arguments":{"id":42}}</tool_call>',
        '<tool_call>\n{"arguments": {"id": [1, {"k": "}"}]}, "name": "f"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "{\\"id\\": 42}"}\n</tool_call>',
        '<tool_call>\n{"name": "now"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"id": "a </tool_call> b"}}\n</tool_call> done',
        '<tool_call>{"name": "f", "arguments": {"id": "cut</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"id": 42}',
        'Type <tool_call to call. <tool_call>{"name": "f", "arguments": {\'id\': 1}}</tool_call>',
        '<tool_call>\\"</tool_call> said "no"',
        '<tool_call>{"name": "f", "argu\\u006dents": {"id": "\\u00e9\\n"}}</tool_call>',
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=f>\n<parameter=id>42</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=write_file><parameter=path>a</parameter><parameter=content>b\n</parameter></function>"
        "</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<tool_call>\n<function=write_file>\n<parameter=path>\nx.md\n</parameter>\n<parameter=content>\n"
        "a </parameter> b </function> c\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=add>\n<parameter=a>\ntwo\n</parameter>\n<parameter=b>\n3\n</parameter>\n</function>\n"
        "</tool_call>",
        '<tool_call>\n{"name": "f"}\n</tool_call> and on',
        "<tool_call>\n<function=f>\n<parameter=id>\n42\n</parameter>\n",
        "<tool_call>\n<function=f>\n<parameter=id>\n1\n</parameter>\n<parameter=id>\n2\n</parameter>\n</function>\n"
        "</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=id>\nTrue\n</parameter>\n</function>\n</tool_call>\n</tool_call>",
    ),
    "glm": (
        "<tool_call>f<arg_key>id</arg_key><arg_value>42</arg_value></tool_call>",
        "<tool_call>now</tool_call>",
        "<tool_call>now\n</tool_call>\n",
        "<tool_call>f <arg_key>id</arg_key> <arg_value> 42 </arg_value> </tool_call> done",
        "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>n</arg_value>\n<arg_key>content</arg_key>\n"
        "<arg_value> a </arg_value> b\n</arg_value>\n</tool_call>",
        '<tool_call>{"name": "f"}</tool_call> and on',
        "<tool_call>f\n<arg_key>id</arg_key>\n<arg_value>4",
        "<tool_call>f\n<arg_key>id</arg_key>\n</tool_call>",
        "<tool_call>f\n<arg_key>id</arg_key>\n<arg_value>1</arg_value>\n</tool_call></arg_value>",
    ),
    "llama3": (
        '<|python_tag|>{"name": "f", "parameters": {"id": 42}}',
        '{"name": "f", "parameters": {"id": 42}}; {"name": "now", "parameters": {}}',
        '{"type": "function", "name": "f", "parameters": {"id": {"k": [1]}}}',
        '<|python_tag|>brave_search.call(query="rain in (Paris)")',
        '<|python_tag|>brave_search.call(query="say "hi"")',
        'I know: {"name": "f"} is a call.\n{"answer": {"x": 1}}\n{"name": "Ann", "parameters": {}}',
        '{\n  "name": "f",\n  "parameters": {"id": "}{"}\n}\n',
        '{"name": "f", "parameters": {"id": 42',
        "<|python_tag|>print(1)\nprint(2)",
    ),
    "fenced": (
        "```python\nprint(1)\n```",
        "Then:\n```py\nx = '''\n  ```\n'''\n```\nand\n```python\n\n```\n",
        "````python\n```\nnot the end\n```\n````\n",
        "```python\nprint(1)",
        "```\nplain\n```\n```python title=a\nprint(2)\n```",
        "````md\n```python\nshown, not run\n```\n````\n",
        "```python\n```\n",
        "a ```python b\n    ```python\n```ruby\nputs 1\n```\n",
        "```sh\nls -l\n```  \n",
    ),
}


def recorded(style: str) -> Iterator[str]:
    """About 20 replies in one format."""
    render = get_format(style).render_call
    yield from _WRITTEN[style]
    if style == "fenced":
        spoken = [Spoken("python", {"code": code}) for code in ("42", "x = {'k': [1]}\n", 'é = "\\n"\t', "", "\n")]
    else:
        spoken = [Spoken("f", {"id": value}) for value in (42, True, None, {"k": [1]}, 'é "\\ \n')]
    yield from (render(*each) for each in spoken)
    call, other = add_text(style), render(*spoken[0])
    yield f"I add.\n{call}\n{other}"
    yield f"<think>2 and 3</think>\n\n{call}"
    yield f"<think>\ncheck it {call}</think>"
    yield "<think>one could write <tool_call> here</think> The answer is 5"
    yield f"<think>\n{call}"
    yield f"{call}\n and <b>more</b> <thi"
    yield "The answer is 5 < 6 > 4 { ` \\ <"
