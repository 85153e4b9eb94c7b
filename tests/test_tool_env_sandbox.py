"""`ToolEnv` and its sandbox: one an episode, closed however the episode ends."""

import asyncio

import pytest
from sums_env import Sums, call, calls, started

from miles_agents import Episode, Reply, ToolOutput
from miles_agents.contracts import EnvResources, ExecResult, ExecStatus, Language, Sandbox, SandboxProvider
from miles_agents.errors import GraderError, SandboxError, UsageError


class FakeSandbox(Sandbox):
    def __init__(self, provider):
        self.provider = provider
        self.closes = 0

    async def exec(self, code, *, timeout_s, language=Language.PYTHON):
        if code == "lost":
            raise SandboxError("lost")
        if code == "hang":
            await asyncio.sleep(60)
        if code == "nap":
            await asyncio.sleep(0.15)
        return ExecResult(status=ExecStatus.OK, stdout=code)

    async def read_file(self, path):
        raise FileNotFoundError(path)

    async def write_file(self, path, data): ...

    async def reset(self): ...

    async def close(self):
        self.closes += 1
        await asyncio.sleep(self.provider.close_takes_s)
        self.provider.live.discard(self)


class FakeSandboxes(SandboxProvider):
    description = "a fake"

    def __init__(self):
        self.live = set()
        self.opened = 0
        self.close_takes_s = 0.0

    async def start(self): ...

    async def open(self):
        self.opened += 1
        sandbox = FakeSandbox(self)
        self.live.add(sandbox)
        return sandbox

    async def close(self): ...


class Shell:
    name = "shell"
    needs_sandbox = True

    def schema(self):
        return {"type": "function", "function": {"name": "shell", "description": "", "parameters": {}}}

    async def call(self, arguments, context):
        result = await context.sandbox.exec(arguments["code"], timeout_s=1)
        return ToolOutput(result.stdout)


class Boxed(Sums):
    tools = (Shell(),)


@pytest.fixture
def sandboxes():
    return FakeSandboxes()


@pytest.fixture
def boxed(sandboxes):
    env = Boxed()
    env.bind(EnvResources(sandboxes=sandboxes))
    return env


async def opened(boxed):
    """An episode that has used its sandbox."""
    await started(boxed)
    await boxed.step(calls(call("shell", code="hello")))


async def test_an_episode_has_one_sandbox_of_its_own_from_its_first_use_until_it_ends(boxed, sandboxes):
    for episodes in (1, 2):
        await started(boxed)
        assert not sandboxes.live
        step = await boxed.step(calls(call("shell", code="hello"), call("shell", code="again")))
        assert [message.text for message in step.observation] == ["hello", "again"]
        assert len(sandboxes.live) == 1
        await boxed.step(Reply.of("4"))
        assert not sandboxes.live
        assert sandboxes.opened == episodes


async def test_reset_and_close_end_the_running_episode_and_its_sandbox(boxed, sandboxes):
    await opened(boxed)
    await started(boxed)
    assert not sandboxes.live
    await opened(boxed)
    assert len(sandboxes.live) == 1
    await boxed.close()
    await boxed.close()
    assert not sandboxes.live


async def test_reward_may_use_the_sandbox_while_it_lives(boxed, sandboxes):
    async def reward(episode: Episode):
        return float((await episode.sandbox.exec("1", timeout_s=1)).stdout)

    boxed.reward = reward
    await started(boxed)
    assert (await boxed.step(Reply.of(""))).reward == 1.0
    assert not sandboxes.live


async def test_a_lost_sandbox_is_never_output_and_is_closed(boxed, sandboxes):
    await started(boxed)
    with pytest.raises(SandboxError, match="lost"):
        await boxed.step(calls(call("shell", code="lost"), call("wait", seconds=0.1)))
    await boxed.close()
    assert not sandboxes.live


async def test_a_grader_error_still_closes_the_sandbox(boxed, sandboxes):
    boxed.reward = lambda episode: None
    await opened(boxed)
    assert len(sandboxes.live) == 1
    with pytest.raises(GraderError):
        await boxed.step(Reply.of(""))
    assert not sandboxes.live


async def test_cancelling_an_episode_leaves_no_sandbox(boxed, sandboxes):
    async def episode():
        try:
            await started(boxed)
            await boxed.step(calls(call("shell", code="hang")))
        finally:
            await boxed.close()

    boxed.tool_timeout_s = 60
    running = asyncio.create_task(episode())
    await asyncio.sleep(0.05)
    assert len(sandboxes.live) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not sandboxes.live


async def test_a_close_that_was_cancelled_can_be_repeated(boxed, sandboxes):
    await opened(boxed)
    sandboxes.close_takes_s = 30
    closing = asyncio.create_task(boxed.close())
    await asyncio.sleep(0.02)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    sandboxes.close_takes_s = 0.0
    await boxed.close()
    assert not sandboxes.live


async def test_a_failing_begin_leaves_no_sandbox(boxed, sandboxes):
    async def begin(task):
        await boxed.sandbox.exec("1", timeout_s=1)
        raise ValueError("no such file")

    boxed.begin = begin
    with pytest.raises(ValueError, match="no such file"):
        await started(boxed)
    assert not sandboxes.live
    with pytest.raises(UsageError):
        await boxed.step(Reply.of(""))


async def test_an_environment_without_sandbox_tools_says_so():
    with pytest.raises(SandboxError, match="none of its tools needs one"):
        _ = Sums().sandbox


async def test_a_tool_that_needs_a_sandbox_is_never_run_without_one():
    with pytest.raises(SandboxError, match="Boxed has a tool that needs a sandbox"):
        await started(Boxed())


async def test_an_episode_that_calls_no_tool_opens_no_sandbox(boxed, sandboxes):
    await started(boxed)
    await boxed.step(Reply.of("4"))
    assert sandboxes.opened == 0


async def test_calls_that_share_a_sandbox_do_not_run_down_each_others_deadlines(boxed, sandboxes):
    boxed.tool_timeout_s = 0.3
    await started(boxed)
    step = await boxed.step(calls(*(call("shell", code=code) for code in ("nap", "nap", "nap", "hang", "last"))))
    said = [message.text for message in step.observation]
    assert said == ["nap", "nap", "nap", "Error: 'shell' timed out after 0.3 s", "last"]


async def test_a_sandbox_that_cannot_be_opened_loses_the_episode_and_is_no_tool_timeout(boxed, sandboxes):
    async def open_():
        await asyncio.sleep(0.1)
        raise SandboxError("no processes left")

    sandboxes.open = open_
    boxed.tool_timeout_s = 0.01
    await started(boxed)
    with pytest.raises(SandboxError, match="no processes left"):
        await boxed.step(calls(call("shell", code="hello")))
