"""Tools: what the model may call.

A tool is a typed function, plain or async, or an object of the `Tool` protocol. `ToolError` is how it answers a bad
call; `InfrastructureError` says that what it depends on failed.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Protocol, TypeVar, cast, overload, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import BaseModel

from miles_agents.contracts.sandbox import Sandbox
from miles_agents.contracts.threads import run_in_thread
from miles_agents.contracts.tool_arguments import function_schema, read_signature
from miles_agents.errors import InfrastructureError, ToolErrorKind, UsageError

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__miles_tool__"


class ToolOutput:
    """What a tool gives back when plain text is not enough.

    Args:
        text: what the model is shown.
        ok: False if the model is shown an error.
        error_kind: of the error; it makes `ok` False.
        info: the tool's own facts (JSON), kept in the trajectory.
        submitted: the final answer: the episode ends. Only for tools whose `ends_episode` is True.
    """

    __slots__ = ("error_kind", "info", "submitted", "text")

    def __init__(
        self,
        text: str,
        *,
        ok: bool = True,
        error_kind: ToolErrorKind = ToolErrorKind.NONE,
        info: Mapping[str, Any] | None = None,
        submitted: str | None = None,
    ) -> None:
        self.text = text
        self.error_kind = error_kind or (ToolErrorKind.NONE if ok else ToolErrorKind.ERROR)
        self.info = dict(info or {})
        self.submitted = submitted

    @property
    def ok(self) -> bool:
        """False if the model is shown an error."""
        return self.error_kind is ToolErrorKind.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may use of the episode that calls it."""

    sandbox: Sandbox | None = None
    np_random: np.random.Generator | None = None
    faults: list[InfrastructureError] = field(default_factory=list)  # of this call's tries before this one


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """How a tool may be called.

    Raises:
        UsageError: a value out of its range.
    """

    timeout_s: float | None = None  # of one call, all its tries together; None: the environment's `tool_timeout_s`
    max_concurrency: int | None = None  # calls at a time, over all episodes of the process; None: no limit
    retries: int = 0  # further tries after an `InfrastructureError`; only for tools that may be called twice

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise UsageError(f"a tool's timeout_s is {self.timeout_s}; it must be positive")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise UsageError(f"a tool's max_concurrency is {self.max_concurrency}; at least 1, or None for no limit")
        if self.retries < 0:
            raise UsageError(f"a tool's retries is {self.retries}; it must not be negative")


class Tool(Protocol):
    """A callable tool: a name, a schema, and an async `call`.

    Four more attributes are looked up where a tool has them:

    - `limits: ToolLimits`: its own deadline, concurrency and retries.
    - `ends_episode: bool`: True if its output may say `submitted`. In a turn of several calls it runs alone, after the
      calls written before it and before those written behind it.
    - `definition`: what `limits.max_concurrency` is counted by; tools of equal definition share one count. Without it
      each object counts alone.
    - `open()` and `close()`, both async: see `Shared`.
    """

    name: str
    needs_sandbox: bool

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run it.

        Raises:
            ToolError: bad arguments, or the tool refuses; shown to the model.
            InfrastructureError: what the tool depends on failed; the call may be tried again.
            EpisodeError: the episode cannot go on (e.g. the sandbox is lost).
        """
        ...


@runtime_checkable
class Shared(Protocol):
    """Something that all episodes of a run use together: a connection, an index."""

    async def open(self) -> None:
        """Make it ready. Called before the first episode; again, it costs nothing.

        Raises:
            UsageError: it cannot be made ready as it is set up.
            InfrastructureError: it cannot be reached now.
        """
        ...

    async def close(self) -> None:
        """Free it at the end of the run. May be called twice; the next `open` makes it ready again."""
        ...


@runtime_checkable
class ToolSource(Shared, Protocol):
    """Several tools behind one entry of `ToolEnv.tools`, known once it is open (the tools of a server)."""

    def tools(self) -> Sequence[Tool]:
        """The tools.

        Raises:
            UsageError: it is not open yet.
        """
        ...


def limits_of(tool: Tool) -> ToolLimits:
    """The tool's own limits, or the default ones."""
    limits = getattr(tool, "limits", None)
    return limits if isinstance(limits, ToolLimits) else ToolLimits()


def may_end_episode(tool: Tool) -> bool:
    """True if the tool's output may say `submitted`."""
    return bool(getattr(tool, "ends_episode", False))


