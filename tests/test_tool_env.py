"""`ToolEnv`: running calls, feedback, limits, scoring, and who is told about which error."""

import asyncio
import threading
import time

import numpy as np
import pytest
from sums_env import OPTIONS, TASK, Sums, bad_call, call, calls, started

from miles_agents import EpisodeError, Reply, ToolError, ToolOutput, tool
from miles_agents.errors import ConfigError, FailureCause, GraderError, SandboxError, UsageError


async def test_an_episode_runs_tools_and_scores_the_final_reply():
    env = Sums()
    observation, info = await env.reset(seed=0, options=OPTIONS)
    assert observation == TASK.prompt
    assert [schema["function"]["name"] for schema in info["tools"]] == ["add", "wait", "block", "fail"]
    step = await env.step(calls(call("add", "c7", a=2, b=2)))
    assert (step.reward, step.terminated, step.truncated) == (0.0, False, False)
    assert [(m.role, m.text, m.tool_call_id, m.name) for m in step.observation] == [("tool", "4", "c7", "add")]
    step = await env.step(Reply.of("4"))
    assert (step.observation, step.reward, step.terminated, step.truncated) == ((), 1.0, True, False)
    assert step.info["rewards"] == {"reward": 1.0}


async def test_changing_the_schemas_of_one_episode_changes_no_other():
    env = Sums()
    _, info = await env.reset(seed=0, options=OPTIONS)
    info["tools"].pop()["function"].clear()
    _, info = await env.reset(seed=0, options=OPTIONS)
    assert [schema["function"]["name"] for schema in info["tools"]] == ["add", "wait", "block", "fail"]


async def test_reward_sees_the_whole_episode():
    seen = []

    class Watched(Sums):
        def reward(self, episode):
            seen.append(episode)
            return 1.0

    env = await started(Watched())
    await env.step(calls(call("add", a=1, b=2)))
    await env.step(Reply.of("3"))
    (episode,) = seen
    assert [message.role for message in episode.messages] == ["user", "assistant", "tool", "assistant"]
    assert episode.final.content == "3"
    assert [event.result for event in episode.tool_events] == ["3"]


# case B01
async def test_B01_malformed_calls_are_answered_under_their_ids_and_never_executed():
    env = await started(Sums())
    step = await env.step(calls(bad_call("c0"), call("add", "c1", a=1, b=1), bad_call("c2", "x" * 50_000)))
    assert [message.tool_call_id for message in step.observation] == ["c0", "c1", "c2"]
    assert step.observation[0].text == "Error: no valid JSON"
    assert step.observation[1].text == "2"
    assert len(step.observation[2].text) <= 1000
    assert [event.ok for event in step.info["tool_events"]] == [False, True, False]
    assert env.ran == [(1, 1)]
    assert (await env.step(Reply.of("4"))).reward == 1.0


async def test_an_unknown_tool_is_answered_with_the_nearest_names():
    env = await started(Sums())
    step = await env.step(calls(call("ad"), call("z" * 10_000)))
    assert step.observation[0].text == "Error: unknown tool 'ad'. Did you mean 'add'? Allowed: add, block, fail, wait."
    assert len(step.observation[1].text) < 300


async def test_bad_arguments_and_a_tools_refusal_are_shown_to_the_model():
    env = await started(Sums())
    step = await env.step(calls(call("add", a="two", b=2), call("add", a=1), call("fail", how="refuse")))
    assert step.observation[0].text == "Error: bad arguments for 'add': 'a' must be an integer, got \"two\""
    assert step.observation[1].text == "Error: bad arguments for 'add': 'b' is missing"
    assert step.observation[2].text == "Error: not today"
    assert env.ran == []


