"""The start-up check: prompts built by appending must equal the template's own full render, text and ids."""

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
    "Training needs prompts that only grow. Give a template that keeps history as it was sampled: "
    "chat_template.jinja in the model folder, or ChatFormat.from_folder(…, template=…)"
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


class Conversation(NamedTuple):
    """A prompt, then (what the policy says, what it is answered) in turn."""

    prompt: tuple[Message, ...]
    turns: tuple[tuple[str, tuple[Message, ...]], ...]
    tools: Tools


def check_append_only(chat: ChatFormat) -> bool:
    """Check a format on probe conversations. Returns whether its template shows tools to the model.

    Raises:
        TemplateError: some prompt built by appending differs from the full render; says where.
    """
    for conversation in probe_conversations(opens_thinking=chat.opens_thinking):
        if conversation.prompt[0].role == "system" and not _renders(chat, conversation.prompt):
            continue  # templates without a system turn refuse it when it is used
        check_conversation(chat, conversation)
    return _TOOL_NAME in chat.render([Message.user("-")], _TOOLS)


def probe_conversations(*, opens_thinking: bool) -> list[Conversation]:
    """With and without system turn and tools; replies with calls and thinking; tool and user turns, one or several."""
    begin = "" if opens_thinking else f"{THINK_OPEN}\n"

    def thinking(plan: str, rest: str) -> str:
        return f"{begin}{plan}\n{THINK_CLOSE}\n\n{rest}"

    plain: Callable[[str], str] = (lambda text: thinking("Well.", text)) if opens_thinking else str
    answer, again = Message.tool("5", call=_CALL), Message.tool("busy", call=_CALL)
    turns = (
        (plain(_CALL_TEXT), (answer,)),
        (thinking("Both, then.", "Twice:\n" + _CALL_TEXT), (answer, again)),
        (plain("It is 5."), (Message.user("And then?"),)),
        (thinking("Add one.", "It is 6."), (Message.user("Sure?"),)),
        (plain(_CALL_TEXT), (answer, Message.user("Hurry."))),
    )
    question = Message.user("What is 2 + 3?")
    system = Message.system("Be brief.")
    return [
        Conversation(prompt, turns, tools) for prompt in ((question,), (system, question)) for tools in ((), _TOOLS)
    ]


def check_conversation(chat: ChatFormat, conversation: Conversation) -> None:
    """Compare both ways of building every prompt of a conversation.

    A reply may be given to the template whole, as its content, or taken apart into reasoning and content: it is
    enough that one way is kept.

    Raises:
        TemplateError: neither is.
    """
    errors: list[TemplateError] = []
    for as_message in (Message.assistant, _taken_apart, _reopened):
        try:
            _compare(chat, conversation, as_message)
        except TemplateError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _compare(chat: ChatFormat, conversation: Conversation, as_message: Callable[[str], Message]) -> None:
    messages = list(conversation.prompt)
    text = chat.render(messages, conversation.tools)
    _compare_ids(chat, chat.first_prompt(messages, conversation.tools).tolist(), text, beginning=True)
    for reply, observation in conversation.turns:
        messages += [as_message(reply), *observation]
        longer = chat.render(messages, conversation.tools)
        expected = text + reply + chat.end_of_turn.text
        if not longer.startswith(expected):
            raise _rewritten(expected, longer)
        sampled = chat.encode_reply(reply).tolist()
        appended = sampled + chat.suffix(observation, completion_ids=sampled).tolist()
        _compare_ids(chat, appended, longer[len(text) :], beginning=False)
        text = longer


def _compare_ids(chat: ChatFormat, ids: Sequence[int], text: str, *, beginning: bool) -> None:
    expected = chat.tokenizer.encode_control(text)
    begin = list(chat.tokenizer.bos_ids) if beginning else []
    if begin and expected[: len(begin)] != begin:
        expected = begin + expected
    if list(ids) != expected:
        raise TemplateError(
            f"the tokenizer gives other ids piece by piece than for the whole text {text[:200]!r}: "
            f"{chat.decode(ids)[:200]!r}. {_ADVICE}"
        )


def _rewritten(expected: str, rendered: str) -> TemplateError:
    pairs = zip(expected, rendered, strict=False)
    at = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(rendered)))
    return TemplateError(
        "the chat template rewrites history: after a further turn the prompt should still read "
        f"{expected[max(0, at - 30) : at + 50]!r}, but it reads {rendered[max(0, at - 30) : at + 50]!r}. {_ADVICE}"
    )


def _taken_apart(reply: str) -> Message:
    reasoning, close, content = reply.partition(THINK_CLOSE)
    if not close:
        return Message.assistant(reply)
    return Message.assistant(content.lstrip("\n"), reasoning=reasoning.removeprefix(THINK_OPEN).strip("\n"))


def _reopened(reply: str) -> Message:
    return Message.assistant(f"{THINK_OPEN}\n{reply}")


def _renders(chat: ChatFormat, messages: Sequence[Message]) -> bool:
    try:
        chat.render(messages)
    except TemplateError:
        return False
    return True
