"""`TypedTool`: a tool whose arguments are a pydantic model; what the shipped tools are made of."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from miles_agents.contracts import Sandbox, ToolContext, ToolLimits, ToolOutput
from miles_agents.contracts.tool_arguments import STRICT_NAMES, ToolArguments, function_schema
from miles_agents.errors import SandboxError, UsageError

SANDBOX_GRACE_S = 20.0  # over a program's own limit: the sandbox stops it itself, with time to spare on a busy machine


class Arguments(BaseModel):
    """The base of what a call of a `TypedTool` is read into: numbers are taken for strings, unknown names refused."""

    model_config = STRICT_NAMES


A = TypeVar("A", bound=Arguments)


class TypedTool(ABC, Generic[A]):
    """A tool as a class: a subclass sets `name`, `description` and `arguments`, and writes `run`.

    Args:
        name: what the model calls it; None is the class's own name for it.
        limits: deadline, concurrency and retries.
    """

    name: str
    description: str
    arguments: type[A]
    needs_sandbox: bool = False
    ends_episode: bool = False

    def __init__(self, *, name: str | None = None, limits: ToolLimits | None = None) -> None:
        if name is not None:
            self.name = name
        self.limits = limits or ToolLimits()

    @property
    def definition(self) -> Hashable:
        """Tools of one class and name count as one for `max_concurrency`, however many environments make them."""
        return (type(self), self.name)

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema."""
        return function_schema(self.name, self.description, _reader(self.arguments).schema())

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Check the arguments, then `run`.

        Raises:
            ToolError: the arguments do not fit, or the tool refuses.
            EpisodeError: the episode cannot go on.
        """
        return await self.run(_reader(self.arguments).check(arguments, tool=self.name), context)

    @abstractmethod
    async def run(self, arguments: A, context: ToolContext) -> ToolOutput:
        """Do it.

        Raises:
            ToolError: the tool refuses; the message is for the model.
            EpisodeError: the episode cannot go on.
        """


class SandboxTool(TypedTool[A]):
    """A tool that works in the episode's sandbox."""

    needs_sandbox = True

    def sandbox_of(self, context: ToolContext) -> Sandbox:
        """The episode's sandbox.

        Raises:
            SandboxError: it has none.
        """
        if context.sandbox is None:
            raise SandboxError(f"the {self.name} tool needs a sandbox, but the episode has none")
        return context.sandbox


def require_at_least(tool: str, **bounds: tuple[float, float]) -> None:
    """Refuse settings below their least value, given as `name=(value, least)`.

    Raises:
        UsageError: which one.
    """
    for name, (value, least) in bounds.items():
        if not value >= least:
            raise UsageError(f"{tool} tool: {name} is {value}; at least {least:g}")


@functools.cache
def _reader(model: type[A]) -> ToolArguments[A]:
    return ToolArguments(model)
