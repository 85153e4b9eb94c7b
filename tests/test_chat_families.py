"""Families of chat templates: prompts against full renders, and which tokens are the policy's. Cases C01, C07."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from chat_episodes import play_dialogue
from chat_families import APPENDING, FAMILIES, family_format, make
from chat_models import TOOLS, byte_level_spec

from miles_agents.chat import ChatFormat
from miles_agents.errors import NoTrainableTokensError, TemplateError
from miles_agents.types import (
    EpisodeStatus,
    Message,
    StopReason,
    ToolCall,
    TrainingSample,
    Trajectory,
    Turn,
    VersionSpan,
    collate_samples,
)

CALL = ToolCall(id="call_0", name="python", arguments={"code": "1"}, raw="")
C07 = (Message.user("hi"), Message.assistant("ok"), Message.tool("3"), Message.assistant("done"))
LLAMA_SYSTEM = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\n<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n"
)


def as_sampled(name: str, text: str) -> str:
    """A reply without thinking as a model of this family samples it."""
    return f"\n<think></think>\n{text}" if FAMILIES[name].template == "glm" else text


def play(
    chat: ChatFormat,
    prompt: Sequence[Message],
    turns: Sequence[tuple[str, Message, Sequence[Message]]],
    tools: Any = (),
) -> list[tuple[list[int], list[Message]]]:
    """(prompt ids, messages) of each turn; `turns`: what is sampled, its message, what it is answered."""
    messages = list(prompt)
    ids = chat.first_prompt(messages, tools)
    prompts = [(ids.tolist(), list(messages))]
    for text, message, observation in turns:
        sampled = chat.encode_reply(text, ended=False)
        end = chat.ends.after(calls=observation[0].role == "tool").id
        messages += [message, *observation]
        ids = chat.next_prompt(
            ids=ids,
            completion_ids=np.array([*sampled, end], np.int32),
            messages=messages,
            observation=observation,
            tools=tools,
        )
        prompts.append((ids.tolist(), list(messages)))
    return prompts


# --- case C01 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("system", [False, True], ids=["no system", "system"])
def test_C01_every_prompt_is_the_full_render_but_for_what_the_assistant_said(
    name: str, tools: Any, system: bool
) -> None:
    chat = family_format(name)
    prompt = [*([Message.system("Be brief.")] if system else []), Message.user("What is 2 + 3?")]
    said = ["Let me see.", "call", "It is 5.", "yes"]
    answers = [
        (Message.tool("5", call=CALL),),
        (Message.tool("busy", call=CALL), Message.tool("5", call=CALL)),
        (Message.user("Sure?\n\n"),),
        (Message.user("Why?"), Message.tool("", call=CALL)),
    ]
    turns = [
        (as_sampled(name, text), Message.assistant(text), heard) for text, heard in zip(said, answers, strict=True)
    ]
    for index, (ids, messages) in enumerate(play(chat, prompt, turns, tools)):
        rendered = chat.render(messages, tools)
        if FAMILIES[name].mode == "keep":
            shown = chat.decode(ids)
            for text in said[:index]:  # the only stretches that may differ
                shown = shown.replace(as_sampled(name, text), "…", 1)
                rendered = rendered.replace(as_sampled(name, text), "…", 1).replace(text, "…", 1)
            assert shown == rendered
        else:
            assert ids == chat.tokenizer.encode_control(rendered)
            assert chat.decode(ids) == rendered


@pytest.mark.parametrize("name", FAMILIES)
def test_C01_families_are_recognised(name: str) -> None:
    chat, family = family_format(name), FAMILIES[name]
    assert chat.history == family.mode
    assert chat.appends == (family.mode != "split")
    assert (chat.ends.before_user.text, chat.ends.before_tool.text) == family.ends
    assert chat.tool_format.name == family.tool_format
    assert {chat.tokenizer.id_of(text) for text in (*family.eos, *family.ends)} == set(chat.stop_token_ids)


def test_C01_llama3_by_hand() -> None:
    chat = family_format("llama3")
    prompt = [Message.user(" q1 ")]
    call = '{"name": "python", "parameters": {"code": "1"}}'
    (_, (ids, messages)) = play(
        chat, prompt, [(call, Message.assistant("", tool_calls=(CALL,)), [Message.tool('"4"')])]
    )
    expected = (
        LLAMA_SYSTEM + f"q1<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{call}<|eot_id|>"
        '<|start_header_id|>ipython<|end_header_id|>\n\n"\\"4\\""<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert chat.decode(ids) == expected == chat.render(messages)


def test_C01_llama3_another_sampled_end_of_turn_stays_and_is_not_doubled() -> None:
    chat = family_format("llama3")
    eom, eot = (chat.tokenizer.id_of(text) for text in ("<|eom_id|>", "<|eot_id|>"))
    heard = [Message.tool("4")]
    after_eot = chat.suffix(heard, completion_ids=[10, eot]).tolist()
    assert chat.suffix(heard, completion_ids=[10, eom]).tolist() == after_eot
    assert chat.suffix(heard, completion_ids=[10]).tolist() == [eot, *after_eot]
    # What ends generation but no turn, says the template, leaves the turn open.
    over = chat.tokenizer.id_of("<|end_of_text|>")
    assert chat.suffix(heard, completion_ids=[10, over]).tolist() == [eot, *after_eot]
    ipython = make("llama3", variables={"environment": "ipython"})
    assert ipython.ends.before_user.text == "<|eot_id|>"


def test_C01_glm_by_hand() -> None:
    chat = family_format("glm")
    call = "\n<think>why</think>\n<tool_call>python\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    turns = [
        (call, Message.assistant("", tool_calls=(CALL,), reasoning="why"), [Message.tool("4"), Message.tool("5")]),
        ("\n<think>w2</think>\nA2", Message.assistant("A2", reasoning="w2"), [Message.user("q2")]),
    ]
    ids, messages = play(chat, [Message.system("s"), Message.user("q1")], turns)[-1]
    expected = (
        f"[gMASK]<sop><|system|>\ns<|user|>\nq1<|assistant|>{call}<|observation|>\n<tool_response>\n4\n</tool_response>"
        "\n<tool_response>\n5\n</tool_response><|assistant|>\n<think>w2</think>\nA2<|user|>\nq2<|assistant|>"
    )
    assert chat.decode(ids) == expected == chat.render(messages)


@pytest.mark.parametrize("name", ["glm", "glm-keep"])
def test_a_sampled_marker_of_the_next_turn_is_written_once_and_trained(name: str) -> None:
    chat = family_format(name)
    observation, user = (chat.tokenizer.id_of(text) for text in ("<|observation|>", "<|user|>"))
    first = chat.first_prompt([Message.user("q")])
    sampled = np.array([*chat.encode_reply("\n<think></think>\nx", ended=False), observation], np.int32)
    heard = [Message.tool("4")]
    second = chat.next_prompt(ids=first, completion_ids=sampled, messages=(), observation=heard)
    assert second.tolist().count(observation) == 1
    turns = tuple(
        Turn(
            prompt_ids=prompt,
            completion_ids=completion,
            logprobs=np.full(len(completion), -1.0, np.float32),
            stop_reason=StopReason.STOP,
            versions=(VersionSpan(0, 0, len(completion)),),
        )
        for prompt, completion in ((first, sampled), (second, np.array([user], np.int32)))
    )
    trajectory = Trajectory(id="t", task_id="t", group_id="g", turns=turns, status=EpisodeStatus.COMPLETED, reward=1.0)
    (sample,) = trajectory.samples()
    marker = len(first) + len(sampled) - 1
    assert sample.ids[marker] == observation
    assert sample.mask[marker - 1 : marker + 2].tolist() == [1, 1, 0]
    assert sample.mask[-1] == 1
    assert int(sample.mask.sum()) == len(sampled) + 1


def test_a_sampled_marker_stays_where_another_speaker_answers() -> None:
    chat = family_format("glm")
    user = chat.tokenizer.id_of("<|user|>")
    to_tool = chat.suffix([Message.tool("4")], completion_ids=[10, user])
    assert chat.decode(to_tool).startswith("<|observation|>\n<tool_response>")
    cut = chat.suffix([Message.user("go on")], completion_ids=[10])
    assert chat.decode(cut) == "<|user|>\ngo on<|assistant|>"
    assert chat.suffix([Message.user("go on")], completion_ids=[10, user]).tolist() == cut.tolist()[1:]


@pytest.mark.parametrize(("calls", "end"), [("", "<|user|>"), ("c", "<|observation|>")])
def test_a_written_reply_ends_with_the_marker_its_answer_begins_with(calls: str, end: str) -> None:
    chat = make("glm", tool_format="hermes")
    text = 'x<tool_call>\n{"name": "python", "arguments": {}}\n</tool_call>' if calls else "x"
    ids = chat.encode_reply(text)
    assert chat.decode(ids) == text + end
    assert chat.parse(ids).text == chat.parse(text + end).text == text


@pytest.mark.parametrize("name", FAMILIES)
def test_families_work_with_the_starter_models_kind_of_tokenizer(name: str) -> None:
    """No word splitting: nearly any two pieces of text could merge where they meet."""
    chat = make(name, spec=byte_level_spec(splits_words=False))
    prompt = [Message.system("Be brief."), Message.user("What is 2 + 3?")]
    turns = [(as_sampled(name, "It is 5."), Message.assistant("It is 5."), [Message.tool("5", call=CALL)])]
    ids, messages = play(chat, prompt, turns, TOOLS)[-1]
    if FAMILIES[name].mode != "keep":
        assert chat.decode(ids) == chat.render(messages, TOOLS)


# --- case C05 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
async def test_C05_a_text_sampled_in_unusual_tokens_is_trained_in_those(name: str) -> None:
    chat = family_format(name)
    usual = chat.encode_reply("answer", ended=False).tolist()
    unusual = [chat.tokenizer.id_of(letter) for letter in "answer"]
    assert len(usual) < len(unusual)
    sampled = [*unusual, chat.ends.before_tool.id]
    trajectory, seen = await play_dialogue(chat, [sampled, sampled], [[Message.tool("4")]])
    trained = [token for sample in trajectory.samples() for token in sample.ids[sample.mask == 1].tolist()]
    assert trained == sampled * 2
    logprobs = [value for sample in trajectory.samples() for value in sample.logprobs[sample.mask == 1].tolist()]
    assert logprobs == [value for _, _, sampled_logprobs in seen for value in sampled_logprobs]


# --- case C07 ---------------------------------------------------------------------------------------------------------

PAIR = "<think>\n\n</think>\n\n"  # printed by Qwen3's template itself, in a reply that ends the conversation
HERMES = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
CODER = "<tool_call>\n<function=python>\n<parameter=code>\n1\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>python\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
QWEN_GOLD = (["ok<|im_end|>", f"{PAIR}done<|im_end|>"], [f"So\n{HERMES}<|im_end|>", f"{PAIR}7<|im_end|>"])
GLM_GOLD = (
    ["\n<think></think>\nok<|observation|>", "\n<think></think>\ndone<|user|>"],
    [f"\n<think></think>\nSo\n{GLM}<|observation|>", "\n<think></think>\n7<|user|>"],
)
GOLD = {
    "chatml": (["ok<|im_end|>", "done<|im_end|>"], [f"So\n{HERMES}<|im_end|>", "7<|im_end|>"]),
    "smollm2": (["ok<|im_end|>", "done<|im_end|>"], None),
    "qwen3-split": QWEN_GOLD,
    "qwen3-keep": QWEN_GOLD,
    "qwen3-coder": (["ok<|im_end|>", "done<|im_end|>"], [f"So\n{CODER}<|im_end|>", "7<|im_end|>"]),
    "llama3": (
        ["ok<|eot_id|>", "done<|eot_id|>"],
        ['{"name": "python", "parameters": {"code": "1"}}<|eot_id|>', "7<|eot_id|>"],
    ),
    "glm": GLM_GOLD,
    "glm-split": GLM_GOLD,
    "glm-keep": GLM_GOLD,
}


def spans(chat: ChatFormat, ids: Any, mask: Any) -> list[str]:
    """The decoded stretches of mask 1."""
    cuts = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    return [chat.decode(ids[start:end]) for start, end in cuts.reshape(-1, 2)]


@pytest.mark.parametrize("name", FAMILIES)
def test_C07_golden_masks(name: str) -> None:
    chat, (plain, with_call) = family_format(name), GOLD[name]
    ids, mask = chat.supervised(C07)
    assert spans(chat, ids, mask) == plain
    assert mask[-1] == 1  # no ending is left out, none runs on to the end of the sequence
    text = "" if name == "llama3" else "So"  # Llama 3 has no words beside a call
    messages = [Message.user("q"), Message.assistant(text, tool_calls=(CALL,)), Message.tool("3", call=CALL)]
    messages.append(Message.assistant("7"))
    if with_call is None:
        with pytest.raises(TemplateError, match="drops the call name"):
            chat.supervised(messages, TOOLS)
    else:
        assert spans(chat, *chat.supervised(messages, TOOLS)) == with_call


@pytest.mark.parametrize("name", FAMILIES)
def test_C07_nothing_is_the_assistants_in_a_conversation_that_goes_on(name: str) -> None:
    chat = family_format(name)
    ids, mask = chat.supervised([*C07[:3], Message.user("more")])
    (span,) = spans(chat, ids, mask)
    assert span.removesuffix(FAMILIES[name].ends[1]).endswith("ok")
    assert chat.decode(ids[np.flatnonzero(mask)[-1] + 1 :]).count("more") == 1


@pytest.mark.parametrize("name", APPENDING)
def test_C07_written_ids_are_those_an_engine_would_have_seen(name: str) -> None:
    chat = family_format(name)
    conversation = [*C07[:3], Message.assistant("fine"), Message.user("more")]
    ids, mask = chat.supervised(conversation)
    sampled = np.flatnonzero(mask)
    cut = int(sampled[np.flatnonzero(np.diff(sampled) > 1)[0]]) + 1
    first = chat.first_prompt(conversation[:1])
    completion = ids[len(first) : cut]
    second = chat.next_prompt(ids=first, completion_ids=completion, messages=(), observation=conversation[2:3])
    assert ids[: len(second)].tolist() == second.tolist()


def test_C07_replies_that_a_marker_template_cannot_set_apart_are_told_apart_all_the_same() -> None:
    chat = family_format("glm")
    two = [Message.user("q"), Message.assistant("a"), Message.assistant("b"), Message.system("s"), Message.user("r")]
    assert spans(chat, *chat.supervised(two)) == ["\n<think></think>\na", "\n<think></think>\nb"]  # no sampled ends


@pytest.mark.parametrize("name", FAMILIES)
def test_C07_a_batch_without_trainable_tokens_raises(name: str) -> None:
    ids, mask = family_format(name).supervised(C07)

    def sample(mask_T: Any) -> TrainingSample:
        size = len(ids)
        return TrainingSample(
            ids=ids,
            mask=mask_T,
            logprobs=np.zeros(size, np.float32),
            versions=np.full(size, -1, np.int32),
            turn_index=np.full(size, -1, np.int32),
        )

    names = {"group_ids": ["g"], "trajectory_ids": ["t"], "rewards": [0.0]}
    assert 0 < collate_samples([sample(mask)], **names).trainable_tokens == int(mask.sum()) < len(ids)
    with pytest.raises(NoTrainableTokensError):
        collate_samples([sample(np.zeros_like(mask))], **names)
