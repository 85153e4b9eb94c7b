"""The table of formats: names → classes."""

from __future__ import annotations

from functools import cache
from typing import Any

from miles_agents.chat.formats.base import ToolFormat
from miles_agents.errors import UsageError
from miles_agents.registry import Registry, is_object_spec, load_object

tool_formats = Registry("tool-call format", entry_point_group="miles_agents.tool_formats")

for _name, _target in {
    "hermes": "hermes:HermesFormat",
    "qwen3_coder": "qwen3_coder:Qwen3CoderFormat",
    "llama3": "llama3:Llama3Format",
    "fenced": "fenced:FencedFormat",
    "glm": "glm:GlmFormat",
    "engine": "engine:EngineFormat",
}.items():
    tool_formats.add_lazy(_name, f"miles_agents.chat.formats.{_target}")


def get_format(name: str | ToolFormat) -> ToolFormat:
    """The format of that name; or of `file.py:Class` or `package.module:Class` (or an object); or `name` itself.

    Raises:
        UsageError: no such format (the message lists the nearest names), or a class that is none.
    """
    if isinstance(name, ToolFormat):
        return name
    return _made(name, load_object(name)) if is_object_spec(name) else _named(name)


@cache
def _named(name: str) -> ToolFormat:
    return _made(name, tool_formats.get(name))


def _made(name: str, found: Any) -> ToolFormat:
    made = found() if isinstance(found, type) and issubclass(found, ToolFormat) else found
    if not isinstance(made, ToolFormat):
        raise UsageError(f"'{name}' is no tool-call format: derive the class from miles_agents.chat.formats.ToolFormat")
    return made
