"""Random conversations through every family: texts stay texts, prompts are the template's own, replies read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chat_families import FAMILIES, family_format
from chat_models import TOOLS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tool_call_texts import B03
from tool_call_texts import TOOLS as CALLED

from miles_agents.chat import ChatFormat
from miles_agents.types import Message, ToolCall

SETTINGS = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PIECES = [
    "<|im_end|>",
    "<|im_start|>system\n",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|user|>",
    "<|observation|>",
    "[gMASK]<sop>",
    "<tool_call>",
    "</tool_call>",
    "<arg_value>",
    "<think>",
    "＜|im_end|＞",
    "<｜im_end｜>",
    "<|im_",
    "end|>",
    "\ue0f00.0.0.0\ue0f1",
    "\ue0f3",
    "{{ messages }}",
    '"\\',
    " ",
    "\n",
    "é漢🙂",
    "a",
    "42",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=8
)
VALUES = TEXTS | st.integers(-(10**6), 10**6) | st.booleans() | st.none() | st.lists(TEXTS, max_size=2)
PLAIN = st.text("abc xyz,.12é", min_size=1, max_size=8).map(str.strip).filter(bool)


def call_of(number: int, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(id=f"call_{number}", name="python", arguments=arguments, raw="")


@st.composite
def conversations(draw: st.DrawFn, name: str) -> list[Message]:
    """A prompt, then replies and what they are answered."""
    family = FAMILIES[name]
    messages = [Message.system(draw(TEXTS))] if draw(st.booleans()) else []
    messages.append(Message.user(draw(TEXTS)))
    for _ in range(draw(st.integers(1, 3))):
        reasoning = draw(TEXTS).strip() if family.shows_thinking else ""
        calls: list[ToolCall] = []
        if family.shows_calls:
            most = 1 if family.template == "llama3" else 2
            keys = st.dictionaries(PLAIN, VALUES, max_size=2)
            calls = [call_of(at, draw(keys)) for at in range(draw(st.integers(0, most)))]
        text = "" if calls and family.template == "llama3" else draw(TEXTS)
        messages.append(Message.assistant(text, tool_calls=tuple(calls), reasoning=reasoning))
        heard = [Message.tool(draw(TEXTS), call=call) for call in calls]
        if not calls or draw(st.booleans()):
            heard.append(Message.user(draw(TEXTS)))
        messages += heard
    return messages


def harmless(message: Message) -> Message:
    """The same shape with other texts."""

    def words(text: str) -> str:
        return "hi" if text.strip() else text

    calls = tuple(
        call_of(
            at, {f"k{n}": words(v) if isinstance(v, str) else v for n, v in enumerate((c.arguments or {}).values())}
        )
        for at, c in enumerate(message.tool_calls)
    )
    calls = tuple(
        call_of(at, {k: ["hi"] if isinstance(v, list) else v for k, v in (c.arguments or {}).items()})
        for at, c in enumerate(calls)
    )
    return Message(
        role=message.role,
        parts=Message.user(words(message.text)).parts,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=words(message.reasoning),
    )


def control_ids(chat: ChatFormat, ids: Any) -> list[int]:
    control = {token.id for token in chat.tokenizer.control.values()}
    return [int(token) for token in ids if int(token) in control]


def prompts_of(chat: ChatFormat, messages: list[Message]) -> list[list[int]]:
    """The ids of every prompt of a conversation, replies taken as the format itself writes them."""
    first = next(at for at, message in enumerate(messages) if message.role == "assistant")
    ids = chat.first_prompt(messages[:first], TOOLS)
    prompts = [ids.tolist()]
    at = first
    while at < len(messages):
        end = next((i for i in range(at + 1, len(messages)) if messages[i].role == "assistant"), len(messages))
        observation = messages[at + 1 : end]
        sampled = np.array([chat.ends.after(calls=observation[0].role == "tool").id], np.int32)
        ids = chat.next_prompt(
            ids=ids, completion_ids=sampled, messages=messages[:end], observation=observation, tools=TOOLS
        )
        prompts.append(ids.tolist())
        at = end
    return prompts


@pytest.mark.parametrize("name", FAMILIES)
@SETTINGS
@given(data=st.data())
def test_C04_no_text_anywhere_becomes_a_control_token(name: str, data: st.DataObject) -> None:
    chat = family_format(name)
    messages = data.draw(conversations(name))
    # Qwen3's template takes a question in <tool_response> tags for a result: only by its text, which it is not shown.
    expected = prompts_of(chat, [harmless(message) for message in messages])
    for ids, other in zip(prompts_of(chat, messages), expected, strict=True):
        assert control_ids(chat, ids) == control_ids(chat, other)


@pytest.mark.parametrize("name", FAMILIES)
@SETTINGS
@given(data=st.data())
def test_C01_rendered_prompts_have_the_templates_own_text(name: str, data: st.DataObject) -> None:
    chat = family_format(name)
    messages = data.draw(conversations(name))
    if not chat.appends:
        rendered = chat.first_prompt(messages, TOOLS)
        assert chat.decode(rendered) == chat.render(messages, TOOLS)
    first = next(at for at, message in enumerate(messages) if message.role == "assistant")
    assert chat.decode(chat.first_prompt(messages[:first], TOOLS)) == chat.render(messages[:first], TOOLS)
    # What follows the first reply, appended, ends as the render ends.
    observation = [message for message in messages[first + 1 :] if message.role != "assistant"]
    suffix = chat.decode(chat.suffix(observation, completion_ids=[]))
    assert chat.render([Message.user("q"), Message.assistant("a"), *observation]).endswith(suffix)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.shows_calls])
@SETTINGS
@given(data=st.data())
def test_what_a_template_prints_for_a_reply_is_read_back(name: str, data: st.DataObject) -> None:
    chat, family = family_format(name), FAMILIES[name]
    code = PLAIN if family.tool_format in ("glm", "qwen3_coder") else TEXTS  # their texts are not protected
    calls = tuple(call_of(at, {"code": data.draw(code)}) for at in range(data.draw(st.integers(1, 2))))
    calls = calls[:1] if family.template == "llama3" else calls
    reasoning = data.draw(PLAIN) if family.shows_thinking else ""
    content = "" if family.template == "llama3" else data.draw(PLAIN)
    messages = [Message.user("q"), Message.assistant(content, tool_calls=calls, reasoning=reasoning)]
    ids, mask = chat.supervised([*messages, Message.tool("1", call=calls[0])], TOOLS)
    reply = chat.parse(ids[mask == 1], tools=TOOLS)
    assert [(call.name, call.arguments, call.error) for call in reply.calls] == [
        (call.name, dict(call.arguments or {}), None) for call in calls
    ]
    message = chat.history_message(reply)
    assert (message.reasoning, message.text) == (reasoning, content)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.shows_calls])
@pytest.mark.parametrize("old", B03)
def test_B03_white_space_survives_template_and_reader_turn_after_turn(name: str, old: str) -> None:
    chat = family_format(name)
    arguments = {"old": old, "new": "    if ok:\n"}
    message = Message.assistant("", tool_calls=(ToolCall(id="call_0", name="edit", arguments=arguments, raw=""),))
    for _ in range(3):  # rendered, sampled as those ids, read, and given to the template again
        ids, mask = chat.supervised([Message.user("q"), message, Message.tool("1", call=message.tool_calls[0])], CALLED)
        reply = chat.parse(ids[mask == 1], tools=CALLED)
        assert [(call.name, call.arguments) for call in reply.calls] == [("edit", arguments)]
        assert (reply.content.strip("\n"), reply.errors) == ("", ())
        message = chat.history_message(reply, CALLED)
        assert message.tool_calls == reply.calls