class FunctionTool:
    """A `Tool` made from a typed function, plain or async. Plain functions run in a thread of their own.

    What the function returns becomes text: a string as it is; a dict, list, dataclass or pydantic model as JSON;
    anything else by `str`. A `ToolOutput` is passed on.

    Args:
        function: what to call. Its schema comes from its types and its docstring (Google style `Args:`).
        name: what the model calls it; None is the function's name.
        limits: see `ToolLimits`.
        ends_episode: what it returns is the final answer, and the episode ends. A `ToolOutput` says so itself.

    Raises:
        UsageError: an argument has no type or a type that cannot be read, or cannot be given by name.
    """

    needs_sandbox = False

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        limits: ToolLimits | None = None,
        ends_episode: bool = False,
    ) -> None:
        if not inspect.isroutine(function):
            raise UsageError(f"{function!r} is no function; a tool is a function or an object with schema() and call()")
        self.function = function
        self.name = name or function.__name__
        self.limits = limits or ToolLimits()
        self.ends_episode = ends_episode
        self.definition: Hashable = function  # of the copies bound to objects, too
        self._signature = read_signature(function)

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema of the function's parameters."""
        return function_schema(self.name, self._signature.description, self._signature.arguments.schema())

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Check the arguments, run the function, turn what it returns into text."""
        checked = self._signature.arguments.check(arguments, tool=self.name)
        values = {name: getattr(checked, each) for each, name in self._signature.names.items()}
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**values)
        else:
            result = await run_in_thread(self.function, **values)
            if inspect.isawaitable(result):  # a plain function that returns a coroutine
                result = await result
        if isinstance(result, ToolOutput):
            return result
        text = _as_text(result)
        return ToolOutput(text, submitted=text if self.ends_episode else None)

    def bind_to(self, owner: object) -> FunctionTool:
        """This tool as a bound method of `owner` (for functions marked inside a class)."""
        bound = copy.copy(self)
        bound.function = MethodType(self.function, owner)
        return bound


def _as_text(result: Any) -> str:
    if isinstance(result, BaseModel):
        return result.model_dump_json()
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    if isinstance(result, (dict, list)):
        return json.dumps(result, ensure_ascii=False, default=str)
    return str(result)


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    retries: int = 0,
    ends_episode: bool = False,
) -> Callable[[F], F]: ...


def tool(
    function: F | None = None,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    retries: int = 0,
    ends_episode: bool = False,
) -> F | Callable[[F], F]:
    """Mark a typed function or method as a tool. It stays an ordinary function.

    Args:
        function: what to mark.
        name: what the model calls it; None is the function's name.
        timeout_s: of one call, all its tries together; None is the environment's `tool_timeout_s`.
        max_concurrency: calls at a time, over all episodes of the process; waiting counts against no deadline.
        retries: further tries after an `InfrastructureError`; only for what may be called twice.
        ends_episode: what it returns is the final answer, and the episode ends (`ToolOutput(submitted=…)` decides it
            call by call).

    Raises:
        UsageError: an argument has no type or one that cannot be written as a JSON schema, the function takes *args or
            **kwargs, or a limit is out of its range.
    """
    limits = ToolLimits(timeout_s=timeout_s, max_concurrency=max_concurrency, retries=retries)

    def mark(target: F) -> F:
        setattr(target, _MARK, FunctionTool(target, name=name, limits=limits, ends_episode=ends_episode))
        return target

    return mark if function is None else mark(function)


def as_tool(entry: Tool | Callable[..., Any]) -> Tool:
    """The `Tool` behind an entry of `ToolEnv.tools`: a Tool as it is, or a function (marked or not)."""
    marked = getattr(entry, _MARK, None)
    if isinstance(marked, FunctionTool):
        return marked
    if hasattr(entry, "call") and hasattr(entry, "schema"):
        return cast(Tool, entry)
    if callable(entry):
        return _function_tool(entry)
    raise UsageError(
        f"{entry!r} is no tool; give a function with typed arguments or an object with schema() and call()"
    )


@functools.lru_cache(maxsize=256)
def _function_tool(function: Callable[..., Any]) -> FunctionTool:
    return FunctionTool(function)


def marked_methods(owner: object) -> tuple[FunctionTool, ...]:
    """The methods of `owner` marked with `@tool`, bound to it, in the order they were written.

    A method that a subclass overrides without the mark is no tool any more.
    """
    marked = _marked_of_class.get(type(owner))
    if marked is None:  # looking through a class costs as much as a turn of an episode
        marked = _marked_of_class[type(owner)] = _find_marked(type(owner))
    return tuple(tool if static else tool.bind_to(owner) for tool, static in marked)


_marked_of_class: WeakKeyDictionary[type, tuple[tuple[FunctionTool, bool], ...]] = WeakKeyDictionary()


def _find_marked(owner: type) -> tuple[tuple[FunctionTool, bool], ...]:
    found: dict[str, tuple[FunctionTool, bool]] = {}
    for cls in reversed(owner.__mro__):
        for attribute, value in vars(cls).items():
            static = isinstance(value, staticmethod)
            marked = getattr(value.__func__ if static else value, _MARK, None)
            if isinstance(marked, FunctionTool):
                found[attribute] = marked, static
            else:
                found.pop(attribute, None)
    return tuple(found.values())
