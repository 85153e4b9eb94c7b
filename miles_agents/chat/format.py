"""`ChatFormat`: messages ⇄ token ids for one model folder.

Where the template only appends (or is made to: `History`), turn k+1's prompt is turn k's prompt + what was sampled +
`suffix(observation)`; nothing is rendered or tokenised twice. Where it rewrites history, each prompt is rendered anew.
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
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from miles_agents.chat.append_only import (
    RewritesHistoryError,
    check_append_only,
    check_kept,
    check_split,
    shows_tools,
)
from miles_agents.chat.ends import BASE, PLACEHOLDERS, find_ends
from miles_agents.chat.folder import guess_tool_format, read_eos_ids, read_template
from miles_agents.chat.formats import ToolFormat, get_format
from miles_agents.chat.history import History, keep_sampled, separates_thinking, shows, structured
from miles_agents.chat.markers import Shape
from miles_agents.chat.parsing import (
    THINK_CLOSE,
    THINK_OPEN,
    SegmentKind,
    ThinkingPolicy,
    parse_reply,
    split_reply,
)
from miles_agents.chat.program import Program, compile_pieces
from miles_agents.chat.rendering import Renderer, after_reply, tools_key
from miles_agents.chat.template import ChatTemplate, Tools
from miles_agents.chat.tokenizer import LONG_TEXT_CHARS, ControlToken, TextTokenizer
from miles_agents.chat.written import Stretch, compile_written
from miles_agents.errors import TemplateError, choose
from miles_agents.types import IntArray, Message, Reply, Role

AUTO = "auto"  # of `tool_format`: by the template's own text
_CACHED_PROGRAMS = 512
_MESSAGE_CHARS = 400  # as many characters take as long as what a message costs beside its text


class MaskedIds(NamedTuple):
    """A conversation to imitate: ids (T,) int32 and mask (T,) int8, 1 exactly where the model would have sampled."""

    ids: IntArray
    mask: NDArray[np.int8]


class ChatFormat:
    """How one model's conversations look in tokens. Checked when made.

    Args:
        tokenizer: the model's tokenizer.
        template: its chat template, Jinja.
        eos_ids: ids that end generation, besides the end-of-turn tokens.
        variables: further variables of the template, e.g. `{"enable_thinking": True}`.
        history: what becomes of earlier turns; a value of `History`.
        tool_format: how the model writes calls, a name or a format; "auto": guessed from the template's text.
        thinking_calls: what a call inside thinking is; a value of `ThinkingPolicy`.

    Raises:
        TemplateError: the template cannot be rendered in the wanted way, or takes no such variable; or the tokenizer
            lacks a needed token.
        UsageError: an unknown `history`, `tool_format` or `thinking_calls`.
    """

    modalities: ClassVar[frozenset[str]] = frozenset({"text"})  # of the messages' parts that it turns into tokens

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: str,
        *,
        eos_ids: Iterable[int] = (),
        variables: Mapping[str, Any] | None = None,
        history: str = History.AUTO,
        tool_format: str | ToolFormat = AUTO,
        thinking_calls: str = ThinkingPolicy.IGNORE,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(
            template, special=tokenizer.special, variables=variables or {}, is_outside=tokenizer.has_control
        )
        self.tool_format = get_format(guess_tool_format(template) if tool_format == AUTO else tool_format)
        self.thinking_calls = choose(ThinkingPolicy, thinking_calls, key="thinking_calls")
        self._renderer = Renderer(tokenizer, self.template)
        self._prompt_program = lru_cache(_CACHED_PROGRAMS)(self._compile_prompt)
        self._suffix_program = lru_cache(_CACHED_PROGRAMS)(self._compile_suffix)
        self._written_stretches = lru_cache(_CACHED_PROGRAMS)(self._compile_written)
        self._shows = lru_cache(_CACHED_PROGRAMS)(self._compile_shows)
        eos_ids = tuple(eos_ids)
        self.ends = find_ends(self._renderer, template, eos_ids)
        self.generation_prompt = self._find_generation_prompt()
        self.opens_thinking = self.generation_prompt.rfind(THINK_OPEN) > self.generation_prompt.rfind(THINK_CLOSE)
        self.stop_token_ids: tuple[int, ...] = tuple(sorted({*self.ends.ids, *eos_ids}))
        self._separates_thinking = separates_thinking(self._renderer)
        self.history = self._settle(choose(History, history, key="history"))
        self.shows_tools = shows_tools(self)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        history: str = History.AUTO,
        tool_format: str | ToolFormat = AUTO,
        thinking_calls: str = ThinkingPolicy.IGNORE,
    ) -> ChatFormat:
        """Read a Hugging Face model folder; `template` replaces its own chat template.

        Raises:
            TemplateError: no tokenizer, no template, or one that cannot be used.
            UsageError: an unknown `history`, `tool_format` or `thinking_calls`.
        """
        folder = Path(folder)
        tokenizer = TextTokenizer.from_folder(folder)
        source = template if template is not None else read_template(folder)
        return cls(
            tokenizer,
            source,
            eos_ids=read_eos_ids(folder, tokenizer),
            variables=variables,
            history=history,
            tool_format=tool_format,
            thinking_calls=thinking_calls,
        )

    @property
    def appends(self) -> bool:
        """True if each prompt begins with the prompt before it and what was sampled, as they are."""
        return self.history is not History.SPLIT

    @property
    def end_of_turn(self) -> ControlToken:
        """The token that ends the assistant's turn before a user turn."""
        return self.ends.before_user

    @property
    def end_of_turn_id(self) -> int:
        """Its id."""
        return self.end_of_turn.id

    def first_prompt(self, messages: Sequence[Message], tools: Tools = ()) -> IntArray:
        """Ids (P,) int32 of the first prompt, generation prompt included. `tools`: OpenAI-style schemas.

        Raises:
            TemplateError: the template cannot render these roles, or drops one of the texts.
            UsageError: a message holds an image.
        """
        program = self._prompt_program(tuple(map(self.template.shape_of, messages)), tools_key(tools))
        return np.array(program.ids(messages), np.int32)

    def suffix(self, observation: Sequence[Message], *, completion_ids: Sequence[int] | IntArray) -> IntArray:
        """Ids (S,) int32 to append behind prompt + completion: the observation, then the generation prompt.

        If the completion does not end with the token that ends a turn here (it was cut), the suffix begins with it.
        For formats that append; what else prompts need is in `next_prompt`.

        Raises:
            TemplateError: the template cannot render these roles, or drops one of the texts.
            UsageError: a message holds an image, or is the assistant's.
        """
        program = self._suffix_program(tuple(map(self.template.shape_of, observation)))
        ids = program.ids((*PLACEHOLDERS, *observation))
        return np.array(self.ends.behind(completion_ids, ids), np.int32)

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

        Appending: ids + completion + suffix. Splitting: a render of all messages, linear in their length; sampled ids
        stay where it repeats their text.

        Args:
            ids: (P,) the prompt before.
            completion_ids: (C,) what was sampled on it.
            messages: the whole conversation: prompt, replies (as `history_message` gives them), observations.
            observation: the new messages, the last of `messages`.
            tools: schemas, as in the first prompt.

        Raises:
            TemplateError: the template cannot render these roles, or drops one of the texts.
            UsageError: a message holds an image or a malformed call, or an observation is the assistant's.
        """
        before = np.concatenate([ids, completion_ids]).astype(np.int32)
        if self.appends:
            return np.concatenate([before, self.suffix(observation, completion_ids=completion_ids)]).astype(np.int32)
        _refuse_assistant(message.role for message in observation)
        program = self._prompt_program(tuple(map(self.template.shape_of, messages)), tools_key(tools))
        return keep_sampled(program.ids(messages), before, ends=self.ends.ids, tokenizer=self.tokenizer)

    def history_message(self, reply: Reply, tools: Tools = ()) -> Message:
        """A reply as the assistant message that later prompts are given.

        With its calls and thinking apart where the template prints them so. Where it cannot (a malformed call, several
        calls at once, text before a call), the reply's text as it was sampled is the content: words, whose tags are
        spelled with ordinary tokens, like all outside text. `tools`: as they were given to `parse`.
        """
        if all(call.arguments is not None for call in reply.calls):
            message = structured(reply, separate=self._separates_thinking)
            has_lost_thinking = bool(reply.reasoning) and not self._separates_thinking
            if self.appends or (not has_lost_thinking and self.shows(message)):
                return message
        if not self._separates_thinking:
            return Message.assistant(reply.text)
        segments = split_reply(
            reply.text,
            format=self.tool_format,
            tools=tools,
            opens_thinking=self.opens_thinking,
            thinking=self.thinking_calls,
        )
        said = "".join(segment.source for segment in segments if segment.kind is not SegmentKind.REASONING)
        return Message.assistant(said.lstrip("\n"), reasoning=reply.reasoning.strip("\n"))

    def shows(self, message: Message) -> bool:
        """True if the template prints every text of this assistant message (thinking of earlier turns left aside)."""
        return self._shows(self.template.shape_of(message))

    def parse(
        self,
        completion: str | Sequence[int] | IntArray,
        *,
        truncated: bool = False,
        first_call: int = 0,
        tools: Tools = (),
    ) -> Reply:
        """Read a completion (sampled ids, or text).

        Args:
            completion: a final stop token is left out of the reply's text.
            truncated: the caller's knowledge that a token limit cut it.
            first_call: number of its first call; pass the count of earlier calls to keep ids unique in an episode.
            tools: schemas of what may be called; formats that print arguments one by one need them for the types.
        """
        text = self.ends.stripped(completion) if isinstance(completion, str) else None
        if text is None:
            ended = len(completion) > 0 and completion[-1] in self.stop_token_ids
            text = self.tokenizer.decode(completion[:-1] if ended else completion)  # type: ignore[arg-type]
        return parse_reply(
            text,
            format=self.tool_format,
            tools=tools,
            truncated=truncated,
            opens_thinking=self.opens_thinking,
            first_call=first_call,
            thinking=self.thinking_calls,
        )

    def encode_reply(self, text: str, *, ended: bool = True) -> IntArray:
        """Ids (C,) int32 of a reply written by hand, as if sampled: control tokens in it count.

        `ended`: with the token a model would end it with. For scripts and supervised data; never for what a model
        sampled.
        """
        ids = self.tokenizer.encode_control(text)
        if ended:
            calls = self.ends.are_markers and bool(self.parse(text).calls)
            ids = [*ids, self.ends.after(calls=calls).id]
        return np.array(ids, np.int32)

    def supervised(self, messages: Sequence[Message], tools: Tools = ()) -> MaskedIds:
        """Ids and mask of a written conversation: 1 exactly on what the assistant says and its end-of-turn tokens.

        The ids are those an engine would have seen, prompt by prompt. A last assistant turn ends with its end-of-turn
        token. Mask by prefix difference: no template markers are needed.

        Raises:
            TemplateError: the template rewrites history, or does not render one of the texts.
            ValueError: no assistant message: nothing to imitate.
        """
        ids: list[int] = []
        mask: list[int] = []
        shapes = tuple(map(self.template.shape_of, messages))
        for program, sampled_from, sampled_to in self._written_stretches(shapes, tools_key(tools)):
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

    def _compile_prompt(self, shapes: tuple[Shape, ...], key: str) -> Program:
        may_drop = () if self.history is History.APPEND else ("reasoning",)
        return self._renderer.prompt(shapes, json.loads(key), may_drop=may_drop)

    def _compile_suffix(self, shapes: tuple[Shape, ...]) -> Program:
        _refuse_assistant(shape.role for shape in shapes)
        return compile_pieces(self.tokenizer, after_reply(self._renderer.checked((*BASE, *shapes), ())))

    def _compile_written(self, shapes: tuple[Shape, ...], key: str) -> tuple[Stretch, ...]:
        return compile_written(self._renderer, self.ends, shapes, json.loads(key))

    def _compile_shows(self, shape: Shape) -> bool:
        return shows(self._renderer, shape, separate=self._separates_thinking)

    def _settle(self, wanted: History) -> History:
        """The way prompts are made, checked.

        Raises:
            TemplateError: the template cannot be used in that way.
        """
        if wanted is not History.SPLIT:
            self.history = History.APPEND
            try:
                check_append_only(self)
            except RewritesHistoryError:
                if wanted is History.APPEND:
                    raise
            else:
                return History.APPEND
        self.history = History.KEEP if wanted is History.KEEP else History.SPLIT
        check = check_kept if wanted is History.KEEP else check_split
        check(self)
        return self.history

    def _find_generation_prompt(self) -> str:
        without, with_prompt = (
            self.template.skeleton(BASE[:1], (), generation_prompt=wanted) for wanted in (False, True)
        )
        if not with_prompt.startswith(without) or with_prompt == without:
            raise TemplateError(
                "the chat template writes no generation prompt: it must append the assistant's header "
                "when add_generation_prompt is true"
            )
        return with_prompt[len(without) :]


def is_long(messages: Iterable[Message]) -> bool:
    """True if tokenising these messages takes milliseconds: do it in a thread, off the event loop."""
    return sum(len(message.text) + _MESSAGE_CHARS for message in messages) > LONG_TEXT_CHARS


def _refuse_assistant(roles: Iterable[str]) -> None:
    if any(role == Role.ASSISTANT for role in roles):
        raise TemplateError("an observation holds an assistant message; only the policy speaks as the assistant")
