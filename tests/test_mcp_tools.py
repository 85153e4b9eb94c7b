"""Tools of MCP servers, over stdio and streamable HTTP, against real servers."""

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sums_env import OPTIONS, TASK, calls

from miles_agents import InfrastructureError, Reply, ToolEnv, ToolLimits
from miles_agents.contracts import EnvResources
from miles_agents.errors import FailureCause, ToolErrorKind, UsageError
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.tools import MCPServer
from miles_agents.types import ToolCall

SCRIPT = Path(__file__).parent / "mcp_demo_server.py"
COMMAND = [sys.executable, str(SCRIPT)]
ALL = ["add", "nap", "count", "fail", "picture", "environment", "die"]


class Served(ToolEnv):
    max_turns = 100

    def __init__(self, server, **settings):
        self.tools = (server,)
        self.__dict__.update(settings)

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        return 1.0


def call(name, /, **arguments):
    return ToolCall(id="c0", name=name, arguments=arguments, raw="…")


async def events_of(env, *made):
    await env.reset(seed=0, options=OPTIONS)
    return list((await env.step(calls(*made))).info["tool_events"])


class Web:
    """The demo server over HTTP, started and killed at will."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.process = None

    def start(self):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*COMMAND, str(self.port)], **quiet)
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.1)
        raise AssertionError("the demo server does not start")

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def web():
    server = Web()
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["stdio", "http"])
async def server(request):
    if request.param == "stdio":
        server = MCPServer(command=COMMAND)
    else:
        server = MCPServer(url=request.getfixturevalue("web").url)
    yield server
    await server.close()


def own_children():
    """The processes that this one has started and that still run this file's server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and str(SCRIPT) in (folder / "cmdline").read_text():
                found.append(folder.name)
    return found


async def test_names_descriptions_and_schemas_are_the_servers_own(server):
    env = Served(server)
    _, info = await env.reset(seed=0, options=OPTIONS)
    assert [schema["function"]["name"] for schema in info["tools"]] == ALL
    add = info["tools"][0]["function"]
    assert add["description"] == "Add two numbers."
    assert add["parameters"]["properties"]["a"]["type"] == "integer"
    assert add["parameters"]["required"] == ["a", "b"]


async def test_results_and_errors_are_shown_and_what_is_no_text_is_named(server):
    made = [call("add", a=1, b=2), call("fail"), call("add", a="x", b=2), call("picture")]
    events = await events_of(Served(server), *made)
    assert [event.error_kind.value for event in events] == ["", "error", "error", ""]
    assert events[0].result == "3"
    assert events[1].result.startswith("Error: Error executing tool fail")
    assert "valid integer" in events[2].result
    assert events[3].result == "a picture:\n[image, image/png, 4 bytes: not shown]"


async def test_calls_run_at_once_under_their_own_deadlines_and_the_connection_stays(server):
    env = Served(server)
    await env.reset(seed=0, options=OPTIONS)
    begun = time.perf_counter()
    events = (await env.step(calls(*[call("nap", seconds=0.5)] * 8))).info["tool_events"]
    took = time.perf_counter() - begun
    assert [event.result for event in events] == ["woke"] * 8
    assert sum(event.duration_s for event in events) > 3 * took  # one after the other it would be no more than that
    env.tool_timeout_s = 0.2
    (event,) = (await env.step(calls(call("nap", seconds=60)))).info["tool_events"]
    assert event.error_kind is ToolErrorKind.TIMEOUT
    env.tool_timeout_s = 30
    assert [event.result for event in (await env.step(calls(call("add", a=1, b=1)))).info["tool_events"]] == ["2"]


async def test_a_lost_server_costs_the_episodes_that_called_it_and_the_next_use_connects_anew(server, request):
    env = Served(server)
    assert [event.result for event in await events_of(env, call("count"))] == ["1"]
    assert [event.result for event in await events_of(env, call("count"))] == ["2"]  # episodes share the connection
    with pytest.raises(InfrastructureError, match="was lost") as caught:
        await events_of(env, call("nap", seconds=30), call("die"))
    assert caught.value.cause is FailureCause.TOOL
    if server.address.url:
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            await events_of(env, call("count"))
        web = request.getfixturevalue("web")
        web.kill()  # it is dead already; this takes its end
        web.start()
    else:
        assert "its stderr ends with: the demo server gives up" in str(caught.value)
    assert [event.result for event in await events_of(env, call("count"))] == ["1"]  # another process


async def test_the_retries_of_a_lost_server_are_the_operators_choice():
    server = MCPServer(command=COMMAND, limits=ToolLimits(retries=1))
    env = Served(server)
    with pytest.raises(InfrastructureError, match="tool 'die' failed 2 times"):
        await events_of(env, call("die"))
    await env.close_shared()


