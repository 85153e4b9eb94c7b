"""Templates that rewrite history: thinking kept, or prompts rendered anew and several samples. Case C02."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from chat_episodes import Seen, make_dialogue, play_dialogue
from chat_families import FAMILIES, SPLIT, family_format, make
from chat_models import TOOLS, TOY, chat_format, qwen3

from miles_agents.chat import ChatFormat
from miles_agents.errors import TemplateError, UsageError
from miles_agents.types import Message, Reply, ToolCall, Trajectory

CALL = ToolCall(id="call_0", name="python", arguments={"code": "1"}, raw="")
HERMES = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
SAID = {
    "qwen3": ("<think>\nwhy\n</think>\n\nA1", "<think>\nw2\n</think>\n\nA2"),
    "glm": ("\n<think>why</think>\nA1", "\n<think>w2</think>\nA2"),
}


def said_by(name: str) -> tuple[str, str]:
    return SAID[FAMILIES[name].template]


def check_both_sides(trajectory: Trajectory, seen: Seen) -> None:
    """Ids and logprobs that are trained are those the engine was given and gave; each sampled one is trained once."""
    assert [(turn.prompt_ids.tolist(), turn.completion_ids.tolist()) for turn in trajectory.turns] == [
        (given, sampled) for given, sampled, _ in seen
    ]
    trained: list[tuple[int, list[int], list[float]]] = []
    for sample in trajectory.samples():
        for index in sorted(set(sample.turn_index.tolist()) - {-1}):
            given, sampled, _ = seen[index]
            at = np.flatnonzero(sample.turn_index == index)
            assert sample.ids[: at[0]].tolist() == given
            assert at.tolist() == list(range(len(given), len(given) + len(sampled)))
            assert sample.mask[at].all()
            trained.append((index, sample.ids[at].tolist(), sample.logprobs[at].tolist()))
        assert ((sample.turn_index >= 0) == (sample.mask == 1)).all()
    assert trained == [(index, sampled, logprobs) for index, (_, sampled, logprobs) in enumerate(seen)]


# --- case C02 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen3-split", "qwen3-keep", "glm", "glm-split", "glm-keep"])
async def test_C02_trained_ids_are_those_the_engine_was_given_and_gave(name: str) -> None:
    chat = family_format(name)
    first, second = said_by(name)
    trajectory, seen = await play_dialogue(chat, [first, second], [[Message.user("q2")]])
    check_both_sides(trajectory, seen)
    begin, later = (chat.decode(given) for given, _, _ in seen)
    assert chat.decode(seen[0][1]).startswith(first)
    if chat.appends:
        assert len(trajectory.samples()) == 1
        assert later.startswith(begin + first)  # thinking kept
        assert later.count("<think>") == 1
    else:
        assert len(trajectory.samples()) == 2
        assert "why" not in later
        assert "A1" in later
    if FAMILIES[name].template == "qwen3":
        assert "<think>\n\n</think>" not in later  # no empty pair is added


def test_C02_the_split_prompt_of_qwen3_by_hand() -> None:
    chat = family_format("qwen3-split")
    first = chat.first_prompt([Message.user("q1")])
    reply = chat.parse(said_by("qwen3-split")[0])
    messages = [Message.user("q1"), chat.history_message(reply), Message.user("q2")]
    ids = chat.next_prompt(
        ids=first, completion_ids=chat.encode_reply(reply.text), messages=messages, observation=messages[2:]
    )
    assert chat.decode(ids) == (
        "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_C02_without_thinking_in_the_prompt_no_pair_is_added_later() -> None:
    """The empty pair that a prompt ends with stays where it was given, in either mode, and is never written twice."""
    for history in ("keep", "split"):
        chat = make("qwen3-keep", history=history, variables={"enable_thinking": False})
        first = chat.first_prompt([Message.user("q1")])
        messages = [Message.user("q1"), Message.assistant("A1"), Message.user("q2")]
        ids = chat.next_prompt(
            ids=first, completion_ids=chat.encode_reply("A1"), messages=messages, observation=messages[2:]
        )
        pairs = chat.decode(ids).count("<think>\n\n</think>")
        assert pairs == (2 if history == "keep" else 1)  # as given to the engine each time
        assert chat.decode(ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", SPLIT)
def test_C02_within_a_question_nothing_is_rewritten_and_the_sample_goes_on(name: str) -> None:
    chat = family_format(name)
    call = (
        HERMES
        if name == "qwen3-split"
        else ("<tool_call>python\n<arg_key>code</arg_key>\n<arg_value>1</arg_value>\n</tool_call>")
    )
    thought, answer = said_by(name)
    calling = thought.replace("A1", call)
    heard = [[Message.tool("1", call=CALL)], [Message.user("q2")]]
    ended = [*chat.encode_reply(calling, ended=False), chat.ends.before_tool.id]
    replies = [ended, *(chat.encode_reply(text).tolist() for text in (thought, answer))]
    trajectory, seen = make_dialogue(chat, replies, heard, tools=TOOLS)
    check_both_sides(trajectory, seen)
    samples = trajectory.samples()
    assert [sorted(set(sample.turn_index.tolist()) - {-1}) for sample in samples] == [[0, 1], [2]]
    assert "why" not in chat.decode(samples[1].ids)


def test_C02_sampled_ids_stay_where_the_template_prints_their_text_again() -> None:
    chat = family_format("qwen3-split")
    text = f"<think>\nwhy\n</think>\n\n{HERMES}"
    usual = chat.encode_reply(text).tolist()
    at = next(index for index, token in enumerate(usual) if len(chat.decode([token])) > 1 and token > 10)
    letters = [chat.tokenizer.id_of(each) for each in chat.decode([usual[at]])]
    unusual = [*usual[:at], *letters, *usual[at + 1 :]]
    assert None not in letters
    assert chat.decode(unusual) == chat.decode(usual)
    trajectory, seen = make_dialogue(
        chat, [unusual, chat.encode_reply("A")], [[Message.tool("1", call=CALL)]], tools=TOOLS
    )
    check_both_sides(trajectory, seen)
    assert len(trajectory.samples()) == 1
    assert seen[1][0][: len(seen[0][0]) + len(unusual)] == seen[0][0] + unusual


def test_C02_other_texts_for_the_same_call_are_rendered_anew() -> None:
    chat = family_format("qwen3-split")
    spaced = '<tool_call>{"name":  "python", "arguments": {"code": "1"}}</tool_call>'
    trajectory, seen = make_dialogue(
        chat, [chat.encode_reply(text) for text in (spaced, "A")], [[Message.tool("1", call=CALL)]], tools=TOOLS
    )
    check_both_sides(trajectory, seen)
    assert len(trajectory.samples()) == 2
    assert HERMES in chat.decode(seen[1][0])


@pytest.mark.parametrize("name", [*SPLIT, "qwen3-keep"])
@pytest.mark.parametrize("cut", [False, True])
async def test_C02_malformed_and_cut_replies_are_shown_as_they_were_sampled(name: str, cut: bool) -> None:
    chat = family_format(name)
    broken = '<tool_call>{"name": python</tool_call> <|im_end|x>'
    ids = chat.encode_reply(broken, ended=not cut).tolist()
    if cut:
        ids = ids[:-1] + chat.encode_reply("x" * 400, ended=False).tolist()
    trajectory, seen = await play_dialogue(chat, [ids, "A"], [[Message.user("q2")]])
    check_both_sides(trajectory, seen)
    assert '<tool_call>{"name": python</tool_call> <|im_end|x' in chat.decode(seen[1][0])


# --- what later prompts are given of a reply --------------------------------------------------------------------------


def test_a_reply_is_given_apart_where_the_template_prints_it_so() -> None:
    chat = family_format("qwen3-split")
    reply = chat.parse(f"<think>\nwhy\n</think>\n\nSo\n{HERMES}\n{HERMES}")
    message = chat.history_message(reply)
    assert (message.reasoning, message.text) == ("why", "So")
    assert [call.arguments for call in message.tool_calls] == [{"code": "1"}] * 2
    shown = chat.render([Message.user("q"), message, Message.tool("4", call=CALL)])
    assert f"<think>\nwhy\n</think>\n\nSo\n{HERMES}\n{HERMES}<|im_end|>" in shown


def test_a_malformed_call_is_given_as_the_text_that_was_sampled_without_its_thinking() -> None:
    chat = family_format("qwen3-split")
    broken = "So\n<tool_call>\n{'name'}\n</tool_call>"
    message = chat.history_message(chat.parse(f"<think>\nwhy\n</think>\n\n{broken}"))
    assert (message.reasoning, message.text, message.tool_calls) == ("why", broken, ())
    conversation = [Message.user("q"), message, Message.user("again")]
    prompt = chat.first_prompt(conversation)
    assert broken in chat.decode(prompt)
    assert chat.tokenizer.id_of("<tool_call>") not in prompt.tolist()  # words, like all outside text
    with pytest.raises(UsageError, match="malformed call"):
        chat.first_prompt([Message.user("q"), chat.parse(broken).message(), Message.user("again")])


def test_replies_a_template_cannot_show_are_given_as_text() -> None:
    for name, text in (("smollm2", HERMES), ("chatml", f"<think>\nwhy\n</think>\n\n{HERMES}")):
        chat = make(name, history="split", tool_format="hermes")
        message = chat.history_message(chat.parse(text))
        assert (message.text, message.tool_calls) == (text, ())
        assert text in chat.decode(chat.first_prompt([Message.user("q"), message, Message.tool("1", call=CALL)]))
    beside = Reply(text="So {…}", content="So ", calls=(CALL,))
    llama = make("llama3", history="split")
    assert llama.history_message(beside).text == "So {…}"  # Llama 3 prints no words beside a call
    alone = llama.history_message(Reply(text="{…}", calls=(CALL,)))
    assert alone.tool_calls == (CALL,)
    assert llama.history_message(Reply(text="{…}{…}", calls=(CALL, CALL))).tool_calls == ()  # nor several


def test_unclosed_thinking_is_thinking_in_later_prompts() -> None:
    chat = family_format("qwen3-split")
    reply = chat.parse("<think>\nwhy <tool_call>", truncated=True)
    assert chat.history_message(reply) == Message.assistant("", reasoning="why <tool_call>")


# --- start-up ---------------------------------------------------------------------------------------------------------

MOVES_TOOLS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if loop.last and tools %}{{- tools | tojson }}{%- endif %}{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def strips_in_text(template: str = TOY) -> str:
    """In the manner of DeepSeek-R1: whatever stands before `</think>` in an earlier reply is cut off."""
    cut = "(m.content.split('</think>')[-1] if m.role == 'assistant' else m.content)"
    return template.replace("m.content + '<|im_end|>\\n' }}{%- endfor", cut + " + '<|im_end|>\\n' }}{%- endfor")


@pytest.mark.parametrize("template", [qwen3(strips_thinking=True), MOVES_TOOLS, strips_in_text()])
def test_auto_splits_where_a_template_rewrites_history_and_append_refuses(template: str) -> None:
    chat = chat_format(template)
    assert chat.history == "split"
    with pytest.raises(TemplateError, match="rewrites history"):
        ChatFormat(chat.tokenizer, template, history="append")


def test_thinking_a_template_cuts_out_of_the_text_is_gone_from_later_prompts() -> None:
    chat = chat_format(strips_in_text())
    message = chat.history_message(chat.parse("<think>\nwhy\n</think>\n\nA1"))
    shown = chat.decode(chat.first_prompt([Message.user("q"), message, Message.user("r")]))
    assert "assistant\nA1<|im_end|>" in shown
    assert "why" not in shown


def test_keep_is_refused_where_more_than_what_the_assistant_said_would_differ() -> None:
    with pytest.raises(TemplateError, match="rewrites history"):
        ChatFormat(chat_format(MOVES_TOOLS).tokenizer, MOVES_TOOLS, history="keep")


def test_templates_that_only_append_can_be_kept_or_split_if_one_wants() -> None:
    assert make("chatml", history="keep").history == "append"
    assert make("chatml", history="split").history == "split"
    with pytest.raises(UsageError, match="history: unknown value 'spilt'. Did you mean 'split'"):
        make("chatml", history="spilt")


@pytest.mark.parametrize("history", ["auto", "split", "keep"])
def test_a_template_that_loses_what_was_said_is_refused_in_every_mode(history: str) -> None:
    drops = TOY.replace("in messages %}", "in messages[-2:] %}", 1)
    with pytest.raises(TemplateError, match="drops the content of message 0"):
        ChatFormat(chat_format(TOY).tokenizer, drops, history=history)


# --- cost -------------------------------------------------------------------------------------------------------------


def test_split_prompts_cost_in_proportion_to_the_conversation() -> None:
    chat = family_format("qwen3-split")

    def seconds(rounds: int) -> float:
        messages: list[Any] = [Message.user("q")]
        for index in range(rounds):
            messages += [Message.assistant(f"a{index}", reasoning="why"), Message.user(f"q{index}")]
        best = 9.0
        for attempt in range(4):  # never seen before: with another number of calls at the end
            calls = (CALL,) * (attempt + 1)
            fresh = [*messages, Message.assistant("x", tool_calls=calls), Message.tool("1", call=CALL)]
            began = time.process_time()
            chat.next_prompt(
                ids=np.zeros(1, np.int32), completion_ids=np.zeros(0, np.int32), messages=fresh, observation=fresh[-1:]
            )
            best = min(best, time.process_time() - began)
        return best

    assert seconds(640) < 24 * seconds(80)  # 8 times as long: 64 if it were quadratic; room for a noisy machine
