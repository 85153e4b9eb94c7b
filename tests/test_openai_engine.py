"""A model behind an OpenAI-compatible server, spoken to over real connections: replies, retries, refusals, secrets."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai_server import KEY, Answer, OpenAIServer, refuses, says, serving
from scripted_runs import Adding, pool_of

import miles_agents as ma
from miles_agents.contracts.chat_model import ChatParams, Conversation
from miles_agents.engines.openai import OpenAIChatModel
from miles_agents.engines.openai.client import Client, Server
from miles_agents.errors import ConfigError, EngineError, FailureCause, ToolErrorKind, UsageError
from miles_agents.rollout.message_policy import ChatLimits, MessagePolicy
from miles_agents.rollout.player import EpisodePlayer, EpisodeSpec
from miles_agents.types import EpisodeStatus, ImagePart, Message, Reply, Task, TextPart, ToolCall, Trajectory

PARAMS = ChatParams(max_new_tokens=20, deadline_s=5.0)
ADD = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miles_agents.engines.openai.client._FIRST_PAUSE_S", 0.01)


@asynccontextmanager
async def speaking(server: OpenAIServer, *, key: str = "", **settings: Any) -> AsyncIterator[OpenAIChatModel]:
    retries = settings.pop("retries", 3)
    model = OpenAIChatModel(model="m", server=Server(base_url=server.base_url, key=key, retries=retries), **settings)
    await model.start()
    try:
        yield model
    finally:
        await model.close()


async def asked(server: OpenAIServer, *, said: str = "hello", **settings: Any) -> Reply:
    async with speaking(server, **settings) as model:
        conversation = model.conversation(ADD)
        conversation.add([Message.user(said)])
        completion = await conversation.reply(PARAMS)
        assert completion is not None
        return completion.reply


async def played(
    server: OpenAIServer, *, make: type[ma.Env] = Adding, max_tokens: int = 1000, max_new_tokens: int = 50
) -> Trajectory:
    async with speaking(server) as model:
        policy = MessagePolicy(
            model=model,
            limits=ChatLimits(max_new_tokens=max_new_tokens, max_tokens=max_tokens),
            request_deadline_s=5.0,
        )
        player = EpisodePlayer(policy=policy, deadline_s=10.0)
        pool = pool_of(make)
        async with pool.lend() as env:
            spec = EpisodeSpec(task=pool.tasks("test")[2], group_id="g", seed=11)
            trajectory = await player.play(env, spec)
        assert policy.sampled_tokens == trajectory.sampled_tokens
        return trajectory


# --- replies ----------------------------------------------------------------------------------------------------------


async def test_an_episode_with_the_servers_own_tool_calling() -> None:
    answers = [
        says("let me add", calls=[("id_7", "add", '{"a": 2,\n "b": 1}')], tokens=(30, 7)),
        says("3", tokens=(50, 2)),
    ]
    with serving(answers) as server:
        trajectory = await played(server)
        assert (trajectory.status, trajectory.reward) == (EpisodeStatus.COMPLETED, 1.0)
        first, second = server.requests
        assert first["messages"] == [{"role": "user", "content": "2+1"}]
        assert [each["function"]["name"] for each in first["tools"]] == ["add"]
        assert (first["model"], first["max_tokens"], first["temperature"]) == ("m", 50, 1.0)
        # What was said comes back as the API wants it: the call with its id and arguments as they were written.
        call = {"id": "id_7", "type": "function", "function": {"name": "add", "arguments": '{"a": 2,\n "b": 1}'}}
        assert second["messages"][1:] == [
            {"role": "assistant", "content": "let me add", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "id_7", "content": "3"},
        ]
        assert first["seed"] != second["seed"]
        # tokens as the server counts them
        assert (trajectory.sampled_tokens, trajectory.prompt_tokens) == (9, 80)
        assert [turn.info["completion_tokens"] for turn in trajectory.turns] == [7.0, 2.0]
        assert all(len(turn.completion_ids) == 0 for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"a": 2', "not valid JSON"),
        ('{"a": 1, "a": 2}', "given twice"),
        ("[1, 2]", "must be a JSON object"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": 1} x', "text after the arguments"),
        ("x" * 100_000, "not valid JSON"),
    ],
)
async def test_malformed_arguments_are_answered_in_a_bounded_line_and_the_episode_goes_on(
    arguments: str, said: str
) -> None:
    Adding.calls.clear()
    with serving([says(calls=[("c1", "add", arguments)]), says("3")]) as server:
        trajectory = await played(server)
        assert trajectory.reward == 1.0
        assert Adding.calls == []
        [event] = trajectory.tool_events()
        assert event.error_kind is ToolErrorKind.MALFORMED_CALL
        assert said in event.result
        assert len(event.result) < 500
        # The server decodes arguments of earlier calls: what it is sent back is an object.
        sent = server.requests[1]["messages"]
        assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"malformed": arguments}
        assert sent[2]["tool_call_id"] == "c1"


async def test_empty_arguments_are_no_arguments_and_an_object_is_taken_as_it_is() -> None:
    with serving([says(calls=[("a", "add", ""), ("b", "add", "  ")])]) as server:
        reply = await asked(server)
        assert [call.arguments for call in reply.calls] == [{}, {}]
    raw = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    with serving([says(tool_calls=[raw])]) as server:
        [call] = (await asked(server)).calls
        assert (call.arguments, json.loads(call.raw)) == ({"a": 1}, {"a": 1})


async def test_ids_of_calls_are_unique_in_a_conversation_whatever_the_server_gives() -> None:
    twice = says(calls=[("x", "add", "{}"), ("x", "add", "{}"), ("", "add", "{}"), ("y" * 500, "add", "{}")])
    with serving([twice, twice]) as server:
        async with speaking(server) as model:
            conversation = model.conversation(ADD)
            ids: list[str] = []
            for _ in range(2):
                conversation.add([Message.user("again")])
                completion = await conversation.reply(PARAMS)
                assert completion is not None
                ids += [call.id for call in completion.reply.calls]
        assert ids[0] == "x"
        assert len(set(ids)) == len(ids) == 8
        assert max(map(len, ids)) <= 200


async def test_a_name_that_no_server_takes_is_sent_back_as_one_that_it_takes() -> None:
    with serving([says(calls=[("x", "add two!", "{}")]), says("3")]) as server:
        trajectory = await played(server)
        assert trajectory.tool_events()[0].error_kind is ToolErrorKind.UNKNOWN_TOOL
        assert server.requests[1]["messages"][1]["tool_calls"][0]["function"]["name"] == "add_two_"


async def test_a_reply_cut_by_its_length_truncates_the_episode() -> None:
    with serving([says("1 2 3", finish="length", tokens=(5, 50))]) as server:
        trajectory = await played(server)
        assert (trajectory.status, trajectory.truncated_by) == (EpisodeStatus.TRUNCATED, "max_new_tokens")
    with serving([says("1 2 3", finish="length", tokens=(5, 20))]) as server:
        trajectory = await played(server, max_tokens=20)  # no more than all tokens were allowed
        assert server.requests[0]["max_tokens"] == 20
        assert trajectory.truncated_by == "context"


async def test_a_conversation_has_as_many_tokens_as_it_is_given() -> None:
    with serving([says(calls=[("a", "add", '{"a": 1, "b": 1}')], tokens=(60, 30)), says("3")]) as server:
        trajectory = await played(server, max_tokens=100)
        assert server.requests[1]["max_tokens"] == 10
        assert trajectory.status is EpisodeStatus.COMPLETED
    with serving([says(calls=[("a", "add", '{"a": 1, "b": 1}')], tokens=(70, 30)), says("3")]) as server:
        trajectory = await played(server, max_tokens=100)
        assert len(server.requests) == 1
        assert (trajectory.truncated_by, len(trajectory.turns)) == ("context", 1)


async def test_a_conversation_too_long_for_the_server_is_truncated_and_scored_not_lost() -> None:
    said = refuses(400, "This model's maximum context length is 4096 tokens.", code="context_length_exceeded")
    with serving([says(calls=[("a", "add", '{"a": 1, "b": 1}')]), said]) as server:
        trajectory = await played(server)
        assert (trajectory.status, trajectory.truncated_by) == (EpisodeStatus.TRUNCATED, "context")
        assert (len(trajectory.turns), trajectory.reward) == (1, 0.0)


async def test_thinking_is_kept_apart_and_not_sent_back() -> None:
    thoughtful = says("so:", calls=[("a", "add", '{"a": 2, "b": 1}')], reasoning_content="hm \\boxed{9}")
    with serving([thoughtful, says("3")]) as server:
        trajectory = await played(server)
        assert trajectory.turns[0].text.startswith("<think>hm \\boxed{9}</think>\nso:")
        assert "hm" not in json.dumps(server.requests[1]["messages"])
    with serving([says("3", reasoning="short")]) as server:
        reply = await asked(server)
        assert (reply.reasoning, reply.content) == ("short", "3")


async def test_a_refusal_is_a_reply() -> None:
    with serving([says(None, refusal="I cannot help with that.")]) as server:
        assert (await asked(server)).content == "I cannot help with that."


async def test_images_are_sent_and_those_of_tools_follow_their_answers() -> None:
    picture = ImagePart(data=b"\x89PNG", media_type="image/png")
    url = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
    call = ToolCall(id="t1", name="look", arguments={"at": "x"}, raw="anything")
    shown = Message(role=ma.types.Role.TOOL, parts=(TextPart(text="seen"), picture), tool_call_id="t1", name="look")
    with serving([says("ok"), says("ok")]) as server:
        async with speaking(server) as model:
            conversation = model.conversation([])
            conversation.add(
                [
                    Message(role=ma.types.Role.USER, parts=(TextPart(text="what?"), picture)),
                    Message.assistant("", tool_calls=(call,)),
                    shown,
                    Message.tool("none", call=ToolCall(id="t2", name="look", arguments={}, raw="")),
                    Message.user("well?"),
                ]
            )
            await conversation.reply(PARAMS)
            sent = server.requests[0]["messages"]
            assert "tools" not in server.requests[0]
            image = {"type": "image_url", "image_url": {"url": url}}
            assert sent[0]["content"] == [{"type": "text", "text": "what?"}, image]
            assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"at":"x"}'
            assert sent[2] == {"role": "tool", "tool_call_id": "t1", "content": "seen"}
            assert sent[3]["tool_call_id"] == "t2"  # answers stand together; then come the images
            assert sent[4] == {"role": "user", "content": [{"type": "text", "text": "Images of look:"}, image]}
            assert sent[5] == {"role": "user", "content": "well?"}
            conversation.add([shown])  # at the end of an observation, too
            await conversation.reply(PARAMS)
            assert server.requests[1]["messages"][-1]["content"][1] == image


async def test_keys_of_requests_are_as_set_up() -> None:
    with serving([says("a"), says("b")]) as server:
        settings = {"max_tokens_key": "max_completion_tokens", "sends_seed": False, "extra_body": {"min_p": 0.1}}
        async with speaking(server, **settings) as model:
            conversation = model.conversation([])
            conversation.add([Message.system("be brief"), Message.user("hé\ud800")])
            await conversation.reply(ChatParams(max_new_tokens=3, top_p=0.5, top_k=7, temperature=0.2))
        body = server.requests[0]
        assert (body["max_completion_tokens"], body["top_p"], body["top_k"], body["min_p"]) == (3, 0.5, 7, 0.1)
        assert "seed" not in body
        assert "max_tokens" not in body
        assert body["messages"][0] == {"role": "system", "content": "be brief"}
        assert body["messages"][1]["content"] == "hé?"  # half a surrogate pair is no text


@pytest.mark.parametrize("key", ["messages", "temperature", "max_tokens"])
def test_a_key_that_requests_set_themselves_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"extra_body.{key}"):
        OpenAIChatModel(model="m", server=Server(base_url="http://h/v1"), extra_body={key: 1})


# --- faults of the server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [refuses(500, "oops"), refuses(503, "busy"), refuses(429, "slow down"), Answer(drops=True), refuses(529, "full")],
    ids=["500", "503", "429", "dropped", "529"],
)
async def test_what_may_pass_is_tried_again_and_a_bounded_number_of_times(fault: Answer) -> None:
    with serving([fault, fault, says("at last")]) as server:
        assert (await asked(server)).content == "at last"
        assert len(server.requests) == 3
    with serving(lambda _: fault) as server:
        with pytest.raises(EngineError, match=r"tried 3 times"):
            await asked(server, retries=2)
        assert len(server.requests) == 3


async def test_the_server_says_how_long_to_wait() -> None:
    with serving([refuses(429, "slow down", headers={"Retry-After": "0.3"}), says("now")]) as server:
        began = time.monotonic()
        await asked(server)
        assert time.monotonic() - began >= 0.3
    for header in ("soon", "nan", "-5", "Thu, 01 Jan 1970 00:00:00 GMT"):
        with serving([refuses(429, "slow down", headers={"Retry-After": header}), says("now")]) as server:
            began = time.monotonic()
            await asked(server)
            assert time.monotonic() - began < 0.3, header


async def test_the_deadline_holds_for_all_tries_together_and_tells_the_last_fault() -> None:
    with serving(lambda _: refuses(429, "slow down", headers={"Retry-After": "30"})) as server:
        async with speaking(server) as model:
            conversation = model.conversation([])
            conversation.add([Message.user("?")])
            began = time.monotonic()
            with pytest.raises(EngineError, match=r"no reply within 0.2 s.*429: slow down"):
                await conversation.reply(ChatParams(max_new_tokens=1, deadline_s=0.2))
            assert time.monotonic() - began < 2
    with serving([Answer(body={}, delay_s=1.0)]) as server:
        async with speaking(server) as model:
            conversation = model.conversation([])
            with pytest.raises(EngineError, match=r"no reply within 0.1 s"):
                await conversation.reply(ChatParams(max_new_tokens=1, deadline_s=0.1))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(body=b'{"choices": [{'), "no JSON"),
        (Answer(body=b"[1]"), "no JSON object"),
        (Answer(body={"choices": []}), "no message"),
        (Answer(body={"choices": [{"message": "text"}]}), "no message"),
        (says(["parts"]), "cannot be read"),  # type: ignore[arg-type]
        (says("x", tool_calls=[{"id": "c"}]), "tool call cannot be read"),
        (says("half", finish="abort"), "gave up"),
        (refuses(400, "temperature must be small"), "400: temperature must be small"),
        (Answer(status=400, body=b"<html>" + b"x" * 10_000), "400"),
    ],
)
async def test_an_answer_that_cannot_be_read_loses_the_episode_as_the_engines_fault(answer: Answer, said: str) -> None:
    with serving([answer]) as server:
        trajectory = await played(server)
        assert (trajectory.status, trajectory.cause) == (EpisodeStatus.FAILED, FailureCause.ENGINE)
        assert said in trajectory.error
        assert len(trajectory.error) <= 500
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refuses(401, "bad key"), "refuses"),
        (refuses(403, "not your model"), "refuses"),
        (refuses(404, "model gone"), "no such model or address"),
        (refuses(429, "pay first", code="insufficient_quota"), "no credit"),
        (refuses(400, "Unsupported parameter: 'max_tokens'", code="unsupported_parameter"), "engine.max_tokens_key"),
        (Answer(status=308, headers={"Location": "https://elsewhere/v1"}), "set engine.base_url"),
    ],
)
async def test_what_no_episode_can_get_past_stops_the_run_at_once(answer: Answer, said: str) -> None:
    with serving(lambda _: answer) as server:
        with pytest.raises(UsageError, match=said):
            await played(server)
        assert len(server.requests) == 1


# --- the start --------------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_one_message() -> None:
    with serving([]) as server:
        pass  # gone again
    with pytest.raises(UsageError, match=r"no answer from http://127.*engine.base_url"):
        await asked(server)


async def test_an_unknown_model_is_refused_with_the_names_that_there_are() -> None:
    with serving([], models=["mm", "other"]) as server, pytest.raises(UsageError, match="Did you mean 'mm'"):
        await asked(server)
    with serving([says("fine")], models=None) as server:  # a server that lists none
        assert (await asked(server)).content == "fine"


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:30000", "ftp://h/v1", f"http://user:{KEY}@h/v1", f"http://h/v1?key={KEY}", "http://h:port/v1"],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=r"engine.base_url") as caught:
        Server(base_url=url)
    assert KEY not in str(caught.value)


async def test_the_key_is_sent_and_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def repeating(request: Mapping[str, Any]) -> Answer:
        return Answer(body={"choices": [], "headers": {"Authorization": f"Bearer {KEY}"}})

    shown: list[str] = []
    with serving(repeating, key=KEY) as server:
        for key in ("wrong-" + KEY, ""):
            with pytest.raises(UsageError, match=r"401.*engine.api_key_env") as refused:
                await asked(server, key=key)
            shown.append(str(refused.value).replace("wrong-", ""))
        with pytest.raises(EngineError) as lost:
            await asked(server, key=KEY)
        shown += [str(lost.value), repr(lost.value)]
        assert "\\u2026" in shown[-1]
        assert b"sk" not in Client(Server(base_url=server.base_url, key=KEY))._without_key(
            KEY.replace("/", "\\/").encode()
        )
        made = Server(base_url=server.base_url, key=KEY)
        shown += [repr(made), repr(Client(made)), repr(vars(Client(made)))]
        shown += [repr(vars(OpenAIChatModel(model="m", server=made)))]
    assert KEY not in "".join([*shown, caplog.text])


async def test_a_request_without_a_session_is_the_engines_fault() -> None:
    model = OpenAIChatModel(model="m", server=Server(base_url="http://127.0.0.1:1/v1"))
    conversation: Conversation = model.conversation([])
    with pytest.raises(EngineError, match="closed"):
        await conversation.reply(PARAMS)
    await model.close()


async def test_many_episodes_share_the_connections() -> None:
    class One(Adding):
        def tasks(self, split: str) -> list[Task]:
            return [Task(id=f"{split}{n}", prompt=(Message.user("?"),), answer="1") for n in range(50)]

    with serving(lambda _: says("1")) as server:
        async with speaking(server) as model:
            policy = MessagePolicy(
                model=model, limits=ChatLimits(max_new_tokens=5, max_tokens=50), request_deadline_s=5.0
            )
            player = EpisodePlayer(policy=policy, deadline_s=10.0)
            from miles_agents.evaluation import play_all

            trajectories = await play_all(player, pool_of(One), One().tasks("test"), samples=2, seed=0, concurrency=32)
        assert [trajectory.reward for trajectory in trajectories] == [1.0] * 100
        assert len({request["seed"] for request in server.requests}) == 100