async def test_one_process_serves_all_episodes_and_ends_with_the_run():
    class Fixed(ToolEnv):
        tools = (MCPServer(command=COMMAND, only=["count", "add"]),)

        def tasks(self, split):
            return [TASK]

        def reward(self, episode):
            return 1.0

    pool = EnvironmentPool(Fixed, EnvResources())

    async def episode():
        async with pool.lend() as env:
            (event,) = await events_of(env, call("count"))
            await env.step(Reply.of("done"))
            return int(event.result)

    assert own_children() == []
    with pytest.raises(UsageError, match="not open yet"):
        pool.tools()
    async with pool.shared():
        assert [tool.name for tool in pool.tools()] == ["count", "add"]
        assert [tool.name for tool in pool.refusing_tools().tools()] == ["count", "add"]
        numbers = await asyncio.gather(*(episode() for _ in range(8)))
        assert sorted(numbers) == list(range(1, 9))
        assert len(own_children()) == 1
    assert own_children() == []


async def test_environments_that_make_their_server_anew_share_its_process():
    envs = [Served(MCPServer(command=COMMAND)) for _ in range(4)]
    found = await asyncio.gather(*(events_of(env, call("count")) for env in envs))
    assert sorted(event.result for (event,) in found) == ["1", "2", "3", "4"]
    assert len(own_children()) == 1
    for env in envs:
        await env.close_shared()
    assert own_children() == []


def test_a_run_that_forgets_to_close_leaves_no_process_behind():
    async def run():
        assert (await events_of(Served(server), call("count")))[0].result == "1"

    server = MCPServer(command=COMMAND)
    for _ in range(2):  # each event loop has a connection of its own
        asyncio.run(run())
        assert own_children() == []


async def test_the_limit_of_calls_at_a_time_holds_for_all_tools_of_a_server():
    server = MCPServer(command=COMMAND, limits=ToolLimits(max_concurrency=1))
    events = await events_of(Served(server), call("nap", seconds=0.3), call("nap", seconds=0.3), call("add", a=1, b=1))
    await server.close()
    assert events[2].wait_s > 0.55


async def test_a_server_sees_no_more_of_the_environment_than_it_is_given(monkeypatch):
    monkeypatch.setenv("MILES_SECRET", "s3cret")
    server = MCPServer(command=COMMAND, env={"GIVEN": "yes"})
    events = await events_of(
        Served(server), call("environment", name="MILES_SECRET"), call("environment", name="GIVEN")
    )
    await server.close()
    assert [event.result for event in events] == ["(not set)", "yes"]


async def test_a_command_that_is_none_is_the_operators_error():
    with pytest.raises(UsageError, match="MCP server '/nowhere/server' cannot be started: .*No such file"):
        await MCPServer(command=["/nowhere/server"]).open()


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (
            MCPServer(command=[sys.executable, "-c", "import sys; sys.exit('out of luck')"]),
            "cannot be reached: .*; its stderr ends with: out of luck",
        ),
        (MCPServer(url="http://127.0.0.1:9/mcp"), "cannot be reached"),
        (MCPServer(command=["sleep", "60"]), "gave no answer in 0.5 s"),
    ],
)
async def test_a_server_that_does_not_answer_is_a_fault_of_the_infrastructure_and_stops_a_run_at_its_start(
    server, message
):
    if "sleep" in server.address.command:
        server.address = dataclasses.replace(server.address, connect_timeout_s=0.5)
    with pytest.raises(InfrastructureError, match=message):
        await server.open()
    with pytest.raises(UsageError, match=message):
        async with EnvironmentPool(lambda: Served(server), EnvResources()).shared():
            pass
    await server.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either command"),
        ({"command": ["a"], "url": "http://x"}, "either command"),
        ({"command": "my-server --fast"}, r"give a list of words: \['my-server', '--fast'\]"),
    ],
)
def test_a_server_is_given_by_a_command_or_an_address(arguments, message):
    with pytest.raises(UsageError, match=message):
        MCPServer(**arguments)


async def test_a_tool_that_the_server_does_not_have_is_named_with_the_nearest():
    server = MCPServer(command=COMMAND, only=["ad"])
    with pytest.raises(UsageError, match="has no tool 'ad'. Did you mean 'add'?"):
        await server.open()
    await server.close()


def test_neither_the_package_nor_a_connection_is_needed_to_write_an_environment_down():
    code = (
        "import sys\n"
        "from miles_agents.tools import MCPServer\n"
        "MCPServer(command=['server'])\n"
        "print(sorted(name for name in ('mcp', 'httpx2', 'anyio', 'aiohttp', 'bm25s') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
