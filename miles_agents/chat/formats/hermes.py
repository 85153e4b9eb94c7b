"""Hermes, Qwen2.5, Qwen3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Format: the function-calling section of Qwen's documentation and Hermes 2 Pro's model card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from miles_agents.chat.formats.base import CallReader, ToolFormat
from miles_agents.chat.formats.json_object import JsonCallReader
from miles_agents.chat.schemas import ToolSchemas, as_json
from miles_agents.chat.source import beginnings

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


class HermesFormat(ToolFormat):
    """One JSON object between tags. Its strings protect tags, braces and quotes."""

    name = "hermes"
    opening = re.compile(CALL_OPEN)
    unfinished = re.compile(beginnings(CALL_OPEN))

    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """A reader of the object and its closing tag."""
        return JsonCallReader(closing=CALL_CLOSE, keys=("arguments",), strict=strict)

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The call between its tags, each on a line of its own."""
        return f'{CALL_OPEN}\n{{"name": {as_json(name)}, "arguments": {as_json(arguments)}}}\n{CALL_CLOSE}'
