"""The start-up checks: the prompts made turn by turn against the template's own full render, text and ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from miles_agents.chat.parsing import THINK_CLOSE, THINK_OPEN
from miles_agents.chat.template import Tools
from miles_agents.errors import TemplateError
from miles_agents.types import Message, ToolCall

if TYPE_CHECKING:
    from miles_agents.chat.format import ChatFormat

_ADVICE = (
    'Let prompts be rendered anew (history="split") or thinking be kept (history="keep"), or give a template that '
    "keeps history as it was sampled: chat_template.jinja in the model folder, or ChatFormat.from_folder(…, template=…)"
)
_TOOL_NAME = "probe_tool"
_TOOLS: Tools = (
    {
        "type": "function",
        "function": {
            "name": _TOOL_NAME,
            "description": "Look it up.",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        },
    },
)
_CALL = ToolCall(id="call_0", name=_TOOL_NAME, arguments={"x": 2}, raw="")
_CALL_TEXT = f'<tool_call>\n{{"name": "{_TOOL_NAME}", "arguments": {{"x": 2}}}}\n</tool_call>'


class RewritesHistoryError(TemplateError):
    """A template does not only append."""


class Said(NamedTuple):
    """A reply, taken apart."""

    reasoning: str
    content: str
    calls: tuple[ToolCall, ...] = ()

    def text(self, *, opens_thinking: bool) -> str:
        """As a Hermes-style model writes it."""
        parts = [self.content] if self.content else []
        written = "\n".join([*parts, *(_CALL_TEXT for _ in self.calls)])
        if not self.reasoning:
            return written
        begin = "" if opens_thinking else f"{THINK_OPEN}\n"
        return f"{begin}{self.reasoning}\n{THINK_CLOSE}\n\n{written}"

    def message(self) -> Message:
        """As an assistant message."""
        return Message.assistant(self.content, tool_calls=self.calls, reasoning=self.reasoning)


class Conversation(NamedTuple):
    """A prompt, then (what the policy says, what it is answered) in turn."""

    prompt: tuple[Message, ...]
    turns: tuple[tuple[Said, tuple[Message, ...]], ...]
    tools: Tools


def probe_conversations(chat: ChatFormat) -> list[Conversation]:
    """With and without system turn and tools; replies with calls and thinking; tool and user turns, one or several.

    A system turn is left out where the template refuses it; it is refused again when it is used.
    """
    plain = "Well." if chat.opens_thinking else ""
    answer, again = Message.tool("5", call=_CALL), Message.tool("busy", call=_CALL)
    turns = (
        (Said(plain, "", (_CALL,)), (answer,)),
        (Said("Both, then.", "Twice:", (_CALL,)), (answer, again)),
        (Said(plain, "It is 5."), (Message.user("And then?"),)),
        (Said("Add one.", "It is 6."), (Message.user("Sure?"),)),
        (Said(plain, "", (_CALL,)), (answer, Message.user("Hurry."))),
    )
    question = Message.user("What is 2 + 3?")
    prompts: list[tuple[Message, ...]] = [(question,)]
    if renders(chat, [Message.system("Be brief."), question]):
        prompts.append((Message.system("Be brief."), question))
    return [Conversation(prompt, turns, tools) for prompt in prompts for tools in ((), _TOOLS)]


def shows_tools(chat: ChatFormat) -> bool:
    """True if the template puts tool schemas into the prompt."""
    return _TOOL_NAME in chat.render([Message.user("-")], _TOOLS)


def renders(chat: ChatFormat, messages: Sequence[Message]) -> bool:
    """True if the template takes these messages."""
    try:
        chat.render(messages)
    except TemplateError:
        return False
    return True


def check_append_only(chat: ChatFormat) -> None:
    """Prompts made by appending must equal the template's full renders.

    A reply may be given to the template whole, as its content, or taken apart into thinking, content and calls: it is
    enough that one way is kept.

    Raises:
        RewritesHistoryError: the template does not only append; says where.
        TemplateError: the tokenizer gives other ids piece by piece.
    """
    for conversation in probe_conversations(chat):
        _one_way(chat, conversation, _compare_appended)


def check_kept(chat: ChatFormat) -> None:
    """Between a full render and what is made by appending, only the assistant's stretches may differ.

    Raises:
        TemplateError: something else does.
    """
    for conversation in probe_conversations(chat):
        _one_way(chat, conversation, _compare_kept)


def check_split(chat: ChatFormat) -> None:
    """Every prompt must have the ids of the template's full render of the messages so far.

    Raises:
        TemplateError: it has others, or the template drops a text other than thinking.
    """
    for conversation in probe_conversations(chat):
        messages = list(conversation.prompt)
        _compare_prompt(chat, messages, conversation.tools)
        for said, observation in conversation.turns:
            message = said.message()
            if not chat.shows(message):
                message = Message.assistant(said.content or "Call.")  # tags in a text are words, so have other ids
            messages += [message, *observation]
            _compare_prompt(chat, messages, conversation.tools)


_AsMessage = Callable[[Said, str], Message]
_Compare = Callable[["ChatFormat", Conversation, _AsMessage | None], None]


def _one_way(chat: ChatFormat, conversation: Conversation, compare: _Compare) -> None:
    errors: list[TemplateError] = []
    for as_message in (_whole, _taken_apart, _reopened, None):
        try:
            compare(chat, conversation, as_message)
        except TemplateError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _whole(said: Said, text: str) -> Message:
    return Message.assistant(text)


def _taken_apart(said: Said, text: str) -> Message:
    return Message.assistant(said._replace(reasoning="").text(opens_thinking=False), reasoning=said.reasoning)


def _reopened(said: Said, text: str) -> Message:
    return Message.assistant(f"{THINK_OPEN}\n{text}")


def _compare_appended(chat: ChatFormat, conversation: Conversation, as_message: _AsMessage | None) -> None:
    """`as_message=None`: the reply is whatever the template prints for the parts, if it prints them all."""
    messages = list(conversation.prompt)
    text = _compare_prompt(chat, messages, conversation.tools)
    for said, observation in conversation.turns:
        reply = said.text(opens_thinking=chat.opens_thinking)
        messages += [as_message(said, reply) if as_message else said.message(), *observation]
        longer = chat.render(messages, conversation.tools)
        if as_message is None:
            reply = _printed(chat, said, text, longer)
        end = len(text) + len(reply)
        if not longer.startswith(text + reply) or chat.ends.find(longer, end) != end:
            raise _rewritten(text + reply + chat.end_of_turn.text, longer)
        suffix = chat.suffix(observation, completion_ids=())
        _compare_ids(chat, [*chat.encode_reply(reply, ended=False), *suffix], longer[len(text) :])
        text = longer


def _compare_kept(chat: ChatFormat, conversation: Conversation, as_message: _AsMessage | None) -> None:
    messages = list(conversation.prompt)
    header = _header_chars(chat)
    fixed = [_compare_prompt(chat, messages, conversation.tools)]
    for said, observation in conversation.turns:
        reply = said.text(opens_thinking=chat.opens_thinking)
        messages += [as_message(said, reply) if as_message else said.message(), *observation]
        fixed.append(_suffix_text(chat, observation))
        _compare_ids(chat, chat.suffix(observation, completion_ids=()).tolist(), fixed[-1])
    rendered = chat.render(messages, conversation.tools)
    at = 0
    for index, text in enumerate(fixed):
        shown = text if index == len(fixed) - 1 else text[: len(text) - header]
        if at < 0 or not rendered.startswith(shown, at):
            raise _rewritten(rendered[: max(at, 0)] + shown, rendered)
        at = chat.ends.find(rendered, at + len(shown))


def _suffix_text(chat: ChatFormat, observation: Sequence[Message]) -> str:
    question = [Message.user("-")]
    rendered = chat.render([*question, Message.assistant("-"), *observation])
    return rendered[chat.ends.find(rendered, len(chat.render(question)) - len(chat.generation_prompt)) :]


def _header_chars(chat: ChatFormat) -> int:
    """How much of the generation prompt's end is not before earlier replies: thinking it opens, or an empty pair."""
    question = [Message.user("-")]
    without = len(chat.render(question)) - len(chat.generation_prompt)
    earlier = chat.render([*question, Message.assistant("-"), *question])[without:]
    return len(chat.generation_prompt) - _shared(chat.generation_prompt, earlier)


