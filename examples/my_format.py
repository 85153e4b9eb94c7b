"""A tool-call format of one's own, `[[add {"a": 2, "b": 3}]]`: `get_format("./examples/my_format.py:MyFormat")`."""

import json
from collections.abc import Mapping
from typing import Any

from miles_agents.chat import parse_arguments
from miles_agents.chat.formats import Call, DelimitedFormat, cannot_say
from miles_agents.chat.schemas import ToolSchemas


class MyFormat(DelimitedFormat):
    """The tool's name and its arguments as JSON, in double brackets."""

    name = "double_brackets"
    begin = "[["
    end = "]]"

    def read_call(self, body: str, schemas: ToolSchemas) -> Call:
        """The call between the brackets; what is wrong with its JSON is told to the model."""
        name, _, arguments = body.strip().partition(" ")
        return Call(name, parse_arguments(arguments))

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text a model writes for this call."""
        body = f"{name} {json.dumps(arguments, ensure_ascii=False)}"
        if self.end in body:  # nothing protects the closing brackets
            raise cannot_say(self, body)
        return f"{self.begin}{body}{self.end}"
