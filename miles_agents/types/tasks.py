"""Tasks: the problems an environment poses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from miles_agents.types.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. `answer` and `metadata` are JSON values, private to the environment and its reward."""

    id: str
    prompt: tuple[Message, ...]
    answer: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    split: str = "train"

    def __post_init__(self) -> None:
        prompt: Any = self.prompt
        if not isinstance(prompt, (tuple, list)) or not prompt or not all(isinstance(m, Message) for m in prompt):
            raise ValueError("Task.prompt is a non-empty tuple of Message, e.g. (Message.user('…'),)")
        object.__setattr__(self, "prompt", tuple(prompt))