def _printed(chat: ChatFormat, said: Said, text: str, longer: str) -> str:
    end = chat.ends.find(longer, len(text))
    printed = longer[len(text) : end] if end >= 0 and longer.startswith(text) else ""
    wanted = [said.reasoning, said.content, *(call.name for call in said.calls)]
    if not all(each in printed for each in wanted):
        raise _rewritten(text + "".join(wanted), longer)
    return printed


def _compare_prompt(chat: ChatFormat, messages: Sequence[Message], tools: Tools) -> str:
    """Returns the text of the prompt."""
    text = chat.render(messages, tools)
    ids = chat.first_prompt(messages, tools).tolist()
    begin = list(chat.tokenizer.bos_ids)
    if begin and chat.tokenizer.encode_control(text)[: len(begin)] != begin:
        ids = ids[len(begin) :]
    _compare_ids(chat, ids, text)
    return text


def _compare_ids(chat: ChatFormat, ids: Sequence[int], text: str) -> None:
    if list(ids) != chat.tokenizer.encode_control(text):
        raise TemplateError(
            f"the tokenizer gives other ids piece by piece than for the whole text {text[:200]!r}: "
            f"{chat.decode(ids)[:200]!r}. {_ADVICE}"
        )


def _shared(text: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = zip(text, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(text), len(other)))


def _rewritten(expected: str, rendered: str) -> RewritesHistoryError:
    at = _shared(expected, rendered)
    return RewritesHistoryError(
        "the chat template rewrites history: after a further turn the prompt should still read "
        f"{expected[max(0, at - 30) : at + 50]!r}, but it reads {rendered[max(0, at - 30) : at + 50]!r}. {_ADVICE}"
    )
