"""Messages ⇄ tokens, append-only, and the reading of replies."""

from miles_agents.chat.arguments import MalformedCallError, parse_arguments
from miles_agents.chat.format import ChatFormat, MaskedIds, is_long
from miles_agents.chat.formats import MessageStream, ToolFormat, get_format, reply_from_message
from miles_agents.chat.history import History
from miles_agents.chat.parsing import parse_reply, split_reply
from miles_agents.chat.segments import Delta, DeltaKind, Segment, SegmentKind, ThinkingPolicy
from miles_agents.chat.starter import CONTROL_TOKENS, END_OF_TURN, PAD_TOKEN, starter_chat_template
from miles_agents.chat.streaming import StreamingParser
from miles_agents.chat.tokenizer import TextTokenizer

__all__ = [
    "CONTROL_TOKENS",
    "END_OF_TURN",
    "PAD_TOKEN",
    "ChatFormat",
    "Delta",
    "DeltaKind",
    "History",
    "MalformedCallError",
    "MaskedIds",
    "MessageStream",
    "Segment",
    "SegmentKind",
    "StreamingParser",
    "TextTokenizer",
    "ThinkingPolicy",
    "ToolFormat",
    "get_format",
    "is_long",
    "parse_arguments",
    "parse_reply",
    "reply_from_message",
    "split_reply",
    "starter_chat_template",
]
