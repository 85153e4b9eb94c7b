"""From shapes to programs: what a template prints for them, checked, cut at control tokens, tokenised where fixed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from miles_agents.chat.markers import TEXT, Hole, Piece, Shape, first_misprint
from miles_agents.chat.program import Program, compile_pieces
from miles_agents.chat.template import ChatTemplate, Tools
from miles_agents.chat.tokenizer import TextTokenizer
from miles_agents.errors import TemplateError
from miles_agents.types import Message, Role, TextPart, ToolCall

_MOST_PROVEN = 10_000
_PROBED = {TEXT: 'é "7"', "number": 7, "mapping": {"k": ["é"]}, "list": [1, None], "true": True, "false": False}


class Renderer:
    """A template with its tokenizer. Its callers keep the programs."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._proven: set[tuple[str, Shape, str, bool]] = set()  # messages whose texts come out as they went in

    def prompt(self, shapes: Sequence[Shape], tools: Tools, *, may_drop: Sequence[str] = ()) -> Program:
        """The program of a whole prompt, BOS and generation prompt included.

        Args:
            shapes: of all messages.
            tools: schemas.
            may_drop: fields the template may leave out.

        Raises:
            TemplateError: it cannot render these roles, drops or changes a text.
        """
        return self.beginning(self.checked(shapes, tools, may_drop=may_drop))

    def checked(
        self, shapes: Sequence[Shape], tools: Tools, *, generation_prompt: bool = True, may_drop: Sequence[str] = ()
    ) -> list[Piece]:
        """The pieces of a conversation, every text in them once and unchanged.

        Raises:
            TemplateError: see `prompt`.
        """
        skeleton = self.template.skeleton(shapes, tools, generation_prompt=generation_prompt)
        pieces = self.template.pieces(skeleton, tools)
        check_holes(pieces, shapes, may_drop=may_drop)
        unproven = set(_in_context(shapes, has_tools=bool(tools))) - self._proven
        if unproven:  # a long conversation that grew by turns of a known kind is not rendered twice
            self._check_fills(pieces, shapes, tools, generation_prompt)
            if len(self._proven) < _MOST_PROVEN:
                self._proven |= unproven
        return pieces

    def beginning(self, pieces: Sequence[Piece]) -> Program:
        """The program of pieces that begin a sequence: with one BOS, if the model has one."""
        program = compile_pieces(self.tokenizer, pieces)
        begin = self.tokenizer.bos_ids
        has_begin = begin and program.first_ids()[: len(begin)] == begin
        return program if has_begin else program.after(begin)

    def program(self, text: str, tools: Tools) -> Program:
        """The program of a part of a skeleton."""
        return compile_pieces(self.tokenizer, self.template.pieces(text, tools))

    def _check_fills(
        self, pieces: Sequence[Piece], shapes: Sequence[Shape], tools: Tools, generation_prompt: bool
    ) -> None:
        """Probe texts put into the holes must give what the template itself renders with them."""
        probes = [_probe(index, shape) for index, shape in enumerate(shapes)]
        filled = "".join(
            piece.fill(probes) if isinstance(piece, Hole) else piece if isinstance(piece, str) else piece.text
            for piece in pieces
        )
        rendered = self.template.render(probes, tools, generation_prompt=generation_prompt)
        if filled != rendered:
            at = next((i for i, (a, b) in enumerate(zip(filled, rendered, strict=False)) if a != b), 0)
            raise TemplateError(
                "the chat template changes the texts it is given: expected "
                f"{filled[max(0, at - 20) : at + 40]!r}, it renders {rendered[max(0, at - 20) : at + 40]!r}; "
                "use a template that prints message texts as they are (or trimmed)"
            )


def _in_context(shapes: Sequence[Shape], *, has_tools: bool) -> Iterator[tuple[str, Shape, str, bool]]:
    roles = ["", *(shape.role for shape in shapes), ""]
    for index, shape in enumerate(shapes):
        yield roles[index], shape, roles[index + 2], has_tools


def check_holes(pieces: Sequence[Piece], shapes: Sequence[Shape], *, may_drop: Sequence[str] = ()) -> None:
    """Every text must stand exactly once; those of the fields `may_drop` at most once.

    Raises:
        TemplateError: one does not.
    """
    misprint = first_misprint(pieces, shapes, may_drop=may_drop)
    if misprint is None:
        return
    index, field, times = misprint
    what = "drops" if times == 0 else f"repeats {times} times"
    raise TemplateError(
        f"the chat template {what} the {field.replace('_', ' ')} of message {index} "
        f"({shapes[index].role}) of ({', '.join(shape.role for shape in shapes)}); "
        "use a template that renders every message once"
    )


def after_reply(pieces: Sequence[Piece]) -> list[Piece]:
    """What follows the text of message 1, the placeholder reply."""
    index = next(i for i, piece in enumerate(pieces) if isinstance(piece, Hole) and piece[:2] == (1, "content"))
    return list(pieces[index + 1 :])


def tools_key(tools: Tools) -> str:
    """Tool schemas as a key of caches; `json.loads` gives them back."""
    return json.dumps(list(tools), ensure_ascii=False) if tools else "[]"


def _probe(index: int, shape: Shape) -> Message:
    text = f' \n Probe {index}: <b>"é" \\ 7</b>\n '
    content = text if shape.content is None else shape.content
    return Message(
        role=Role(shape.role),
        parts=(TextPart(text=content),) if content else (),
        tool_calls=tuple(_probe_call(kinds) for kinds in shape.calls),
        tool_call_id="call_0" if shape.has_call_id else None,
        name="probe" if shape.has_name else None,
        reasoning=text if shape.reasoning is None else shape.reasoning,
    )


def _probe_call(kinds: Sequence[str]) -> ToolCall:
    arguments = {f"x{at} é": _PROBED.get(kind) for at, kind in enumerate(kinds)}
    return ToolCall(id="call_0", name="probe", arguments=arguments, raw="")