async def test_calls_of_one_turn_run_at_once_and_are_answered_in_order():
    env = Sums()
    env.tool_timeout_s = 5.0
    await started(env)
    begun = time.perf_counter()
    step = await env.step(calls(*(call("wait", f"c{n}", seconds=0.3 - 0.03 * n, label=str(n)) for n in range(8))))
    assert time.perf_counter() - begun < 1.0  # 1.56 s one after another
    assert env.most_running == 8
    assert [message.text for message in step.observation] == list("01234567")


async def test_calls_beyond_the_limit_of_a_turn_are_answered_not_executed():
    env = await started(Sums())
    step = await env.step(calls(*(call("add", f"c{n}", a=n, b=0) for n in range(20))))
    assert [message.tool_call_id for message in step.observation] == [f"c{n}" for n in range(20)]
    assert len(env.ran) == 16
    assert step.observation[15].text == "15"
    assert step.observation[16].text == "Error: not executed: at most 16 calls in one turn"


@pytest.mark.parametrize("slow", [call("wait", seconds=30), call("block", seconds=5.0)])
async def test_a_slow_tool_is_a_timeout_message_and_the_episode_goes_on(slow):
    env = await started(Sums())
    begun = time.perf_counter()
    step = await env.step(calls(slow, call("add", a=1, b=1)))
    assert time.perf_counter() - begun < 2.0
    assert step.observation[0].text == f"Error: '{slow.name}' timed out after 0.3 s"
    assert step.observation[1].text == "2"
    assert (await env.step(Reply.of("4"))).reward == 1.0


async def test_long_output_keeps_head_and_tail():
    class Chatty(Sums):
        @tool
        def talk(self) -> str:
            """Talk."""
            return "a" * 50_000 + "z" * 50_000

    env = await started(Chatty())
    text = (await env.step(calls(call("talk")))).observation[0].text
    assert len(text) == 16_000
    assert text.startswith("aaa")
    assert text.endswith("zzz")
    assert "84000 characters left out" in text


@pytest.mark.parametrize(
    ("how", "error", "cause", "message"),
    [
        ("bug", EpisodeError, FailureCause.TOOL, "tool 'fail' raised KeyError: 'x'"),
        ("timeout", EpisodeError, FailureCause.TOOL, "tool 'fail' raised TimeoutError: a socket's own"),
        ("cancelled", EpisodeError, FailureCause.TOOL, "tool 'fail' raised CancelledError"),
        ("sandbox", SandboxError, FailureCause.SANDBOX, "gone"),
        ("grouped", SandboxError, FailureCause.SANDBOX, "gone"),
    ],
)
async def test_what_ends_an_episode_is_raised_as_itself_with_its_cause(how, error, cause, message):
    env = await started(Sums())
    with pytest.raises(error, match=message) as caught:
        await env.step(calls(call("wait", seconds=0.1), call("fail", how=how)))
    assert type(caught.value) is error
    assert caught.value.cause is cause
    assert env.running == 0  # the sibling call was stopped


async def test_a_tool_bug_keeps_its_own_traceback():
    env = await started(Sums())
    with pytest.raises(EpisodeError) as caught:
        await env.step(calls(call("fail", how="bug")))
    assert isinstance(caught.value.__cause__, KeyError)


async def test_errors_for_the_operator_pass_through_as_themselves():
    env = await started(Sums())
    with pytest.raises(ConfigError, match=r"set env\.key"):
        await env.step(calls(call("fail", how="usage"), call("wait", seconds=0.1)))


def test_ctrl_c_inside_a_tool_stops_everything():
    async def episode():
        env = await started(Sums())
        await env.step(calls(call("fail", how="interrupt"), call("wait", seconds=0.1)))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(episode())


async def test_several_failures_of_one_turn_raise_one_error():
    env = await started(Sums())
    with pytest.raises(EpisodeError):
        await env.step(calls(*(call("fail", how=how) for how in ("bug", "sandbox", "bug"))))


async def test_a_tool_that_gives_no_tool_output_is_a_tool_bug():
    class Odd(Sums):
        async def call_tool(self, tool, call, context):
            return "plain text"

    env = await started(Odd())
    with pytest.raises(EpisodeError, match="tool 'add' raised TypeError: it gave str, not ToolOutput"):
        await env.step(calls(call("add", a=1, b=1)))


