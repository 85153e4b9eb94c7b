"""What becomes of earlier turns in later prompts: appended to, or rendered anew by a template that rewrites them.

Templates of thinking models strip the thinking of earlier turns. Either it is kept against the template (`keep`), and
prompts only grow; or each prompt is the template's own render of the whole conversation (`split`), and the trajectory
becomes several training samples.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

import numpy as np

from miles_agents.chat.ends import BASE
from miles_agents.chat.markers import Hole, Shape, shape_of
from miles_agents.chat.parsing import THINK_CLOSE, THINK_OPEN
from miles_agents.chat.rendering import Renderer
from miles_agents.chat.tokenizer import TextTokenizer
from miles_agents.errors import TemplateError
from miles_agents.types import IntArray, Message, Reply

_THOUGHT = "musing-7"  # what no template says


class History(StrEnum):
    """How the next prompt is made."""

    AUTO = "auto"  # `append` if the template only appends, else `split`
    APPEND = "append"  # prompt + completion + suffix; a template that does not do so itself is refused
    KEEP = "keep"  # the same, also where the template would strip thinking from earlier replies
    SPLIT = "split"  # a full render of the template each turn; earlier replies enter as their messages


def separates_thinking(renderer: Renderer) -> bool:
    """True if a template treats thinking apart: as reasoning, or by cutting it out of earlier replies' content."""
    thinking = Message.assistant("-", reasoning=_THOUGHT)
    shapes = (BASE[0], shape_of(thinking), shape_of(Message.tool("-")))
    pieces = renderer.template.pieces(renderer.template.skeleton(shapes, (), generation_prompt=True), ())
    if any(isinstance(piece, Hole) and piece.field == "reasoning" for piece in pieces):
        return True
    written = Message.assistant(f"{THINK_OPEN}\n{_THOUGHT}\n{THINK_CLOSE}\n\n-")
    conversation = (Message.user("-"), written, Message.user("-"))
    return _THOUGHT not in renderer.template.render(conversation, (), generation_prompt=True)


def shows(renderer: Renderer, shape: Shape, *, separate: bool) -> bool:
    """True if the template prints an assistant message of this shape in full (earlier thinking left aside)."""
    next_message = Message.tool("-") if shape.calls else Message.user("-")
    try:
        renderer.prompt((BASE[0], shape, shape_of(next_message)), (), may_drop=("reasoning",) if separate else ())
    except TemplateError:
        return False
    return True


def structured(reply: Reply, *, separate: bool) -> Message:
    """A reply as content, calls and thinking, without the line breaks that templates put between them.

    `separate=False`: thinking is no matter of the template's and stays in the text.
    """
    content = reply.content
    if reply.reasoning and separate:
        content = content.lstrip("\n")
    if reply.calls:
        content = content.strip("\n")
    return Message.assistant(content, tool_calls=reply.calls, reasoning=reply.reasoning.strip("\n"))


def keep_sampled(
    rendered: Sequence[int], before: IntArray, *, ends: Collection[int], tokenizer: TextTokenizer
) -> IntArray:
    """A rendered prompt, with the ids of prompt + completion `before` where the render repeats their text.

    A policy may sample a text in other tokens than the tokenizer would choose. As long as the template does not
    rewrite the text, the sampled ids stay, and the trajectory stays one sample.
    """
    fresh = np.array(rendered, np.int32)
    end_ids = np.array(sorted(ends), np.int32)
    if not len(before) or before[-1] not in end_ids:
        return fresh
    ended, fresh_ended = (np.flatnonzero(np.isin(ids, end_ids)) + 1 for ids in (before, fresh))
    if len(fresh_ended) < len(ended):
        return fresh
    cut = int(fresh_ended[len(ended) - 1])
    shared = min(cut, len(before))
    differing = np.flatnonzero(before[:shared] != fresh[:shared])
    first = int(differing[0]) if len(differing) else shared
    # Compared from the end of turn before the difference on: no character is cut in two there.
    clean = int(ended[np.searchsorted(ended, first, side="right") - 1]) - 1 if first >= ended[0] else 0
    if tokenizer.decode(before[clean:]) != tokenizer.decode(fresh[clean:cut]):
        return fresh
    return np.concatenate([before, fresh[cut:]]).astype(np.int32)
