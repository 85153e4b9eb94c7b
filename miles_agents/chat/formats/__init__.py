"""Tool-call formats, found by name."""

from miles_agents.chat.formats.base import (
    Call,
    CallReader,
    DelimitedFormat,
    Ended,
    Ending,
    ToolFormat,
    cannot_say,
)
from miles_agents.chat.formats.engine import MessageStream, reply_from_message
from miles_agents.chat.formats.fenced import CodeTool, FencedFormat
from miles_agents.chat.formats.table import get_format, tool_formats

__all__ = [
    "Call",
    "CallReader",
    "CodeTool",
    "DelimitedFormat",
    "Ended",
    "Ending",
    "FencedFormat",
    "MessageStream",
    "ToolFormat",
    "cannot_say",
    "get_format",
    "reply_from_message",
    "tool_formats",
]
