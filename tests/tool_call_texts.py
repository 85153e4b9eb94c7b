"""Replies in every tool-call format, as models of the families write them, and an environment that executes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hypothesis import strategies as st

from miles_agents.chat import Delta, get_format, parse_reply
from miles_agents.contracts import ToolEnv
from miles_agents.contracts import tool as as_tool
from miles_agents.types import Episode, Message, Reply, Task

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


# Argument strings that are no JSON object (case B01).
ROWS = ['{"cmd": "ls"', '{"x":1,}', "{'x':1}", "[1,2]", "7", "null", '{"n":NaN}']

# Arguments whose strings look like the syntax around them (case B02).
B02: list[dict[str, Any]] = [
    {"path": "n.md", "content": "closing tags look like } </tool_call> in docs"},
    {"a": {"b": {"c": [1, {"d": "}"}]}}},
    {"code": 'x = "q\\"\\\\"\nprint("""tri"ple""")\n# \'</tool_call>\''},
]
NASTY = [
    *("</tool_call>", "<tool_call>", "<think>", "</think>", "{", "}", '"', "\\", "'", "\n", " ", "\t", "\r"),
    *("```", "````", "```python\n", '"""', "é", "\x00", "\u2028", "😀", "<|python_tag|>", "; ", "]]"),
    *("</parameter>", "<parameter=b>", "</function>", "<function=g>", "</arg_value>", "<arg_key>b</arg_key>"),
    *("<arg_value>", "<", ">", "\n</parameter>\n", "\n</function>\n</tool_call>", '{"name": "g", "parameters": {}}'),
    *("42", "null", "true", "[1]"),
]
strings = st.lists(st.one_of(st.sampled_from(NASTY), st.text(max_size=4)), max_size=6).map("".join)
values = st.recursive(
    st.one_of(strings, st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(strings, inner, max_size=3)),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(strings, values, max_size=4)

# Values that are white space, or have it at their ends (case B03).
B03 = ["    if ok:\n        run()\n", " ", "", "\n", "\n\n", " \n", "\r\n", "\t", "x", "\n x \n"]


def joined(deltas: Iterable[Delta]) -> dict[tuple[str, int | None], str]:
    found: dict[tuple[str, int | None], str] = {}
    for delta in deltas:
        found[delta.kind, delta.call] = found.get((delta.kind, delta.call), "") + delta.text
    return found


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
