"""GLM-4.5 to 4.7: `<tool_call>name <arg_key>key</arg_key> <arg_value>value</arg_value> </tool_call>`.

Format: the chat templates of GLM-4.5 (tags on lines of their own) and GLM-4.7 (nothing between tags).
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
    Chars,
    Expected,
    Grammar,
    TaggedFormat,
    value_text,
)
from miles_agents.chat.source import beginnings

_TOOL = Chars(r"[\w.:/-]", 1, 128, kept=True)


class GlmFormat(TaggedFormat):
    """Values between tags, with nothing around them to remove."""

    name = "glm"
    opening = re.compile(CALL_OPEN)
    unfinished = re.compile(beginnings(CALL_OPEN))
    strays = re.compile("</arg_value>|</arg_key>|</tool_call>")
    grammar = Grammar(
        head=Expected((GAP, _TOOL), before="<"),
        argument=Expected((GAP, "<arg_key>", NAME, "</arg_key>", GAP, "<arg_value>")),
        value_close="</arg_value>",
        tail=Expected((GAP, CALL_CLOSE)),
        nested=Expected((CALL_OPEN, GAP, _TOOL, GAP, "<arg_key>"), (CALL_OPEN, GAP, _TOOL, GAP, CALL_CLOSE)),
        padding="",
        expected="NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
    )

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The call with each tag on a line of its own."""
        values = "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{value_text(value)}</arg_value>\n"
            for key, value in arguments.items()
        )
        text = f"{CALL_OPEN}{name}\n{values}{CALL_CLOSE}"
        return self.checked(text, name, arguments)
