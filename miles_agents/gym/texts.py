"""Messages as one text, and a text as a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from miles_agents.chat import parse_reply
from miles_agents.errors import UsageError, did_you_mean
from miles_agents.gym.spaces import is_writable
from miles_agents.types import ImagePart, Message, Part, Reply, Role

MAX_CHARS = 1 << 24  # of an observation or action; longer observations lose their middle


class CutText(str):
    """An action that a wrapper cut off: the reply it becomes is marked as truncated, and it ends the episode.

    `reason` is what `info["truncated_by"]` says where the environment has no word of its own for it.
    """

    reason: str

    def __new__(cls, text: str, reason: str = "max_new_tokens") -> CutText:
        """The text and why it was cut."""
        self = super().__new__(cls, text)
        self.reason = reason
        return self


class ParseReply(Protocol):
    """Reads an action, see `miles_agents.chat.parse_reply`."""

    def __call__(self, text: str, *, truncated: bool = False, first_call: int = 0) -> Reply:
        """The reply; its first call has the number `first_call`."""
        ...


_FORMATS: dict[str, ParseReply] = {"hermes": parse_reply}


def parser_of(tool_format: str | ParseReply) -> ParseReply:
    """How actions are read: a format's name, or a function of your own.

    Raises:
        UsageError: no format of that name.
    """
    if isinstance(tool_format, str):
        if tool_format not in _FORMATS:
            raise UsageError(f"unknown tool_format {tool_format!r}. {did_you_mean(tool_format, _FORMATS)}")
        return _FORMATS[tool_format]
    return tool_format


def observation_text(messages: Sequence[Message]) -> str:
    """New messages as one text that is in the observation space.

    One message is its text alone; several have a line `[role]` (of a tool `[tool NAME]`) above each.
    """
    if len(messages) == 1:
        return _fitting(_content(messages[0]))
    return _fitting(conversation_text(messages))


def conversation_text(messages: Sequence[Message], *, shown: Callable[[str], str] = str) -> str:
    """Messages as text for people and simple programs, each under its role.

    Args:
        messages: what was said.
        shown: is applied to each message's text.
    """
    return "\n\n".join(f"[{shown(_label(message))}]\n{shown(_content(message))}" for message in messages)


def _label(message: Message) -> str:
    return f"tool {message.name}" if message.role is Role.TOOL and message.name else str(message.role)


def _content(message: Message) -> str:
    reasoning = f"<think>{message.reasoning}</think>" if message.reasoning else ""
    text = "".join(_part(part) for part in message.parts)
    calls = "".join(f"<tool_call>{call.raw}</tool_call>" for call in message.tool_calls)
    return reasoning + text + calls


def _part(part: Part) -> str:
    if isinstance(part, ImagePart):
        return f"[image {part.media_type}, {len(part.data)} bytes]"
    return part.text


def _fitting(text: str) -> str:
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2 - 50
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
    if not is_writable(text):  # lone surrogates: nothing that could be written down or tokenised
        text = text.encode("utf-8", "replace").decode()
    return text
