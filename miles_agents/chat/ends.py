"""What ends the assistant's turn: one token of its own (`<|im_end|>`), or the marker of the next speaker's turn.

Where the next marker ends a turn (`<|user|>`, `<|observation|>`), the policy samples it, so it belongs to the
completion and must not be written a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from miles_agents.chat.markers import shape_of
from miles_agents.chat.rendering import Renderer, after_reply, check_holes
from miles_agents.chat.tokenizer import ControlToken
from miles_agents.errors import TemplateError
from miles_agents.types import IntArray, Message

PLACEHOLDERS = (Message.user("-"), Message.assistant("-"))
BASE = tuple(shape_of(message) for message in PLACEHOLDERS)


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """The tokens behind a reply.

    `alternatives`: further stop tokens that end a turn in place of `before_user` (Llama 3's `<|eom_id|>`, sampled where
    a tool is to answer).
    """

    before_user: ControlToken
    before_tool: ControlToken
    alternatives: frozenset[int]

    @property
    def are_markers(self) -> bool:
        """True if the next speaker's marker ends a turn."""
        return self.before_user.id != self.before_tool.id

    @property
    def ids(self) -> frozenset[int]:
        """Every id that ends a turn."""
        return frozenset({self.before_user.id, self.before_tool.id}) | self.alternatives

    def after(self, *, calls: bool) -> ControlToken:
        """The token a reply ends with, as the model would sample it."""
        return self.before_tool if calls else self.before_user

    def stripped(self, text: str) -> str:
        """`text` without a final end of turn."""
        for end in (self.before_user, self.before_tool):
            if text.endswith(end.text):
                return text.removesuffix(end.text)
        return text

    def find(self, text: str, start: int) -> int:
        """Where the first end of a turn from `start` on stands in template text; −1 if there is none."""
        found = _either(self.before_user.text, self.before_tool.text).search(text, start)
        return found.start() if found else -1

    def behind(self, completion_ids: Sequence[int] | IntArray, suffix: Sequence[int]) -> Sequence[int]:
        """What of a suffix that begins with an end of turn is still to be written behind a completion."""
        last = int(completion_ids[-1]) if len(completion_ids) else None
        return suffix[1:] if last == suffix[0] or last in self.alternatives else suffix


def find_ends(renderer: Renderer, source: str, eos_ids: Iterable[int]) -> TurnEnds:
    """Read the ends of turns off a template.

    Args:
        renderer: the template and its tokenizer.
        source: the template's Jinja.
        eos_ids: ids that end generation. One that the template names, too, ends a turn like the usual token.

    Raises:
        TemplateError: behind a reply stands no control token.
    """
    before_user, before_tool = (_token_behind(renderer, next_) for next_ in (Message.user("-"), Message.tool("-")))
    alternatives: set[int] = set()
    if before_user.id == before_tool.id:
        special = renderer.tokenizer.special
        named = {
            token.id
            for token in renderer.tokenizer.control.values()
            if token.text in source and token.text not in (special.get("bos_token"), before_user.text)
        }
        alternatives = named & set(eos_ids)
    return TurnEnds(before_user, before_tool, frozenset(alternatives))


def _token_behind(renderer: Renderer, next_message: Message) -> ControlToken:
    shapes = (*BASE, shape_of(next_message))
    pieces = renderer.template.pieces(renderer.template.skeleton(shapes, (), generation_prompt=True), ())
    check_holes(pieces, shapes)
    behind = next(iter(after_reply(pieces)), "")
    first = next(iter(renderer.tokenizer.split_control(behind)), "") if isinstance(behind, str) else ""
    if not isinstance(first, ControlToken):
        raise TemplateError(
            "no end-of-turn token: behind the assistant's text the chat template writes "
            f"{behind if isinstance(behind, str) else ''!r}, which begins with no special token of this tokenizer. "
            "Add the token to the tokenizer, or use the tokenizer and template that belong together"
        )
    return first


def _either(*texts: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)))
