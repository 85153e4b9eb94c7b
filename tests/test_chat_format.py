"""Messages ⇄ tokens. Cases C01, C05, C07."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_models import (
    END,
    QWEN25,
    TEMPLATES,
    TOOLS,
    TOY,
    byte_level_spec,
    chat_format,
    family,
    qwen3,
    tokenizer,
    write_model_folder,
)
from tokenizers import Tokenizer, decoders, models

from miles_agents.chat import ChatFormat, TextTokenizer, is_long, starter_chat_template
from miles_agents.errors import NoTrainableTokensError, TemplateError, UsageError
from miles_agents.types import (
    Completion,
    EpisodeStatus,
    ImagePart,
    Message,
    Reply,
    Role,
    StopReason,
    ToolCall,
    TrainingSample,
    Trajectory,
    Turn,
    VersionSpan,
    collate_samples,
)

CALL = ToolCall(id="call_0", name="python", arguments={"code": 'print("é")'}, raw="")


def joined(*parts: Any) -> list[int]:
    return [int(token) for part in parts for token in part]


# --- case C01 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("system", [False, True], ids=["no system", "system"])
def test_C01_incremental_ids_equal_the_full_render(name: str, tools: tuple[dict[str, Any], ...], system: bool) -> None:
    chat = family(name)
    prompt = [*([Message.system("Be brief.")] if system else []), Message.user("What is 2 + 3?")]
    turns = [
        ("Let me see.", (Message.tool("5", call=CALL),)),
        ("call", (Message.tool("busy", call=CALL), Message.tool("5", call=CALL))),
        ("It is 5.", (Message.user("Sure?\n\n"),)),
        ("yes", (Message.user("Why?"), Message.tool("", call=CALL))),
    ]
    ids = joined(chat.first_prompt(prompt, tools))
    messages = list(prompt)
    replies = []
    for text, observation in turns:
        sampled = chat.encode_reply(text)
        assert sampled[-1] == END
        ids = joined(ids, sampled, chat.suffix(observation, completion_ids=sampled))
        messages += [Message.assistant(text), *observation]
        replies.append(text)
    rendered = chat.render(messages, tools)
    assert chat.decode(ids) == rendered
    assert ids == boundary_ids(chat, rendered, replies)
    if name != "starter":  # without word splitting "assistant\nIt" could be tokenised across the boundary
        assert ids == chat.tokenizer.encode_control(rendered)
    default = name in ("qwen2.5", "smollm2", "toy")
    assert rendered.count("<|im_start|>system") == int(default or system or bool(tools and chat.shows_tools))


def boundary_ids(chat: ChatFormat, rendered: str, replies: list[str]) -> list[int]:
    """The full render tokenised as a whole, but cut where a reply begins and ends."""
    ids: list[int] = []
    for reply in replies:
        header = "<|im_start|>assistant\n"
        at = rendered.index(header + reply) + len(header)
        ids += chat.tokenizer.encode_control(rendered[:at]) + chat.tokenizer.encode_control(reply)
        rendered = rendered[at + len(reply) :]
    return ids + chat.tokenizer.encode_control(rendered)


def test_C01_toy_separator_newline_once_and_one_system_turn() -> None:
    # user q1 -> assistant 'call' up to END -> tool '42', worked out by hand
    chat = family("toy")
    prompt = chat.first_prompt([Message.user("q1")])
    sampled = chat.encode_reply("call")
    ids = joined(prompt, sampled, chat.suffix([Message.tool("42")], completion_ids=sampled))
    assert chat.decode(ids) == (
        "<|im_start|>system\nDefault.<|im_end|>\n<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\ncall<|im_end|>"
        "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids[len(prompt) : len(prompt) + len(sampled)] == sampled.tolist()
    turns = (
        turn(prompt, sampled),
        turn(np.array(ids, np.int32), chat.encode_reply("ok")),
    )
    (sample,) = trajectory(turns).samples()
    newline = len(prompt) + len(sampled)
    assert chat.decode([sample.ids[newline]]) == "\n"
    assert sample.mask[newline] == 0
    assert sample.mask[newline - 1] == 1  # END was sampled


def test_C01_a_cut_reply_is_ended_by_the_suffix() -> None:
    chat = family("toy")
    cut = chat.encode_reply("call", ended=False)
    suffix = chat.suffix([Message.user("go on")], completion_ids=cut)
    assert suffix[0] == END
    assert suffix[1:].tolist() == chat.suffix([Message.user("go on")], completion_ids=[*cut, END]).tolist()
    assert chat.suffix([Message.user("go on")], completion_ids=[])[0] == END


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_equal_those_of_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    chat = family(name)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level_spec(splits_words=name != "starter"))
    )
    theirs.chat_template = TEMPLATES[name]
    plain = [
        {"role": "system", "content": "Answer <b>'é'</b> & \\ tersely."},
        {"role": "user", "content": "  What is\n\n2 + 3?  "},
    ]
    ours = [Message(role=Role(each["role"]), parts=Message.user(each["content"]).parts) for each in plain]
    for messages, dicts in ((ours, plain), (ours[1:], plain[1:])):
        for tools in ((), TOOLS):
            expected = theirs.apply_chat_template(
                dicts, tools=list(tools) or None, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            assert chat.first_prompt(messages, tools).tolist() == expected


# --- start-up check ---------------------------------------------------------------------------------------------------

HEADER = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
GENERATE = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (TOY.replace("in messages %}", "in messages[-2:] %}", 1), "drops the content of message 0"),
        (HEADER + "{{- m.content + '\\n' }}{%- endfor %}" + GENERATE, "no end-of-turn token"),
        (TOY.replace("<|im_end|>", "</s>"), "no end-of-turn token"),
        (TOY.replace(GENERATE, ""), "no generation prompt"),
        (TOY.replace("m.content", "(m.content | upper)"), "changes the texts"),
        (TOY.replace("m.content", "m.content + m.content"), "repeats 2 times"),
        ("{%- if messages[-1].role == 'tool' %}{{ raise_exception('no tools') }}{%- endif %}" + TOY, "no tools"),
        ("{%- if %}", "not valid Jinja"),
        (TOY + "{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_at_start(template: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        chat_format(template)


def test_a_tokenizer_that_treats_the_first_piece_otherwise_is_refused_at_start() -> None:
    spec = json.loads(byte_level_spec())
    spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    spec["model"]["byte_fallback"] = False
    spec["model"]["vocab"]["▁"] = 900
    spec["model"]["unk_token"] = "<|endoftext|>"
    with pytest.raises(TemplateError, match="other ids piece by piece"):
        ChatFormat(TextTokenizer(json.dumps(spec)), TOY)


def test_a_template_without_a_system_turn_is_accepted_and_refuses_it_when_used() -> None:
    chat = chat_format("{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{%- endif %}" + TOY)
    with pytest.raises(TemplateError, match="no system"):
        chat.first_prompt([Message.system("x"), Message.user("y")])


def test_trimmed_texts_are_trimmed_as_the_template_does_it() -> None:
    everything = chat_format(TOY.replace("m.content", "(m.content | trim)"))
    assert "user\nhi<|im_end|>" in everything.decode(everything.first_prompt([Message.user(" \n hi \n ")]))
    newlines = chat_format(TOY.replace("m.content", "m.content.strip('\\n')"))
    assert "user\n hi <|im_end|>" in newlines.decode(newlines.first_prompt([Message.user("\n\n hi \n")]))


def test_a_prompt_that_opens_thinking_is_known() -> None:
    chat = chat_format(qwen3(strips_thinking=False, opens_thinking=True))
    assert chat.opens_thinking
    reply = chat.parse(chat.encode_reply("Add.\n</think>\n\nIt is 5."))
    assert reply.reasoning == "Add.\n"
    assert reply.content == "\n\nIt is 5."
    assert not family("qwen3-kept").opens_thinking


def test_whether_the_template_shows_tools_is_known() -> None:
    shown = {name: family(name).shows_tools for name in TEMPLATES}
    assert shown == {"qwen2.5": True, "smollm2": False, "toy": False, "qwen3-kept": True, "starter": True}


def test_images_and_assistant_messages_are_refused_where_they_do_not_belong() -> None:
    chat = family("toy")
    with pytest.raises(UsageError, match="text only"):
        chat.first_prompt([Message(role=Role.USER, parts=(ImagePart(data=b"x"),))])
    with pytest.raises(TemplateError, match="only the policy speaks"):
        chat.suffix([Message.assistant("me too")], completion_ids=[END])


def test_folder_gives_template_tokens_and_every_stop_id(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path / "m", template=QWEN25)
    chat = ChatFormat.from_folder(folder)
    assert chat.stop_token_ids == (0, END)  # generation_config says [2, 0]
    inside = write_model_folder(tmp_path / "inside", template=None)
    named = [{"name": "default", "template": TOY}, {"name": "tool_use", "template": QWEN25}]
    for value in (QWEN25, named):
        config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": value}
        (inside / "tokenizer_config.json").write_text(json.dumps(config))
        prompt = [Message.user("q")]
        assert (ChatFormat.from_folder(inside).first_prompt(prompt) == chat.first_prompt(prompt)).all()


def test_folders_that_lack_something_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"no .*tokenizer\.json"):
        ChatFormat.from_folder(tmp_path)
    with pytest.raises(TemplateError, match="no chat template"):
        ChatFormat.from_folder(write_model_folder(tmp_path / "base", template=None))
    broken = write_model_folder(tmp_path / "broken", template=TOY)
    (broken / "generation_config.json").write_text("{")
    with pytest.raises(TemplateError, match="not valid JSON"):
        ChatFormat.from_folder(broken)


# --- case C05 ---------------------------------------------------------------------------------------------------------


def toy_bpe() -> TextTokenizer:
    """Merges a+b, then b+c: 'abc' is [ab, c], never [a, bc]."""
    vocab = {"a": 3, "b": 4, "c": 5, "ab": 6, "bc": 7, "<|im_start|>": 1, "<|im_end|>": 2, "<unk>": 0}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("b", "c")], unk_token="<unk>"))
    raw.decoder = decoders.Fuse()
    raw.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return TextTokenizer(raw.to_str(), special={"unk_token": "<unk>"})


def turn(prompt: Any, completion: Any, logprobs: Any = None) -> Turn:
    size = len(completion)
    return Turn(
        prompt_ids=np.asarray(prompt, np.int32),
        completion_ids=np.asarray(completion, np.int32),
        logprobs=np.asarray(logprobs if logprobs is not None else [-1.0] * size, np.float32),
        stop_reason=StopReason.STOP,
        versions=(VersionSpan(0, 0, size),),
    )


def trajectory(turns: tuple[Turn, ...]) -> Trajectory:
    return Trajectory(id="t", task_id="t", group_id="g", turns=turns, status=EpisodeStatus.COMPLETED, reward=1.0)


def test_C05_sampled_ids_are_trained_as_sampled_never_as_reencoded() -> None:
    chat = ChatFormat(toy_bpe(), TOY)
    sampled, logprobs = [3, 7, END], [-0.2, -1.5, -0.1]
    assert chat.parse(sampled).text == "abc"
    assert chat.encode_reply("abc").tolist() == [6, 5, END]  # as long as what was sampled: a length check sees nothing
    first = chat.first_prompt([Message.user("b")])
    second = joined(first, sampled, chat.suffix([Message.tool("c")], completion_ids=sampled))
    (sample,) = trajectory((turn(first, sampled, logprobs), turn(second, [7, END]))).samples()
    at = len(first)
    assert sample.ids[at : at + 3].tolist() == sampled
    assert sample.logprobs[at : at + 3].tolist() == np.float32(logprobs).tolist()
    assert sample.ids.tolist() == [*second, 7, END]
    assert sample.mask.sum() == 5
    assert (sample.logprobs[sample.mask == 0] == 0).all()


def test_C05_a_completion_without_ids_or_with_padded_logprobs_cannot_be_made() -> None:
    versions = (VersionSpan(0, 0, 2),)
    with pytest.raises(TypeError, match="ids"):
        Completion(logprobs=np.zeros(2, np.float32), stop_reason=StopReason.STOP, versions=versions)  # type: ignore[call-arg]
    for ids, logprobs in (([], [-0.2, -1.5]), ([3, 7], [-0.2])):
        with pytest.raises(ValueError, match="never pad"):
            Completion(
                ids=np.array(ids, np.int32),
                logprobs=np.array(logprobs, np.float32),
                stop_reason=StopReason.STOP,
                versions=versions,
            )


# --- case C07 ---------------------------------------------------------------------------------------------------------

C07 = (Message.user("hi"), Message.assistant("ok"), Message.tool("3"), Message.assistant("done"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_C07_mask_is_one_exactly_on_what_the_assistant_says_and_its_ends(name: str) -> None:
    chat = family(name)
    ids, mask = chat.supervised(C07)
    assert spans(chat, ids, mask) == ["ok<|im_end|>", "done<|im_end|>"]
    assert mask[-1] == 1
    first, ok = chat.first_prompt(C07[:1]), chat.encode_reply("ok")
    engine = joined(first, ok, chat.suffix(C07[2:3], completion_ids=ok), chat.encode_reply("done"))
    assert ids.tolist() == engine
    assert ids.dtype == np.int32
    assert mask.dtype == np.int8


def spans(chat: ChatFormat, ids: Any, mask: Any) -> list[str]:
    """The decoded stretches of mask 1."""
    cuts = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    return [chat.decode(ids[start:end]) for start, end in cuts.reshape(-1, 2)]


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3-kept", "starter"])
def test_C07_calls_and_thinking_are_the_assistant_s_words(name: str) -> None:
    chat = family(name)
    thought = {"reasoning": "why"} if name == "qwen3-kept" else {}
    messages = [
        Message.user("q"),
        Message.assistant("So", tool_calls=(CALL, CALL), **thought),
        Message.tool("3", call=CALL),
        Message.tool("4", call=CALL),
        Message.assistant("7"),
        Message.user("more"),
    ]
    ids, mask = chat.supervised(messages, TOOLS)
    call = '\n<tool_call>\n{"name": "python", "arguments": {"code": "print(\\"é\\")"}}\n</tool_call>'
    written = f"So{call}{call}<|im_end|>"
    if thought:
        written = "<think>\nwhy\n</think>\n\n" + written
    assert spans(chat, ids, mask) == [written, "7<|im_end|>"]
    reply: Reply = chat.parse(ids[np.flatnonzero(mask)[0] : np.flatnonzero(mask)[-3]])
    assert [call.arguments for call in reply.calls] == [CALL.arguments] * 2


def test_C07_a_mask_that_cannot_be_derived_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one assistant"):
        family("toy").supervised([Message.user("hi")])
    with pytest.raises(TemplateError, match="drops the call"):
        family("smollm2").supervised([Message.user("q"), Message.assistant("", tool_calls=(CALL,))])
    with pytest.raises(TemplateError, match="drops the reasoning"):
        family("qwen2.5").supervised([Message.user("q"), Message.assistant("a", reasoning="why")])


def test_C07_a_batch_without_trainable_tokens_raises() -> None:
    ids, mask = family("toy").supervised(C07)

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
    assert collate_samples([sample(mask)], **names).trainable_tokens == int(mask.sum()) > 0
    with pytest.raises(NoTrainableTokensError):
        collate_samples([sample(np.zeros_like(mask))], **names)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_parse_leaves_out_the_final_stop_token_alone() -> None:
    chat = ChatFormat(tokenizer(), TOY, eos_ids=[0])
    for end in (END, 0):
        assert chat.parse([*chat.encode_reply("a", ended=False), end]).text == "a"
    assert chat.parse("a<|im_end|>").text == "a"
    cut = chat.parse(chat.encode_reply("a<tool_call>", ended=False), truncated=True)
    assert cut.text == "a<tool_call>"
    assert cut.truncated


def test_starter_prompts_are_short() -> None:
    chat = family("starter")
    prompt = chat.decode(chat.first_prompt([Message.user("q")], TOOLS))
    assert prompt == (
        "<|im_start|>system\nTools: python<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    )
    assert starter_chat_template().isascii()
    no_tools = chat.decode(chat.first_prompt([Message.system("Be brief."), Message.user("q")]))
    assert no_tools.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nq")


def test_tools_given_anew_each_episode_are_rendered_once() -> None:
    chat = chat_format(QWEN25)
    rendered = 0
    skeleton = chat.template.skeleton

    def counting(*args: Any, **kwargs: Any) -> str:
        nonlocal rendered
        rendered += 1
        return skeleton(*args, **kwargs)

    chat.template.skeleton = counting  # type: ignore[method-assign]
    for number in range(5):
        chat.first_prompt([Message.user(f"q{number}")], json.loads(json.dumps(TOOLS)))
        chat.suffix([Message.tool(str(number))], completion_ids=[END])
    assert rendered == 2


async def test_long_texts_are_tokenised_off_the_event_loop() -> None:
    chat = family("qwen2.5")
    observation = [Message.tool("the answer is 42, " * 20_000)]
    assert is_long(observation)
    assert not is_long([Message.tool("short")])
    beats = 0

    async def heart() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    async with asyncio.TaskGroup() as group:
        beating = group.create_task(heart())
        ids = await asyncio.to_thread(chat.suffix, observation, completion_ids=[END])
        beating.cancel()
    assert beats > 3  # it takes 100 ms or more
    assert chat.decode(ids).count("the answer is 42, ") == 20_000
