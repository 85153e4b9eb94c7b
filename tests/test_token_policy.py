"""What a seat of the trained policy hands to its chat format, and where it tokenises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from chat_episodes import Dialogue, make_dialogue, play_dialogue
from chat_families import family_format, make
from scripted_runs import Adding, pool_of
from tool_call_texts import TOOLS, add_text

from miles_agents.chat import ChatFormat
from miles_agents.engines.scripted import ScriptedEngine, ScriptedReply
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.policy import EpisodeSpec, Seat, SeatSpec
from miles_agents.rollout.token_policy import Sampling, TokenPolicy
from miles_agents.types import IntArray, Message, Reply, Task, Trajectory

LONG = "x" * 30_000
SAMPLING = Sampling(max_new_tokens=300, max_tokens=2000)


class RecordingChat:
    """A chat format that writes down what it is asked, and in which thread."""

    stop_token_ids = (1,)

    def __init__(self, *, appends: bool) -> None:
        self.appends = appends
        self.threads: list[int] = []
        self.asked: dict[str, Any] = {}

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> IntArray:
        self.threads.append(threading.get_ident())
        return np.array([5], np.int32)

    def next_prompt(self, **asked: Any) -> IntArray:
        self.threads.append(threading.get_ident())
        self.asked = asked
        return np.array([5, 6], np.int32)

    def parse(self, completion: IntArray, **asked: Any) -> Reply:
        self.asked = asked
        return Reply.of("said")

    def history_message(self, reply: Reply, tools: Sequence[Mapping[str, Any]]) -> Message:
        return Message.assistant(f"history of {reply.text}, {len(tools)} tools")

    def decode(self, ids: IntArray) -> str:
        return "said"


def seat_of(chat: Any) -> Seat:
    engine = ScriptedEngine([ScriptedReply(ids=[3, 1])] * 2, context_length=2000)
    spec = EpisodeSpec(task=Task(id="t", prompt=(Message.user("q1"),)), group_id="g")
    return TokenPolicy(engine=engine, chat=chat, sampling=SAMPLING).seat(SeatSpec(episode=spec))


async def asked_twice(chat: RecordingChat, first: str, second: str) -> None:
    seat = seat_of(chat)
    await seat.hear([Message.user(first)], TOOLS)
    sampled = await seat.generate()
    assert sampled is not None
    seat.read(sampled, first_call=4)
    await seat.hear([Message.user(second)], TOOLS)


async def test_a_reply_is_read_by_the_tools_that_were_heard_and_enters_history_as_the_format_says() -> None:
    chat = RecordingChat(appends=True)
    seat = seat_of(chat)
    await seat.hear([Message.user("q1")], TOOLS)
    sampled = await seat.generate()
    assert sampled is not None
    assert seat.read(sampled, first_call=4) == Reply.of("said")
    assert chat.asked == {"truncated": False, "first_call": 4, "tools": TOOLS}
    await seat.hear([Message.user("q2")], TOOLS)
    said = Message.assistant(f"history of said, {len(TOOLS)} tools")
    assert chat.asked["messages"] == (Message.user("q1"), said, Message.user("q2"))
    assert chat.asked["observation"] == [Message.user("q2")]


@pytest.mark.parametrize("appends", [True, False])
@pytest.mark.parametrize("first", ["q", LONG], ids=["short", "long"])
@pytest.mark.parametrize("second", ["q", LONG], ids=["short", "long"])
async def test_what_is_tokenised_is_done_in_a_thread_if_it_is_long(appends: bool, first: str, second: str) -> None:
    chat = RecordingChat(appends=appends)
    await asked_twice(chat, first, second)
    here = threading.get_ident()
    # A prompt that is made anew is long as soon as the conversation is.
    assert [each != here for each in chat.threads] == [
        first is LONG,
        LONG in ((second,) if appends else (first, second)),
    ]


async def test_the_event_loop_goes_on_while_a_long_conversation_is_rendered_anew() -> None:
    turned = asyncio.Event()

    class Waiting(RecordingChat):
        def next_prompt(self, **asked: Any) -> IntArray:
            asyncio.run_coroutine_threadsafe(turn(), loop).result(timeout=10)  # a loop that is held up never turns
            return super().next_prompt(**asked)

    async def turn() -> None:
        turned.set()

    loop = asyncio.get_running_loop()
    await asked_twice(Waiting(appends=False), LONG, "short")
    assert turned.is_set()


# --- with real formats ------------------------------------------------------------------------------------------------


async def played(chat: ChatFormat, said: Sequence[str], *, tools: Any = TOOLS) -> tuple[Trajectory, list[Reply]]:
    """An episode of user turns with these replies, and what the environment was given."""
    env = Dialogue([[Message.user("on")] for _ in said[1:]], tools=tools)
    script = [ScriptedReply(ids=chat.encode_reply(each).tolist()) for each in said]
    engine = ScriptedEngine(script, context_length=2000)
    player = EpisodePlayer(policy=TokenPolicy(engine=engine, chat=chat, sampling=SAMPLING), deadline_s=10.0)
    trajectory = await player.play(env, EpisodeSpec(task=env.tasks("train")[0], group_id="g"))
    assert trajectory.status.is_valid, trajectory.error
    return trajectory, env.replies


@pytest.mark.parametrize("style", ["qwen3_coder", "glm"])
async def test_arguments_between_tags_have_the_types_of_their_schemas_in_an_episode(style: str) -> None:
    chat = make("qwen3-coder", tool_format=style)
    _, (reply,) = await played(chat, [add_text(style)])
    assert [call.arguments for call in reply.calls] == [{"a": 2, "b": 3}]


async def test_a_tool_with_integers_is_executed_by_a_model_that_writes_tags() -> None:
    chat = family_format("qwen3-coder")
    said = [add_text("qwen3_coder"), "5"]
    engine = ScriptedEngine([ScriptedReply(ids=chat.encode_reply(each).tolist()) for each in said], context_length=2000)
    player = EpisodePlayer(policy=TokenPolicy(engine=engine, chat=chat, sampling=SAMPLING), deadline_s=10.0)
    pool = pool_of(Adding)
    async with pool.lend() as env:
        spec = EpisodeSpec(task=pool.tasks("test")[4], group_id="g")
        trajectory = await player.play(env, spec)
    assert [(event.ok, event.result) for event in trajectory.tool_events()] == [(True, "5")]
    assert trajectory.reward == 1.0


@pytest.mark.parametrize("name", ["qwen3-split", "glm-split"])
async def test_prompts_of_an_episode_are_those_of_the_formats_own_history_messages(name: str) -> None:
    chat = family_format(name)
    style = "glm" if name.startswith("glm") else "hermes"
    thought = "\n<think>why</think>\n" if style == "glm" else "<think>\nwhy\n</think>\n\n"
    said = [
        chat.encode_reply(f"{thought}I add.\n{add_text(style)}").tolist(),
        chat.encode_reply(f"{thought}5").tolist(),
    ]
    answers = [[Message.user("q2")]]
    _, seen = await play_dialogue(chat, said, answers, tools=TOOLS)
    _, expected = make_dialogue(chat, said, answers, tools=TOOLS)
    assert [given for given, _, _ in seen] == [given for given, _, _ in expected]
    assert "why" not in chat.decode(seen[1][0])


@pytest.mark.parametrize("name", ["qwen3-split", "qwen3-keep", "chatml"])
async def test_B05_in_training_a_call_inside_thinking_is_what_the_policy_says_and_is_counted(name: str) -> None:
    said = f"<think>\ncheck it {add_text('hermes')}\n</think>"
    ignored, (reply,) = await played(make(name), [said])
    assert (reply.calls, reply.calls_in_reasoning) == ((), 1)
    assert ignored.turns[0].info["calls_in_reasoning"] == 1.0
    chat = make(name, thinking_calls="end_thinking")
    ended, (reply,) = await played(chat, [said])
    assert [call.arguments for call in reply.calls] == [{"a": 2, "b": 3}]
    assert reply == chat.parse(said, tools=TOOLS)
    assert ended.turns[0].info["calls"] == 1.0
    assert ended.turns[0].info["calls_ending_reasoning"] == 1.0
    _, (open_thinking,) = await played(make(name), ["<think>\nso"])
    assert open_thinking.reasoning_unclosed
    # Without tools nothing is valid, so nothing ends thinking.
    _, (reply,) = await played(chat, [said], tools=())
    assert (reply.calls, reply.calls_in_reasoning) == ((), 1)


async def test_B05_a_call_that_ended_thinking_stays_in_later_prompts_beside_a_malformed_one() -> None:
    chat = make("qwen3-split", thinking_calls="end_thinking")
    call = add_text("hermes")
    broken = "<tool_call>{</tool_call>"
    trajectory, replies = await played(chat, [f"<think>\nwhy {call}\n{broken}", "done"])
    assert [call.error is None for call in replies[0].calls] == [True, False]
    shown = chat.decode(trajectory.turns[1].prompt_ids)
    assert f"{call}\n{broken}" in shown
    assert "why" not in shown
