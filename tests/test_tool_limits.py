"""Deadlines, places and retries of single tools, and the times and kinds that their events say."""

import asyncio
import time

import pytest
from sums_env import OPTIONS, TASK, Sums, bad_call, call, calls, started
from test_tool_env_sandbox import FakeSandboxes

from miles_agents import EpisodeError, InfrastructureError, Reply, ToolEnv, ToolError, ToolLimits, ToolOutput, tool
from miles_agents.contracts import EnvResources
from miles_agents.contracts.tools import FunctionTool, as_tool
from miles_agents.errors import FailureCause, SandboxError, ToolErrorKind


class Answering(ToolEnv):
    """Nothing but the tools it is given."""

    def __init__(self, *tools, **settings):
        self.tools = tools
        self.__dict__.update(settings)

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        return 1.0


async def events_of(env, *made):
    await env.reset(seed=0, options=OPTIONS)
    return list((await env.step(calls(*made))).info["tool_events"])


class Flaky:
    """Fails as often as it is told to, with the error it is told to."""

    name = "flaky"
    needs_sandbox = False

    def __init__(self, failures, *, error=None, retries=2, timeout_s=None):
        self.failures = failures
        self.error = error or InfrastructureError("no connection")
        self.limits = ToolLimits(retries=retries, timeout_s=timeout_s)
        self.calls = 0

    def schema(self):
        return {"type": "function", "function": {"name": self.name, "description": "", "parameters": {}}}

    async def call(self, arguments, context):
        self.calls += 1
        assert len(context.faults) == self.calls - 1
        if self.calls <= self.failures:
            raise self.error
        return ToolOutput("at last", info={"size": 7})


# --- deadlines --------------------------------------------------------------------------------------------------------


async def test_a_tools_own_deadline_goes_before_the_environments():
    @tool(timeout_s=0.05)
    async def quick() -> str:
        """Never quick."""
        await asyncio.sleep(30)
        return ""

    @tool(timeout_s=30)
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(0.2)
        return "done"

    first, second = await events_of(Answering(quick, slow, tool_timeout_s=0.1), call("quick"), call("slow"))
    assert (first.result, first.error_kind) == ("Error: 'quick' timed out after 0.05 s", ToolErrorKind.TIMEOUT)
    assert (second.result, second.error_kind) == ("done", ToolErrorKind.NONE)


async def test_marked_methods_keep_their_options():
    class Marked(Sums):
        @tool(name="nap", timeout_s=0.05, max_concurrency=3, retries=1)
        async def rest(self) -> str:
            """Rest."""
            await asyncio.sleep(30)
            return ""

    env = Marked()
    (nap,) = [each for each in env.all_tools() if each.name == "nap"]
    assert nap.limits == ToolLimits(timeout_s=0.05, max_concurrency=3, retries=1)
    await started(env)
    assert (await env.step(calls(call("nap")))).observation[0].text == "Error: 'nap' timed out after 0.05 s"


# --- places -----------------------------------------------------------------------------------------------------------


class Busy(ToolEnv):
    running = 0
    most = 0

    @tool(max_concurrency=2)
    async def work(self, seconds: float) -> str:
        """Work."""
        Busy.running += 1
        Busy.most = max(Busy.most, Busy.running)
        await asyncio.sleep(seconds)
        Busy.running -= 1
        return "done"

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        return 1.0


async def test_a_tool_runs_at_most_so_often_at_a_time_over_all_episodes_and_waiting_is_no_timeout():
    Busy.most = 0
    envs = [Busy() for _ in range(6)]
    for env in envs:
        env.tool_timeout_s = 0.9
    found = await asyncio.gather(*(events_of(env, *[call("work", seconds=0.2)] * 2) for env in envs))
    events = [event for each in found for event in each]
    assert [event.result for event in events] == ["done"] * 12  # the last ones waited 1 s
    assert Busy.most == 2
    assert max(event.wait_s for event in events) > 0.9
    assert all(0.19 < event.duration_s < 0.9 for event in events)


def test_places_belong_to_the_running_event_loop():
    for _ in range(2):
        events = asyncio.run(events_of(Busy(), *[call("work", seconds=0.01)] * 4))
        assert [event.ok for event in events] == [True] * 4


async def test_tools_that_environments_make_anew_share_places_if_they_say_so():
    class Counting:
        name = "count"
        needs_sandbox = False
        limits = ToolLimits(max_concurrency=1)
        running = 0
        most = 0

        def schema(self):
            return {"type": "function", "function": {"name": self.name, "description": "", "parameters": {}}}

        async def call(self, arguments, context):
            kind = type(self)
            kind.running += 1
            kind.most = max(kind.most, kind.running)
            await asyncio.sleep(0.02)
            kind.running -= 1
            return ToolOutput("")

    class Sharing(Counting):
        definition = "sharing"
        running = most = 0

    for kind, most in ((Counting, 4), (Sharing, 1)):
        await asyncio.gather(*(events_of(Answering(kind()), call("count")) for _ in range(4)))
        assert kind.most == most


