"""Tools: typed functions the model may call.

A tool's JSON schema comes from its signature and docstring (Google style `Args:`), its arguments are checked by
pydantic before it runs, and `ToolError` is how it answers a bad call.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any, Protocol, TypeVar, cast, get_type_hints, overload

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from miles_agents.contracts.sandbox import Sandbox
from miles_agents.contracts.threads import run_in_thread
from miles_agents.errors import ToolError, UsageError

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__miles_tool__"
_MAX_ERROR_CHARS = 300


class ToolOutput:
    """What a tool gives back when plain text is not enough.

    Args:
        text: what the model is shown.
        ok: False if the model is shown an error.
        info: the tool's own facts (JSON), kept in the trajectory.
    """

    __slots__ = ("info", "ok", "text")

    def __init__(self, text: str, *, ok: bool = True, info: Mapping[str, Any] | None = None) -> None:
        self.text = text
        self.ok = ok
        self.info = dict(info or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool may use of the episode that calls it."""

    sandbox: Sandbox | None = None
    np_random: np.random.Generator | None = None


class Tool(Protocol):
    """A callable tool: a name, a schema, and an async `call`."""

    name: str
    needs_sandbox: bool

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run it.

        Raises:
            ToolError: bad arguments, or the tool refuses; shown to the model.
            EpisodeError: the episode cannot go on (e.g. the sandbox is lost).
        """
        ...


class FunctionTool:
    """A `Tool` made from a typed function, plain or async. Plain functions run in a thread of their own.

    What the function returns becomes text: a string as it is, a dict or list as JSON, anything else by `str`; a
    `ToolOutput` is passed on.

    Raises:
        UsageError: an argument has no type or a type that cannot be read, or cannot be given by name.
    """

    needs_sandbox = False

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        if not inspect.isroutine(function):
            raise UsageError(f"{function!r} is no function; a tool is a function or an object with schema() and call()")
        self.function = function
        self.name = name or function.__name__
        self._description, self._arguments, self._names = _describe(function)
        self._schema: dict[str, Any] | None = None

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema of the function's parameters."""
        if self._schema is None:  # made once: every episode asks for it
            parameters = self._arguments.model_json_schema(by_alias=True)
            parameters.pop("title", None)
            for each in parameters.get("properties", {}).values():
                each.pop("title", None)
            self._schema = function_schema(self.name, self._description, parameters)
        return copy.deepcopy(self._schema)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Check the arguments, run the function, turn what it returns into text."""
        try:
            checked = self._arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(describe_validation_error(self.name, error)) from error
        values = {name: getattr(checked, field) for field, name in self._names.items()}
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**values)
        else:
            result = await run_in_thread(self.function, **values)
            if inspect.isawaitable(result):  # a plain function that returns a coroutine
                result = await result
        return _as_output(result)

    def bind_to(self, owner: object) -> FunctionTool:
        """This tool as a bound method of `owner` (for functions marked inside a class)."""
        bound = copy.copy(self)
        bound.function = MethodType(self.function, owner)
        return bound


def _as_output(result: Any) -> ToolOutput:
    if isinstance(result, ToolOutput):
        return result
    if isinstance(result, (dict, list)):
        return ToolOutput(json.dumps(result, ensure_ascii=False, default=str))
    return ToolOutput(str(result))


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenAI-style wrapper around a JSON schema of parameters."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }


def describe_validation_error(name: str, error: ValidationError) -> str:
    """One bounded line for the model: which argument is wrong and how."""
    problems = "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors()[:4]
    )
    return f"bad arguments for '{name}': {problems}"[:_MAX_ERROR_CHARS]


def _describe(function: Callable[..., Any]) -> tuple[str, type[BaseModel], dict[str, str]]:
    """The description, the model that checks the arguments, and its fields' names → the arguments' names.

    Fields are numbered and carry the argument's name as alias, because pydantic refuses or warns about fields named
    like `_x`, `json` or `model_x`.
    """
    name = function.__name__
    hints = _type_hints(function)
    described = _argument_docs(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"tool '{name}' takes *args or **kwargs; name and type each argument")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(f"tool '{name}': argument '{parameter.name}' is positional-only; remove the '/'")
        if parameter.name not in hints:
            raise UsageError(f"tool '{name}': give argument '{parameter.name}' a type")
        default = ... if parameter.default is parameter.empty else parameter.default
        field = f"argument_{len(names)}"
        names[field] = parameter.name
        described_field = Field(default, alias=parameter.name, description=described.get(parameter.name))
        fields[field] = (hints[parameter.name], described_field)
    model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    summary = re.split(r"\n\s*\n|\n\s*Args:", inspect.getdoc(function) or name, maxsplit=1)[0]
    return " ".join(summary.split()), cast(type[BaseModel], model), names


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"tool '{function.__name__}': cannot read its types ({error}); import them at the top of the module, "
            "not under TYPE_CHECKING"
        ) from error


def _argument_docs(doc: str) -> dict[str, str]:
    """`name: text` entries of a Google-style `Args:` block; deeper-indented lines continue an entry."""
    block = re.search(r"^Args:\n((?:[ \t]+.*(?:\n|$)|\n)+)", doc, re.M)
    if block is None:
        return {}
    entries = re.findall(r"^ {4}(\w+)(?:\s*\([^)]*\))?:[ \t]*((?:.*)(?:\n {5,}.*)*)", block[1], re.M)
    return {name: " ".join(text.split()) for name, text in entries}


@overload
def tool(function: F) -> F: ...
@overload
def tool(*, name: str) -> Callable[[F], F]: ...


def tool(function: F | None = None, *, name: str | None = None) -> F | Callable[[F], F]:
    """Mark a typed function or method as a tool. It stays an ordinary function.

    Raises:
        UsageError: an argument has no type, or the function takes *args or **kwargs.
    """

    def mark(target: F) -> F:
        setattr(target, _MARK, FunctionTool(target, name=name))
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
    found: dict[str, FunctionTool] = {}
    for cls in reversed(type(owner).__mro__):
        for attribute, value in vars(cls).items():
            static = isinstance(value, staticmethod)
            marked = getattr(value.__func__ if static else value, _MARK, None)
            if isinstance(marked, FunctionTool):
                found[attribute] = marked if static else marked.bind_to(owner)
            else:
                found.pop(attribute, None)
    return tuple(found.values())
