"""An environment whose tools have every temper, for the tests of `ToolEnv`."""

import asyncio
import time

from miles_agents import Message, Reply, Task, ToolEnv, ToolError, tool
from miles_agents.errors import ConfigError, SandboxError
from miles_agents.types import ToolCall

TASK = Task(id="t1", prompt=(Message.user("2+2?"),), answer="4")
OPTIONS = {"task": TASK}


def call(name, call_id="c0", **arguments):
    return ToolCall(id=call_id, name=name, arguments=arguments, raw="…")


def calls(*each):
    return Reply(text="…", calls=tuple(each))


def bad_call(call_id, error="no valid JSON", name="add"):
    return ToolCall(id=call_id, name=name, arguments=None, raw='{"x', error=error)


class Sums(ToolEnv):
    """Tools of every temper; records what really ran."""

    max_turns = 4
    tool_timeout_s = 0.3
    reward_timeout_s = 0.3

    def __init__(self):
        self.ran = []
        self.running = 0
        self.most_running = 0

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add."""
        self.ran.append((a, b))
        return a + b

    @tool
    async def wait(self, seconds: float, label: str = "") -> str:
        """Wait."""
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return label

    @tool
    def block(self, seconds: float) -> str:
        """Block a thread."""
        time.sleep(seconds)
        return "woke"

    @tool
    async def fail(self, how: str) -> str:
        """Fail."""
        raise {
            "refuse": ToolError("not today"),
            "bug": KeyError("x"),
            "timeout": TimeoutError("a socket's own"),
            "cancelled": asyncio.CancelledError(),
            "sandbox": SandboxError("gone"),
            "grouped": ExceptionGroup("many", [ValueError("v"), SandboxError("gone")]),
            "usage": ConfigError("set env.key=…"),
            "interrupt": KeyboardInterrupt(),
        }[how]

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        return float(episode.final.content == episode.task.answer)


async def started(env, seed=0):
    await env.reset(seed=seed, options=OPTIONS)
    return env
