"""`ChatFormat`: messages ⇄ token ids for one model folder, append-only.

Turn k+1's prompt is turn k's prompt + what was sampled + `suffix(observation)`; nothing is rendered or tokenised twice.
Text between two control tokens is tokenised in one go, template text and outside text together, so that ids equal the
ordinary tokenisation of the full render; outside text never becomes a control token.

All methods are plain functions of some 0.1 ms and may be called from several threads. For long texts (`is_long`) call
them through `asyncio.to_thread`, so that the event loop goes on meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from miles_agents.chat.append_only import check_append_only
from miles_agents.chat.parsing import THINK_CLOSE, THINK_OPEN, parse_reply
from miles_agents.chat.program import Program, compile_pieces
from miles_agents.chat.template import ChatTemplate, Hole, Piece, Shape, Tools, shape_of
from miles_agents.chat.tokenizer import LONG_TEXT_CHARS, ControlToken, TextTokenizer, read_json_file
from miles_agents.errors import TemplateError
from miles_agents.types import IntArray, Message, Reply, Role, ToolCall

_PLACEHOLDERS = (Message.user("-"), Message.assistant("-"))
_BASE = tuple(shape_of(message) for message in _PLACEHOLDERS)


class MaskedIds(NamedTuple):
    """A conversation to imitate: ids (T,) int32 and mask (T,) int8, 1 exactly where the model would have sampled."""

    ids: IntArray
    mask: NDArray[np.int8]


class ChatFormat:
    """How one model's conversations look in tokens. Checked when made.

    Args:
        tokenizer: the model's tokenizer.
        template: its chat template, Jinja.
        eos_ids: ids that end generation, besides the end-of-turn token.
        variables: further variables of the template, e.g. `{"enable_thinking": True}`.

    Raises:
        TemplateError: the template cannot be rendered append-only, or the tokenizer lacks a needed token.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: str,
        *,
        eos_ids: Iterable[int] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(
            template, special=tokenizer.special, variables=variables or {}, is_outside=tokenizer.has_control
        )
        self._prompt_program = lru_cache(maxsize=512)(self._compile_prompt)
        self._suffix_program = lru_cache(maxsize=512)(self._compile_suffix)
        self._supervised_programs = lru_cache(maxsize=512)(self._compile_supervised)
        self.end_of_turn = self._find_end_of_turn()
        self.generation_prompt = self._find_generation_prompt()
        self.opens_thinking = self.generation_prompt.rfind(THINK_OPEN) > self.generation_prompt.rfind(THINK_CLOSE)
        self.stop_token_ids: tuple[int, ...] = tuple(sorted({self.end_of_turn.id, *eos_ids}))
        self.shows_tools = check_append_only(self)

    @classmethod
    def from_folder(
        cls, folder: str | Path, *, template: str | None = None, variables: Mapping[str, Any] | None = None
    ) -> ChatFormat:
        """Read a Hugging Face model folder; `template` replaces its own chat template.

        Raises:
            TemplateError: no tokenizer, no template, or one that cannot be used.
        """
        folder = Path(folder)
        tokenizer = TextTokenizer.from_folder(folder)
        source = template if template is not None else read_template(folder)
        return cls(tokenizer, source, eos_ids=read_eos_ids(folder, tokenizer), variables=variables)

    @property
    def end_of_turn_id(self) -> int:
        """Id of the token that ends the assistant's turn."""
        return self.end_of_turn.id

    def first_prompt(self, messages: Sequence[Message], tools: Tools = ()) -> IntArray:
        """Ids (P,) int32 of the first prompt, generation prompt included. `tools`: OpenAI-style schemas.

        Raises:
            TemplateError: the template cannot render these roles, or drops one of the texts.
            UsageError: a message holds an image.
        """
        program = self._prompt_program(tuple(map(shape_of, messages)), _tools_key(tools))
        return np.array(program.ids(messages), np.int32)

    def suffix(self, observation: Sequence[Message], *, completion_ids: Sequence[int] | IntArray) -> IntArray:
        """Ids (S,) int32 to append behind prompt + completion: the observation, then the generation prompt.

        If the completion does not end with the end-of-turn token (it was cut), the suffix begins with it.

        Raises:
            TemplateError: the template cannot render these roles, or drops one of the texts.
            UsageError: a message holds an image, or is the assistant's.
        """
        program = self._suffix_program(tuple(map(shape_of, observation)))
        ids = program.ids((*_PLACEHOLDERS, *observation))
        ended = len(completion_ids) > 0 and int(completion_ids[-1]) == self.end_of_turn.id
        return np.array(ids[1:] if ended else ids, np.int32)

    def next_prompt(
        self,
        *,
        ids: IntArray,
        completion_ids: IntArray,
        messages: Sequence[Message],
        observation: Sequence[Message],
        tools: Tools = (),
    ) -> IntArray:
        """Ids (Q,) int32 of the next turn's whole prompt.

        Args:
            ids: (P,) the prompt before.
            completion_ids: (C,) what was sampled on it.
            messages: the whole conversation, the reply and the observation included.
            observation: the new messages, the last of `messages`.
            tools: schemas, as in the first prompt.
        """
        suffix = self.suffix(observation, completion_ids=completion_ids)
        return np.concatenate([ids, completion_ids, suffix]).astype(np.int32)

    def parse(
        self, completion: str | Sequence[int] | IntArray, *, truncated: bool = False, first_call: int = 0
    ) -> Reply:
        """Read a completion (sampled ids, or text).

        Args:
            completion: a final stop token is left out of the reply's text.
            truncated: the caller's knowledge that a token limit cut it.
            first_call: number of its first call; pass the count of earlier calls to keep ids unique in an episode.
        """
        text = completion.removesuffix(self.end_of_turn.text) if isinstance(completion, str) else None
        if text is None:
            ended = len(completion) > 0 and completion[-1] in self.stop_token_ids
            text = self.tokenizer.decode(completion[:-1] if ended else completion)  # type: ignore[arg-type]
        return parse_reply(text, truncated=truncated, opens_thinking=self.opens_thinking, first_call=first_call)

    def encode_reply(self, text: str, *, ended: bool = True) -> IntArray:
        """Ids (C,) int32 of a reply written by hand, as if sampled: control tokens in it count.

        For scripts and supervised data; never for what a model sampled.
        """
        ids = self.tokenizer.encode_control(text)
        return np.array([*ids, self.end_of_turn.id] if ended else ids, np.int32)

    def supervised(self, messages: Sequence[Message], tools: Tools = ()) -> MaskedIds:
        """Ids and mask of a written conversation: 1 exactly on what the assistant says and its end-of-turn tokens.

        The ids are those an engine would have seen, prompt by prompt. A last assistant turn ends with its end-of-turn
        token. Mask by prefix difference: no template markers are needed.

        Raises:
            TemplateError: the template rewrites history, or does not render one of the texts.
            ValueError: no assistant message: nothing to imitate.
        """
        programs = self._supervised_programs(tuple(map(shape_of, messages)), _tools_key(tools))
        ids: list[int] = []
        mask: list[int] = []
        for program, sampled_from, sampled_to in programs:
            piece = program.ids(messages)
            end = len(piece) if sampled_to is None else sampled_to
            ids += piece
            mask += [int(sampled_from <= index < end) for index in range(len(piece))]
        return MaskedIds(np.array(ids, np.int32), np.array(mask, np.int8))

    def render(self, messages: Sequence[Message], tools: Tools = ()) -> str:
        """The next prompt's text by one full render of the template, for people and checks; never for training."""
        return self.template.render(messages, tools, generation_prompt=True)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens visible."""
        return self.tokenizer.decode(ids)

    def encode_text(self, text: str) -> IntArray:
        """Ids (T,) int32 of outside text; what spells a control token becomes ordinary tokens."""
        return np.array(self.tokenizer.encode_text(text), np.int32)

    def encode_plain(self, text: str) -> IntArray:
        """Ids (T,) int32 of a text that is no chat, with the tokenizer's single BOS if it has one."""
        return self.tokenizer.encode_plain(text)

    def _compile_prompt(self, shapes: tuple[Shape, ...], tools_key: str) -> Program:
        tools = json.loads(tools_key)
        skeleton = self.template.skeleton(shapes, tools, generation_prompt=True)
        pieces = self.template.pieces(skeleton, tools)
        _check_holes(pieces, shapes)
        self._check_fills(pieces, shapes, tools)
        return self._compile_beginning(pieces)

    def _compile_beginning(self, pieces: list[Piece]) -> Program:
        program = compile_pieces(self.tokenizer, pieces)
        begin = self.tokenizer.bos_ids
        has_begin = begin and program.first_ids()[: len(begin)] == begin
        return program if has_begin else program.after(begin)

    def _compile_suffix(self, shapes: tuple[Shape, ...]) -> Program:
        if any(shape.role == Role.ASSISTANT for shape in shapes):
            raise TemplateError("an observation holds an assistant message; only the policy speaks as the assistant")
        conversation = (*_BASE, *shapes)
        pieces = self.template.pieces(self.template.skeleton(conversation, (), generation_prompt=True), ())
        _check_holes(pieces, conversation)
        self._check_fills(pieces, conversation, ())
        return compile_pieces(self.tokenizer, _after_reply(pieces))

    def _compile_supervised(
        self, shapes: tuple[Shape, ...], tools_key: str
    ) -> tuple[tuple[Program, int, int | None], ...]:
        """Stretches of a conversation: a program, and which of its tokens are sampled (`None`: to its end)."""
        tools = json.loads(tools_key)
        full = self.template.skeleton(shapes, tools, generation_prompt=False)
        pieces = self.template.pieces(full, tools)
        _check_holes(pieces, shapes)
        self._check_fills(pieces, shapes, tools, generation_prompt=False)
        spans = self._reply_spans(full, shapes, tools)
        stretches: list[tuple[Program, int, int | None]] = []
        at = 0
        for start, end in spans:
            before = self.template.pieces(full[at:start], tools)
            if at == 0:
                stretches.append((self._compile_beginning(before), 0, 0))
            else:  # begins with the end-of-turn token of the reply before
                stretches.append((compile_pieces(self.tokenizer, before), 0, 1))
            stretches.append((compile_pieces(self.tokenizer, self.template.pieces(full[start:end], tools)), 0, None))
            at = end
        ends_with_reply = shapes[-1].role == Role.ASSISTANT
        rest = self.end_of_turn.text if ends_with_reply else full[at:]
        stretches.append((compile_pieces(self.tokenizer, self.template.pieces(rest, tools)), 0, 1))
        return tuple(stretches)

    def _reply_spans(self, full: str, shapes: tuple[Shape, ...], tools: Tools) -> list[tuple[int, int]]:
        """Where in the skeleton each reply begins and where its end-of-turn token stands."""
        spans: list[tuple[int, int]] = []
        for index, shape in enumerate(shapes):
            if shape.role != Role.ASSISTANT:
                continue
            prompt = self.template.skeleton(shapes[:index], tools, generation_prompt=True)
            end = full.find(self.end_of_turn.text, len(prompt))
            if not full.startswith(prompt) or end < 0:
                raise TemplateError(
                    f"the chat template does not render message {index} (assistant) right behind the prompt before it: "
                    "it rewrites history, so which tokens are the assistant's cannot be told"
                )
            spans.append((len(prompt), end))
        if not spans:
            raise ValueError("a supervised conversation needs at least one assistant message")
        return spans

    def _check_fills(
        self, pieces: list[Piece], shapes: tuple[Shape, ...], tools: Tools, *, generation_prompt: bool = True
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

    def _find_end_of_turn(self) -> ControlToken:
        shapes = (*_BASE, _BASE[0])
        pieces = self.template.pieces(self.template.skeleton(shapes, (), generation_prompt=True), ())
        _check_holes(pieces, shapes)
        behind = next(iter(_after_reply(pieces)), "")
        first = next(iter(self.tokenizer.split_control(behind)), "") if isinstance(behind, str) else ""
        if not isinstance(first, ControlToken):
            raise TemplateError(
                "no end-of-turn token: behind the assistant's text the chat template writes "
                f"{behind if isinstance(behind, str) else ''!r}, which begins with no special token of this tokenizer. "
                "Add the token to the tokenizer, or use the tokenizer and template that belong together"
            )
        return first

    def _find_generation_prompt(self) -> str:
        without, with_prompt = (
            self.template.skeleton(_BASE[:1], (), generation_prompt=wanted) for wanted in (False, True)
        )
        if not with_prompt.startswith(without) or with_prompt == without:
            raise TemplateError(
                "the chat template writes no generation prompt: it must append the assistant's header "
                "when add_generation_prompt is true"
            )
        return with_prompt[len(without) :]


def is_long(messages: Iterable[Message]) -> bool:
    """True if tokenising these messages takes milliseconds: do it in a thread, off the event loop."""
    return sum(len(message.text) for message in messages) > LONG_TEXT_CHARS


def read_template(folder: Path) -> str:
    """The chat template of a model folder: `chat_template.jinja`, else the one in `tokenizer_config.json`.

    Raises:
        TemplateError: the folder has none.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = read_json_file(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several by name, the older way
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("tool_use", named.get("default"))
    if not isinstance(found, str):
        raise TemplateError(
            f"{folder} has no chat template, so it cannot hold a conversation: put one beside its weights as "
            "chat_template.jinja, or take the instruction-tuned variant of the model"
        )
    return found


def read_eos_ids(folder: Path, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Every id that ends generation by `generation_config.json`, `config.json` and the tokenizer's EOS token."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_json_file(folder / name).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or ())
    eos = tokenizer.id_of(tokenizer.special.get("eos_token", ""))
    return tuple(sorted(found if eos is None else {*found, eos}))


def _tools_key(tools: Tools) -> str:
    return json.dumps(list(tools), ensure_ascii=False) if tools else "[]"


def _probe(index: int, shape: Shape) -> Message:
    text = f' \n Probe {index}: <b>"é" \\ 7</b>\n '
    call = ToolCall(id="call_0", name="probe", arguments={"text": 'é "7"', "n": [1, None]}, raw="")
    return Message(
        role=Role(shape.role),
        parts=Message.user(text).parts if shape.has_content else (),
        tool_calls=(call,) * shape.calls,
        tool_call_id="call_0" if shape.has_call_id else None,
        name="probe" if shape.has_name else None,
        reasoning=text if shape.has_reasoning else "",
    )


def _check_holes(pieces: Sequence[Piece], shapes: Sequence[Shape]) -> None:
    """Every text must stand exactly once."""
    written = [(piece.message, piece.field, piece.call) for piece in pieces if isinstance(piece, Hole)]
    for index, shape in enumerate(shapes):
        expected = [("content", 0)] * shape.has_content + [("reasoning", 0)] * shape.has_reasoning
        expected += [(field, call) for call in range(shape.calls) for field in ("call_name", "call_arguments")]
        for field, call in expected:
            times = written.count((index, field, call))
            if times != 1:
                what = "drops" if times == 0 else f"repeats {times} times"
                raise TemplateError(
                    f"the chat template {what} the {field.replace('call_', 'call ')} of message {index} "
                    f"({shape.role}) of ({', '.join(each.role for each in shapes)}); "
                    "use a template that renders every message once"
                )


def _after_reply(pieces: list[Piece]) -> list[Piece]:
    """What follows the text of message 1, the placeholder reply."""
    index = next(i for i, piece in enumerate(pieces) if isinstance(piece, Hole) and piece[:2] == (1, "content"))
    return pieces[index + 1 :]
