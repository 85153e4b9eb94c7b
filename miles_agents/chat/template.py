"""Rendering a Hugging Face chat template, with outside text kept out of it.

A template is rendered once per *shape* of a conversation (roles, kinds of arguments, which texts are empty) with
markers in place of every outside text; the result is a skeleton of template text and holes. Texts are put into the
holes later, so nothing they say can steer the template, and rendering costs nothing per call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from miles_agents.chat.markers import (
    MARKS,
    Hole,
    Piece,
    Shape,
    cut_at_markers,
    shape_of,
    tojson,
    tojson_of_markers,
    tool_text_marker,
    with_markers,
    with_texts,
)
from miles_agents.errors import TemplateError, did_you_mean
from miles_agents.types import Message, ToolCall

Tools = Sequence[Mapping[str, Any]]

_ALWAYS_SET = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """A chat template in Jinja.

    Args:
        source: the template.
        special: texts of special tokens by name, which templates use (`bos_token`).
        variables: further variables the template takes, e.g. `{"enable_thinking": True}`.
        is_outside: tells which strings of a tool schema must be kept out of the template.

    Raises:
        TemplateError: it is no valid Jinja, or takes no such variable.
    """

    def __init__(
        self,
        source: str,
        *,
        special: Mapping[str, str],
        variables: Mapping[str, Any],
        is_outside: Callable[[str], bool],
    ) -> None:
        self._variables = {**special, **variables}
        self._is_outside = is_outside
        try:
            self._template = _environment(tojson).from_string(source)
            self._shown_markers = _environment(tojson_of_markers).from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is not valid Jinja: {error}") from error
        _check_variables(self._template.environment, source, variables)
        self._by_argument = self._prints_arguments_one_by_one()

    def shape_of(self, message: Message) -> Shape:
        """What this template may see of a message.

        Raises:
            UsageError: it holds an image, or a malformed call, which has no arguments to render.
        """
        return shape_of(message, by_argument=self._by_argument)

    def render(self, messages: Sequence[Message], tools: Tools, *, generation_prompt: bool) -> str:
        """The text of a conversation, texts put in by the template itself. For people and for checks."""
        return self._run(self._template, [with_texts(message) for message in messages], list(tools), generation_prompt)

    def skeleton(self, shapes: Sequence[Shape], tools: Tools, *, generation_prompt: bool) -> str:
        """The text of a conversation of these shapes with markers in place of all texts; see `pieces`."""
        hidden: list[str] = []
        shown = self._hide(list(tools), hidden)
        messages = [with_markers(index, shape) for index, shape in enumerate(shapes)]
        return self._run(self._shown_markers, messages, shown, generation_prompt)

    def pieces(self, skeleton: str, tools: Tools) -> list[Piece]:
        """Cut (a part of) a skeleton into template text, holes and hidden strings of the tool schemas."""
        hidden: list[str] = []
        self._hide(list(tools), hidden)
        return cut_at_markers(skeleton, hidden)

    def _prints_arguments_one_by_one(self) -> bool:
        call = ToolCall(id="call_0", name="probe", arguments={"x": "-"}, raw="")
        messages = (Message.user("-"), Message.assistant("", tool_calls=(call,)), Message.tool("-", call=call))
        try:
            skeleton = self.skeleton([shape_of(message) for message in messages], (), generation_prompt=True)
        except TemplateError:  # it takes no calls, or not such ones
            return False
        holes = [piece for piece in self.pieces(skeleton, ()) if isinstance(piece, Hole)]
        return any(hole.field == "argument_name" for hole in holes)

    def _run(
        self, template: jinja2.Template, messages: list[dict[str, Any]], tools: list[Any], generation_prompt: bool
    ) -> str:
        try:
            return template.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            reason = str(error).rstrip(".")
            raise TemplateError(
                f"the chat template cannot render ({roles}): {reason}. Use a template that takes these roles"
            ) from error

    def _hide(self, value: Any, hidden: list[str]) -> Any:
        """A copy of a schema in which strings that could pass for control tokens are markers, in reading order."""
        if isinstance(value, Mapping):
            return {self._hide(key, hidden): self._hide(entry, hidden) for key, entry in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._hide(entry, hidden) for entry in value]
        if isinstance(value, str) and (self._is_outside(value) or any(mark in value for mark in MARKS)):
            hidden.append(value)
            return tool_text_marker(len(hidden) - 1)
        return value


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` of transformers: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012 — Jinja's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_variables(environment: jinja2.Environment, source: str, variables: Mapping[str, Any]) -> None:
    """Refuse variables that no template takes, which Jinja would pass over in silence.

    Raises:
        TemplateError: this template uses none of the name, or it is one that is always set.
    """
    tree = environment.parse(source)
    used = meta.find_undeclared_variables(tree) - _ALWAYS_SET - set(environment.globals)
    own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}  # some are found as well
    for name in variables:
        if name in _ALWAYS_SET:
            raise TemplateError(f"the chat template's variable {name!r} is set here; leave it out")
        if name not in used:
            raise TemplateError(f"the chat template uses no variable {name!r}. {did_you_mean(name, used - own)}")


def _environment(to_json: Callable[..., str]) -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up; the date is frozen, so that a run's prompts do not change at midnight."""
    now = datetime.now().astimezone()
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
