"""Qwen3-Coder, Qwen3.5: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Format: the chat template of Qwen3-Coder and the tool-calling section of its documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from miles_agents.chat.formats.tagged import (
    CALL_CLOSE,
    CALL_OPEN,
    GAP,
    NAME,
    Expected,
    Grammar,
    TaggedFormat,
    value_text,
)
from miles_agents.chat.source import beginnings


class Qwen3CoderFormat(TaggedFormat):
    """Values between tags; the template writes one newline before and behind each, and no more is removed."""

    name = "qwen3_coder"
    opening = re.compile(CALL_OPEN)
    unfinished = re.compile(beginnings(CALL_OPEN))
    strays = re.compile("</parameter>|</function>|</tool_call>")
    grammar = Grammar(
        head=Expected((GAP, "<function=", NAME, ">")),
        argument=Expected((GAP, "<parameter=", NAME, ">")),
        value_close="</parameter>",
        tail=Expected((GAP, "</function>", GAP, CALL_CLOSE)),
        nested=Expected((CALL_OPEN, GAP, "<function=", NAME, ">")),
        padding="\n",
        expected="<function=NAME><parameter=KEY>VALUE</parameter></function>",
    )

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The call with each tag on a line of its own."""
        values = "".join(f"<parameter={key}>\n{value_text(value)}\n</parameter>\n" for key, value in arguments.items())
        text = f"{CALL_OPEN}\n<function={name}>\n{values}</function>\n{CALL_CLOSE}"
        return self.checked(text, name, arguments)
