"""What a reward function is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from miles_agents.types.messages import Message, Reply
from miles_agents.types.tasks import Task
from miles_agents.types.trajectory import ToolEvent


@dataclass(slots=True, kw_only=True)
class Episode:
    """One seat's view of a finished episode, as `reward` sees it.

    `sandbox` is the live sandbox of the episode (`contracts.Sandbox`) or None; it is closed after scoring.
    """

    task: Task
    messages: list[Message] = field(default_factory=list)  # prompt, replies and observations in order
    replies: list[Reply] = field(default_factory=list)
    tool_events: list[ToolEvent] = field(default_factory=list)
    truncated: bool = False
    submitted: str | None = None  # the answer handed in by a tool that ended the episode
    sandbox: Any = None
    seat: str = "agent"
    policy: str = "policy"

    @property
    def final(self) -> Reply:
        """The last reply; an empty one if the policy never spoke."""
        return self.replies[-1] if self.replies else Reply.of("")
