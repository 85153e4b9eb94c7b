"""Reading a reply: thinking, content and tool calls, in one of several formats.

The text is cut, from left to right and once, into segments that join to exactly the text. Time is linear in the length
of the text. The machine is that of `streaming`, given the text in one piece, so a stream says the same.
"""

from __future__ import annotations

from miles_agents.chat.formats.base import ToolFormat
from miles_agents.chat.schemas import Tools
from miles_agents.chat.segments import THINK_CLOSE, THINK_OPEN, Segment, SegmentKind, ThinkingPolicy
from miles_agents.chat.streaming import StreamingParser
from miles_agents.types import Reply

__all__ = ["THINK_CLOSE", "THINK_OPEN", "Segment", "SegmentKind", "ThinkingPolicy", "parse_reply", "split_reply"]


def parse_reply(
    text: str,
    *,
    format: str | ToolFormat = "hermes",
    tools: Tools = (),
    truncated: bool = False,
    opens_thinking: bool = False,
    first_call: int = 0,
    thinking: ThinkingPolicy = ThinkingPolicy.IGNORE,
) -> Reply:
    """Read what the policy said.

    Args:
        text: the decoded completion without its end-of-turn token.
        format: how the model writes calls: a name of the table of formats (docs/tool-formats.md), or a format.
        tools: OpenAI-style schemas of what may be called. They give the arguments of tagged formats their types.
        truncated: the end-of-turn token was not sampled.
        opens_thinking: the prompt ended inside `<think>`, so the text begins with reasoning.
        first_call: number of the first call; ids are `call_0`, `call_1`, … over an episode.
        thinking: what calls inside thinking are; `END_THINKING` needs `tools`, by whose schemas a call is valid.

    Raises:
        UsageError: no such format.
    """
    parser = StreamingParser(
        format=format, tools=tools, opens_thinking=opens_thinking, first_call=first_call, thinking=thinking
    )
    parser.feed(text)
    return parser.finish(truncated=truncated)


def split_reply(
    text: str,
    *,
    format: str | ToolFormat = "hermes",
    tools: Tools = (),
    opens_thinking: bool = False,
    thinking: ThinkingPolicy = ThinkingPolicy.IGNORE,
) -> list[Segment]:
    """Cut a reply into segments; joined, their sources are the text again. Arguments as those of `parse_reply`.

    Raises:
        UsageError: no such format.
    """
    parser = StreamingParser(format=format, tools=tools, opens_thinking=opens_thinking, thinking=thinking)
    parser.feed(text)
    parser.flush()
    return parser.segments
