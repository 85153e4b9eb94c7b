"""A compiled piece of a conversation: fixed ids, and stretches of text with holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from miles_agents.chat.markers import Hole, Piece
from miles_agents.chat.tokenizer import ControlToken, TextTokenizer
from miles_agents.types import Message


class Stretch(NamedTuple):
    """Text between two control tokens, tokenised as one."""

    parts: tuple[str | Hole, ...]


class Program(NamedTuple):
    """Gives ids when its holes are filled."""

    steps: tuple[tuple[int, ...] | Stretch, ...]
    encode: Callable[[str], Sequence[int]]

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids with the texts of `messages` in the holes."""
        found: list[int] = []
        for step in self.steps:
            if isinstance(step, Stretch):
                text = "".join([part if isinstance(part, str) else part.fill(messages) for part in step.parts])
                found.extend(self.encode(text))
            else:
                found.extend(step)
        return found

    def first_ids(self) -> tuple[int, ...]:
        """The fixed ids it begins with."""
        first = self.steps[0] if self.steps else ()
        return () if isinstance(first, Stretch) else first

    def after(self, ids: tuple[int, ...]) -> Program:
        """This program with `ids` before it."""
        return Program((ids, *self.steps), self.encode) if ids else self


def compile_pieces(tokenizer: TextTokenizer, pieces: Sequence[Piece]) -> Program:
    """Cut at the control tokens of the template text, the only ones there are; tokenise what is already known."""
    steps: list[tuple[int, ...] | Stretch] = []
    fixed: list[int] = []
    run: list[str | Hole] = []

    def end_run() -> None:
        nonlocal fixed
        if any(isinstance(part, Hole) for part in run):
            steps.extend((tuple(fixed), Stretch(tuple(run))))
            fixed = []
        elif run:
            fixed += tokenizer.encode_text("".join(map(str, run)))
        run.clear()

    for piece in pieces:
        parts = tokenizer.split_control(piece) if isinstance(piece, str) else [piece]
        for part in parts:
            if isinstance(part, ControlToken):
                end_run()
                fixed.append(part.id)
            else:
                run.append(part if isinstance(part, (str, Hole)) else part.text)
    end_run()
    return Program((*(step for step in steps if step), *([tuple(fixed)] if fixed else [])), tokenizer.encode_text)
