"""Messages, tool calls and replies: what an environment and a policy say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """A piece of text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image: its encoded bytes and their media type (`image/png`)."""

    data: bytes
    media_type: str = "image/png"


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call the model wrote.

    A call that could not be understood keeps its place and id: `error` then says why and `arguments` is None; it is
    answered by a tool message and never executed.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] | None
    raw: str  # the text between the call's tags, exactly as written
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.arguments is None) == (self.error is None):
            raise ValueError("a ToolCall has either arguments or an error, not both and not neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Role and parts, plus tool calls (assistant) or the id of the call that is answered (tool)."""

    role: Role
    parts: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None  # of the tool that answers
    reasoning: str = ""

    @classmethod
    def system(cls, text: str) -> Message:
        """A system message of one text part."""
        return cls(role=Role.SYSTEM, parts=(TextPart(text=text),))

    @classmethod
    def user(cls, text: str) -> Message:
        """A user message of one text part."""
        return cls(role=Role.USER, parts=(TextPart(text=text),))

    @classmethod
    def assistant(cls, text: str, *, tool_calls: tuple[ToolCall, ...] = (), reasoning: str = "") -> Message:
        """An assistant message of one text part."""
        return cls(role=Role.ASSISTANT, parts=(TextPart(text=text),), tool_calls=tool_calls, reasoning=reasoning)

    @classmethod
    def tool(cls, text: str, *, call: ToolCall | None = None) -> Message:
        """A tool message of one text part, answering `call`."""
        return cls(
            role=Role.TOOL,
            parts=(TextPart(text=text),),
            tool_call_id=call.id if call else None,
            name=call.name if call else None,
        )

    @property
    def text(self) -> str:
        """All text parts joined; images are left out."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        """All image parts."""
        return tuple(part for part in self.parts if isinstance(part, ImagePart))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the policy said: the action given to `Env.step`.

    `reasoning + content + calls` are a reading of `text`; `text` is what was sampled, without the end-of-turn token.
    """

    text: str
    content: str = ""  # text outside thinking and outside calls
    reasoning: str = ""  # text inside <think>…</think>
    calls: tuple[ToolCall, ...] = ()
    truncated: bool = False  # cut by a token limit: the end-of-turn token was not sampled
    calls_in_reasoning: int = 0  # complete calls written inside thinking that stayed thinking; never executed
    reasoning_unclosed: bool = False
    calls_ending_reasoning: int = 0  # valid calls that ended thinking (a policy); they are among `calls`
    errors: tuple[str, ...] = ()  # one bounded line per malformed call or other fault of the reply

    @classmethod
    def of(cls, text: str) -> Reply:
        """A plain reply: no reasoning, no calls."""
        return cls(text=text, content=text)

    def message(self) -> Message:
        """This reply as an assistant message."""
        return Message.assistant(self.content, tool_calls=self.calls, reasoning=self.reasoning)
