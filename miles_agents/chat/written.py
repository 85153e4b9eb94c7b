"""Written conversations to imitate: which of their tokens a model would have sampled, by prefix difference.

The prompt before a reply is rendered alone; where it ends in the whole conversation the reply begins. No markers in the
template are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from miles_agents.chat.ends import TurnEnds
from miles_agents.chat.markers import Shape
from miles_agents.chat.program import Program
from miles_agents.chat.rendering import Renderer
from miles_agents.chat.template import Tools
from miles_agents.errors import TemplateError
from miles_agents.types import Role


class Stretch(NamedTuple):
    """A part of a conversation; the tokens `sampled_from:sampled_to` of it are sampled (None: to its end)."""

    program: Program
    sampled_from: int
    sampled_to: int | None


class _Span(NamedTuple):
    """Where in a skeleton a reply stands, and whether the token behind it is the reply's end of turn."""

    start: int
    end: int
    is_ended: bool


def compile_written(renderer: Renderer, ends: TurnEnds, shapes: Sequence[Shape], tools: Tools) -> tuple[Stretch, ...]:
    """Cut a conversation of these shapes into stretches.

    Raises:
        TemplateError: the template rewrites history, or does not render one of the texts.
        ValueError: no assistant message: nothing to imitate.
    """
    if all(shape.role != Role.ASSISTANT for shape in shapes):
        raise ValueError("a supervised conversation needs at least one assistant message")
    renderer.checked(shapes, tools, generation_prompt=False)
    full = renderer.template.skeleton(shapes, tools, generation_prompt=False)
    stretches: list[Stretch] = []
    at, ended = 0, False
    for start, end, is_ended in _spans(renderer, ends, full, shapes, tools):
        between = full[at:start]
        if at == 0:
            stretches.append(Stretch(renderer.beginning(renderer.template.pieces(between, tools)), 0, 0))
        else:  # begins with the end of the reply before
            stretches.append(Stretch(renderer.program(between, tools), 0, int(ended)))
        stretches.append(Stretch(renderer.program(full[start:end], tools), 0, None))
        at, ended = end, is_ended
    rest = full[at:]
    if shapes[-1].role == Role.ASSISTANT:
        rest, ended = ends.after(calls=bool(shapes[-1].calls)).text, True
    stretches.append(Stretch(renderer.program(rest, tools), 0, int(ended)))
    return tuple(stretches)


def _spans(renderer: Renderer, ends: TurnEnds, full: str, shapes: Sequence[Shape], tools: Tools) -> list[_Span]:
    spans: list[_Span] = []
    for index, shape in enumerate(shapes):
        if shape.role != Role.ASSISTANT:
            continue
        prompt = renderer.template.skeleton(shapes[:index], tools, generation_prompt=True)
        start, end = len(prompt), ends.find(full, len(prompt))
        is_ended = True
        if ends.are_markers:
            said = renderer.template.skeleton(shapes[: index + 1], tools, generation_prompt=False)
            if full.startswith(said) and (end < 0 or len(said) < end):
                end, is_ended = len(said), False
        if not full.startswith(prompt) or end < 0:
            raise TemplateError(
                f"the chat template does not render message {index} (assistant) right behind the prompt before it: "
                "it rewrites history, so which tokens are the assistant's cannot be told"
            )
        spans.append(_Span(start, end, is_ended))
    return spans
