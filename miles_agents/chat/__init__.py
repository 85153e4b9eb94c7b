"""Messages ⇄ tokens, append-only, and the reading of replies."""

from miles_agents.chat.arguments import MalformedCallError, parse_arguments
from miles_agents.chat.format import ChatFormat, MaskedIds, is_long
from miles_agents.chat.parsing import Segment, SegmentKind, parse_reply, split_reply
from miles_agents.chat.starter import CONTROL_TOKENS, END_OF_TURN, PAD_TOKEN, starter_chat_template
from miles_agents.chat.tokenizer import TextTokenizer

__all__ = [
    "CONTROL_TOKENS",
    "END_OF_TURN",
    "PAD_TOKEN",
    "ChatFormat",
    "MalformedCallError",
    "MaskedIds",
    "Segment",
    "SegmentKind",
    "TextTokenizer",
    "is_long",
    "parse_arguments",
    "parse_reply",
    "split_reply",
    "starter_chat_template",
]