async def test_cancelling_a_step_is_a_cancellation_even_if_a_tool_fails_meanwhile():
    class Spiteful(Sums):
        @tool
        async def resist(self) -> str:
            """Turn the cancellation into another error."""
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                raise SandboxError("lost while stopping") from None
            return ""

    env = await started(Spiteful())
    env.tool_timeout_s = 60
    step = asyncio.create_task(env.step(calls(call("resist"), call("wait", seconds=30))))
    await asyncio.sleep(0.05)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert env.running == 0


async def test_an_outer_deadline_stays_a_timeout():
    env = await started(Sums())
    env.tool_timeout_s = 60
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await env.step(calls(call("wait", seconds=30)))


# case F04
async def test_F04_a_reply_at_its_length_limit_is_truncated_and_graded():
    env = await started(Sums())
    step = await env.step(Reply(text="4", content="4", truncated=True))
    assert (step.reward, step.terminated, step.truncated) == (1.0, False, True)
    assert step.info["truncated_by"] == "max_new_tokens"


async def test_calls_of_a_cut_reply_are_not_executed():
    env = await started(Sums())
    step = await env.step(Reply(text="…", calls=(call("add", a=1, b=1),), truncated=True))
    assert step.truncated
    assert env.ran == []


async def test_the_last_turn_still_calling_tools_is_truncated_and_graded():
    env = await started(Sums())
    for _ in range(3):
        step = await env.step(calls(call("add", a=1, b=1)))
        assert not step.truncated
    step = await env.step(Reply(text="…", content="4", calls=(call("add", a=9, b=9),)))
    assert (step.reward, step.truncated, step.info["truncated_by"]) == (1.0, True, "max_turns")
    assert env.ran == [(1, 1)] * 3


async def test_truncation_from_outside_is_graded_even_before_the_first_reply():
    env = await started(Sums())
    step = await env.truncate("context")
    assert (step.reward, step.truncated, step.info["truncated_by"]) == (0.0, True, "context")
    with pytest.raises(UsageError):
        await env.truncate("context")


# case F07
@pytest.mark.parametrize(
    ("scored", "rewards", "total"),
    [
        (0.5, {"reward": 0.5}, 0.5),
        (1, {"reward": 1.0}, 1.0),
        (True, {"reward": 1.0}, 1.0),
        (np.float32(0.25), {"reward": 0.25}, 0.25),
        (np.int64(2), {"reward": 2.0}, 2.0),
        (np.bool_(True), {"reward": 1.0}, 1.0),
        ({"answer": 1.0, "style": np.float64(0.5)}, {"answer": 1.0, "style": 0.5}, 1.05),
    ],
)
async def test_F07_numbers_of_every_kind_are_rewards(scored, rewards, total):
    class Scored(Sums):
        def __init__(self):
            super().__init__()
            self.reward_weights = {"style": 0.1}

        def reward(self, episode):
            return scored

    step = await (await started(Scored())).step(Reply.of(""))
    assert step.info["rewards"] == rewards
    assert step.reward == pytest.approx(total, abs=1e-12)


# case F07
@pytest.mark.parametrize(
    "scored",
    [
        None, float("nan"), float("inf"), np.float64("nan"), 10**400, {}, {"a": None}, {"a": 1.0, "b": float("nan")},
        "1.0", [1.0], np.array([1.0]), np.complex64(1), 1j,
    ],
)  # fmt: skip
async def test_F07_anything_else_is_a_grader_error_that_names_the_task(scored):
    class Scored(Sums):
        def reward(self, episode):
            return scored

    env = await started(Scored())
    with pytest.raises(GraderError, match="task t1: reward") as caught:
        await env.step(Reply.of(""))
    assert caught.value.cause is FailureCause.GRADER


