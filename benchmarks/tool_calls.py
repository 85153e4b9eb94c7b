"""Tool calls per second: straight through a sandbox session, and through `ToolEnv`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.bare_python import BARE, CODE, FORKED, bare_subprocess, forked
from benchmarks.measuring import Measure, Settings, Table, compared, interleaved
from benchmarks.runs import ground
from miles_agents.contracts import Env, Sandbox
from miles_agents.types import Reply, ToolCall

_TOGETHER = 32


async def measure(settings: Settings) -> list[Table]:
    """Calls per second, one after the other and 32 episodes at a time."""
    calls = settings.count(200, least=8)
    each = settings.count(40, least=2)
    # Level 2: the tool is never busy. Turns enough for every repetition to run inside one episode.
    turns = (settings.repeats + 2) * (calls + each) + 1  # the first episode is in both rows
    words = [*settings.words(), "env.level=2", f"env.max_turns={turns}"]
    async with ground(words) as place, AsyncExitStack() as stack:
        provider = place.opened.sandboxes
        if provider is None:
            raise RuntimeError("python_math needs a sandbox, yet none was opened")
        task = place.opened.train_tasks[0]
        sandboxes = [await stack.enter_async_context(await provider.open()) for _ in range(_TOGETHER)]
        envs = [await stack.enter_async_context(place.environments.lend()) for _ in range(_TOGETHER)]
        for env in envs:
            await env.reset(seed=0, options={"task": task})
        medians = await interleaved(
            {
                BARE: bare_subprocess(settings.count(10, least=2)),
                FORKED: forked(settings.count(100, least=4)),
                "sandbox, one session": _through_sandboxes(sandboxes[:1], calls),
                f"sandbox, {_TOGETHER} sessions at a time": _through_sandboxes(sandboxes, each),
                "ToolEnv, one episode": _through_envs(envs[:1], calls),
                f"ToolEnv, {_TOGETHER} episodes at a time": _through_envs(envs, each),
            },
            repeats=settings.repeats,
        )
    rows = compared(medians, "calls/s", baseline=BARE)
    rows += [row for row in compared(medians, "calls/s", baseline=FORKED) if row.against and row.name != BARE]
    note = f"{CODE}; the sessions are open already, state is kept between calls (bare and forked ones keep none)"
    return [Table(title="tool calls", rows=rows, notes=(note,))]


def _through_sandboxes(sandboxes: Sequence[Sandbox], calls: int) -> Measure:
    async def use(sandbox: Sandbox) -> None:
        for _ in range(calls):
            result = await sandbox.exec(CODE, timeout_s=5.0)
            if not result.stdout:
                raise RuntimeError(f"the call printed nothing: {result}")

    async def measured() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(use(sandbox) for sandbox in sandboxes))
        return calls * len(sandboxes) / (time.perf_counter() - started)

    return measured


def _through_envs(envs: Sequence[Env], calls: int) -> Measure:
    arguments = {"code": CODE}
    raw = json.dumps({"name": "python", "arguments": arguments})
    call = ToolCall(id="call_0", name="python", arguments=arguments, raw=raw)
    reply = Reply(text=f"<tool_call>\n{raw}\n</tool_call>", calls=(call,))

    async def use(env: Env) -> None:
        for _ in range(calls):
            result = await env.step(reply)
            if result.truncated or not result.info["tool_events"][0].ok:
                raise RuntimeError(f"the call did not succeed: {result}")

    async def measured() -> float:
        started = time.perf_counter()
        await asyncio.gather(*(use(env) for env in envs))
        return calls * len(envs) / (time.perf_counter() - started)

    return measured