async def test_a_cancelled_wait_gives_its_place_back():
    env, other = Busy(), Busy()
    first = asyncio.create_task(events_of(env, *[call("work", seconds=0.2)] * 2))
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(events_of(other, call("work", seconds=0.0)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [event.ok for event in await first] == [True, True]
    assert [event.ok for event in await events_of(other, *[call("work", seconds=0.0)] * 3)] == [True] * 3


# --- retries ----------------------------------------------------------------------------------------------------------


async def test_infrastructure_faults_are_tried_again_and_counted():
    flaky = Flaky(failures=2)
    (event,) = await events_of(Answering(flaky), call("flaky"))
    assert (event.result, event.ok, event.info) == ("at last", True, {"size": 7, "retries": 2})
    assert flaky.calls == 3


async def test_a_fault_that_stays_costs_the_episode_and_is_the_tools():
    flaky = Flaky(failures=9)
    with pytest.raises(InfrastructureError, match=r"^tool 'flaky' failed 3 times: no connection$") as caught:
        await events_of(Answering(flaky), call("flaky"))
    assert caught.value.cause is FailureCause.TOOL
    assert flaky.calls == 3


async def test_without_retries_a_tool_is_called_once():
    flaky = Flaky(failures=1, retries=0)
    with pytest.raises(InfrastructureError, match="^tool 'flaky' failed: no connection$"):
        await events_of(Answering(flaky), call("flaky"))
    assert flaky.calls == 1


@pytest.mark.parametrize("error", [ToolError("not today"), SandboxError("gone"), ValueError("a bug")])
async def test_nothing_else_is_tried_again(error):
    flaky = Flaky(failures=1, error=error)
    if isinstance(error, ToolError):
        (event,) = await events_of(Answering(flaky), call("flaky"))
        assert (event.result, event.error_kind) == ("Error: not today", ToolErrorKind.ERROR)
    else:
        with pytest.raises(EpisodeError):
            await events_of(Answering(flaky), call("flaky"))
    assert flaky.calls == 1


async def test_the_deadline_covers_all_tries_and_is_then_no_fault_of_the_model():
    flaky = Flaky(failures=10**6, retries=10**6, timeout_s=0.4)
    begun = time.perf_counter()
    with pytest.raises(InfrastructureError, match=r"'flaky' failed .*times: no connection"):
        await events_of(Answering(flaky), call("flaky"))
    assert time.perf_counter() - begun < 5
    assert 1 < flaky.calls < 20  # it waits longer each time


async def test_the_hook_around_a_call_sees_it_once_however_often_it_is_tried():
    class Watched(Answering):
        seen = 0

        async def call_tool(self, tool, call, context):
            self.seen += 1
            return await super().call_tool(tool, call, context)

    env = Watched(Flaky(failures=2))
    await events_of(env, call("flaky"))
    assert env.seen == 1


# --- what an event says -----------------------------------------------------------------------------------------------


async def test_every_kind_of_error_is_named_in_its_event():
    env = Sums()
    env.max_calls_per_turn = 6
    await started(env)
    made = (
        call("add", a=1, b=2),
        call("add", a="x", b=2),
        call("ad", a=1, b=2),
        bad_call("c3"),
        call("wait", seconds=30),
        call("fail", how="refuse"),
        call("add", a=1, b=2),
    )
    events = (await env.step(calls(*made))).info["tool_events"]
    kinds = ["", "bad_arguments", "unknown_tool", "malformed_call", "timeout", "error", "not_executed"]
    assert [event.error_kind.value for event in events] == kinds
    assert [event.ok for event in events] == [kind == "" for kind in kinds]


async def test_the_kind_that_a_tool_gives_is_kept_and_makes_its_output_an_error():
    def crash() -> ToolOutput:
        return ToolOutput("gone", error_kind=ToolErrorKind.CRASHED)

    (event,) = await events_of(Answering(crash), call("crash"))
    assert (event.ok, event.error_kind) == (False, ToolErrorKind.CRASHED)
    assert ToolOutput("", ok=False).error_kind is ToolErrorKind.ERROR


async def test_waiting_for_the_sandbox_is_no_part_of_a_calls_duration():
    class Slow(FakeSandboxes):
        async def open(self):
            await asyncio.sleep(0.2)
            return await super().open()

    class Shell:
        name = "shell"
        needs_sandbox = True

        def schema(self):
            return {"type": "function", "function": {"name": "shell", "description": "", "parameters": {}}}

        async def call(self, arguments, context):
            await asyncio.sleep(0.15)
            return ToolOutput("")

    env = Answering(Shell())
    env.bind(EnvResources(sandboxes=Slow()))
    first, second = await events_of(env, call("shell"), call("shell"))
    await env.close()
    assert 0.19 < first.wait_s < second.wait_s
    assert second.wait_s > 0.34
    for event in (first, second):
        assert 0.14 < event.duration_s < first.wait_s + 0.1


async def test_the_calls_of_a_turn_are_answered_in_call_order_whichever_ends_first():
    @tool
    async def nap(seconds: float) -> str:
        """Sleep."""
        await asyncio.sleep(seconds)
        return f"{seconds:g}"

    events = await events_of(Answering(nap), *(call("nap", f"c{n}", seconds=0.2 - 0.05 * n) for n in range(4)))
    assert [event.call.id for event in events] == ["c0", "c1", "c2", "c3"]
    assert [event.result for event in events] == ["0.2", "0.15", "0.1", "0.05"]


# --- calls that end the episode ---------------------------------------------------------------------------------------


class Handing(ToolEnv):
    """Has a tool that hands in the answer, if it is a long one."""

    max_turns = 3

    def __init__(self):
        self.log = []

    @tool
    async def note(self, text: str, seconds: float = 0.0) -> str:
        """Note."""
        await asyncio.sleep(seconds)
        self.log.append(text)
        return text

    @tool(ends_episode=True)
    async def hand_in(self, answer: str) -> str | ToolOutput:
        """Hand in."""
        self.log.append(f"handing in {answer}")
        return answer if len(answer) > 1 else ToolOutput("too short", ok=False)

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        self.episode = episode
        return float(episode.submitted == "42")


async def handing(*made, turns=1):
    env = Handing()
    await env.reset(seed=0, options=OPTIONS)
    for _ in range(turns - 1):
        await env.step(calls(call("note", text="…")))
    return env, await env.step(calls(*made))


async def test_a_submitted_answer_ends_the_episode_and_is_graded():
    env, step = await handing(call("hand_in", "c7", answer="42"))
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert [(message.text, message.tool_call_id) for message in step.observation] == [("42", "c7")]
    assert [event.ok for event in step.info["tool_events"]] == [True]
    assert env.episode.submitted == "42"
    assert [message.role for message in env.episode.messages] == ["user", "assistant", "tool"]
    assert not env.episode.truncated


async def test_calls_before_a_submission_end_first_and_calls_behind_it_never_run():
    env, step = await handing(
        call("note", "c0", text="a", seconds=0.1),
        call("note", "c1", text="b"),
        call("hand_in", "c2", answer="42"),
        call("hand_in", "c3", answer="43"),
        call("note", "c4", text="c"),
    )
    assert env.log == ["b", "a", "handing in 42"]
    assert env.episode.submitted == "42"
    assert [event.error_kind.value for event in step.info["tool_events"]] == [
        "",
        "",
        "",
        "not_executed",
        "not_executed",
    ]
    assert [message.tool_call_id for message in step.observation] == ["c0", "c1", "c2", "c3", "c4"]
    assert step.observation[3].text == "Error: not executed: the episode has ended"


async def test_a_submission_that_is_refused_ends_nothing_and_the_calls_behind_it_run():
    env, step = await handing(call("hand_in", answer="4"), call("hand_in"), call("note", text="a"))
    assert [event.error_kind.value for event in step.info["tool_events"]] == ["error", "bad_arguments", ""]
    assert not step.terminated
    assert env.log == ["handing in 4", "a"]
    assert (await env.step(calls(call("hand_in", answer="42")))).reward == 1.0


async def test_the_last_turn_runs_its_calls_only_if_one_may_submit():
    env, step = await handing(call("note", text="a"), call("hand_in", answer="42"), turns=3)
    assert (step.reward, step.terminated) == (1.0, True)
    assert env.log == ["…", "…", "a", "handing in 42"]
    env, step = await handing(call("note", text="a"), turns=3)
    assert (step.truncated, step.info["truncated_by"], env.log) == (True, "max_turns", ["…", "…"])
    env, step = await handing(call("hand_in", answer="4"), turns=3)
    assert (step.truncated, step.info["truncated_by"]) == (True, "max_turns")
    assert [message.text for message in step.observation] == ["too short"]
    assert env.episode.submitted is None


async def test_a_reply_without_calls_still_ends_the_episode():
    env, step = Handing(), None
    await env.reset(seed=0, options=OPTIONS)
    step = await env.step(Reply.of("42"))
    assert (step.reward, step.terminated, env.episode.submitted) == (0.0, True, None)


async def test_a_tool_may_submit_only_if_it_says_that_it_may():
    def sneak() -> ToolOutput:
        return ToolOutput("", submitted="42")

    with pytest.raises(EpisodeError, match="tool 'sneak' raised TypeError: .* ends_episode is not True") as caught:
        await events_of(Answering(sneak), call("sneak"))
    assert caught.value.cause is FailureCause.TOOL


def test_options_of_a_bound_method_are_those_of_its_definition():
    class Once:
        @tool(max_concurrency=1, ends_episode=True)
        def end(self) -> str:
            """End."""
            return ""

    marked = as_tool(Once.end)
    assert isinstance(marked, FunctionTool)
    bound = marked.bind_to(Once())
    assert (bound.limits, bound.ends_episode, bound.definition) == (marked.limits, True, marked.definition)