# case F07
async def test_F07_async_rewards_are_awaited_however_they_are_written():
    class Async(Sums):
        async def reward(self, episode):
            await asyncio.sleep(0)
            return 0.5

    class Wrapped(Sums):
        def reward(self, episode):
            async def later():
                return 0.5

            return later()

    for env in (Async(), Wrapped()):
        assert (await (await started(env)).step(Reply.of(""))).reward == 0.5


# case F07
async def test_F07_a_reward_that_raises_is_a_grader_error_with_its_cause():
    class Broken(Sums):
        def reward(self, episode):
            return {}["gold"]

    env = await started(Broken())
    with pytest.raises(GraderError, match="task t1: reward raised KeyError: 'gold'") as caught:
        await env.step(Reply.of(""))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (SandboxError("gone"), SandboxError),
        (ConfigError("set the key"), ConfigError),
        (TimeoutError("a socket's own"), GraderError),
        (asyncio.CancelledError(), GraderError),
        (ToolError("no"), GraderError),
    ],
)
async def test_errors_of_a_reward_keep_their_audience(error, raised):
    class Broken(Sums):
        async def reward(self, episode):
            raise error

    env = await started(Broken())
    with pytest.raises(raised) as caught:
        await env.step(Reply.of(""))
    assert type(caught.value) is raised
    assert "took more than" not in str(caught.value)


# case F07
async def test_F07_one_slow_reward_holds_up_no_other_and_not_the_event_loop():
    class Slow(Sums):
        reward_timeout_s = 0.8

        def __init__(self, work):
            super().__init__()
            self.work = work

        def reward(self, episode):
            self.work()
            return 1.0

    def busy():
        while not over.is_set():  # in pure Python, far past the limit
            pass

    async def heartbeat():
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.01)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    gaps = []
    over = threading.Event()
    envs = [Slow(busy), *(Slow(lambda: time.sleep(0.3)) for _ in range(63))]
    for env in envs:
        await started(env)
    beating = asyncio.create_task(heartbeat())
    begun = time.perf_counter()
    results = await asyncio.gather(*(env.step(Reply.of("")) for env in envs), return_exceptions=True)
    took = time.perf_counter() - begun
    over.set()
    beating.cancel()
    assert isinstance(results[0], GraderError)
    assert "reward took more than 0.8 s" in str(results[0])
    assert [result.reward for result in results[1:]] == [1.0] * 63
    assert took < 5.0  # 0.8 s; 19 s one after another
    assert max(gaps) < 0.2


async def test_two_tools_of_one_name_are_refused():
    def add(a: int) -> int:
        return a

    class Twice(Sums):
        tools = (add,)

    with pytest.raises(UsageError, match="two tools named 'add'"):
        await started(Twice())


async def test_reset_needs_a_task():
    for options in (None, {}, {"task": "2+2?"}):
        with pytest.raises(UsageError, match="options="):
            await Sums().reset(seed=0, options=options)


async def test_step_outside_an_episode_is_refused():
    env = Sums()
    with pytest.raises(UsageError, match="call reset"):
        await env.step(Reply.of(""))
    await started(env)
    await env.step(Reply.of(""))
    with pytest.raises(UsageError, match="call reset"):
        await env.step(Reply.of(""))


async def test_randomness_is_the_environments_own():
    class Dice(Sums):
        async def call_tool(self, tool, call, context):
            return ToolOutput(str(context.np_random.integers(10**9)))

    async def roll(env, seed):
        await started(env, seed)
        step = await env.step(calls(call("add", "c0", a=1, b=1), call("add", "c1", a=1, b=1)))
        return [message.text for message in step.observation]

    first, second = Dice(), Dice()
    assert await roll(first, 7) == await roll(second, 7)
    assert await roll(first, 7) != await roll(second, 8)
    one, other = Dice(), Dice()
    assert one.np_random is not other.np_random  # unseeded ones share nothing
    assert one.np_random is one.np_random
