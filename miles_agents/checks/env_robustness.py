"""Checks of what an environment keeps when a tool hangs, a step is cancelled, an episode ends in the middle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from miles_agents.checks.env_arguments import draw_arguments
from miles_agents.checks.env_intruder import endless, ways_in
from miles_agents.checks.env_play import calling, saying
from miles_agents.checks.env_row import EnvCheck, NotApplicable
from miles_agents.checks.env_subject import Subject
from miles_agents.contracts import Env, Tool, ToolEnv
from miles_agents.contracts.tools import limits_of
from miles_agents.types import Reply, Role

_SHORT_DEADLINE_S = 0.5  # given to tools that hang
_PATIENCE_S = 60.0  # a longer deadline is not waited for
_MOST_TOOLS = 16  # of those that are made to hang
_MOST_STEPS = 100


async def _hanging_tools(subject: Subject) -> str:
    schemas = await _schemas_by_name(subject)
    if not schemas:
        raise NotApplicable("it offers no tools")
    env, tools = subject.hanging(_SHORT_DEADLINE_S)
    for tool in tools[:_MOST_TOOLS]:
        await env.reset(seed=subject.seed, options={"task": subject.first})
        reply = calling((tool.name, draw_arguments(schemas.get(tool.name, {}), subject.rng(subject.first))))
        await _returns_within(subject, env, reply, _SHORT_DEADLINE_S, f"'{tool.name}' never answers")
        await env.close()
    if not any(tool.calls for tool in tools):
        raise NotApplicable("none of its tools could be made to hang: it does not call what all_tools() gives")
    waited = [each async for each in _endless_programs(subject)]
    return ", ".join([f"{len(tools[:_MOST_TOOLS])} made to hang", *waited])


async def _schemas_by_name(subject: Subject) -> dict[str, Mapping[str, Any]]:
    return {schema["function"]["name"]: schema for schema in await subject.schemas()}


async def _returns_within(subject: Subject, env: Env, reply: Reply, deadline_s: float, what: str) -> None:
    began = time.monotonic()
    step = asyncio.ensure_future(env.step(reply))  # not awaited: it might keep its cancellation to itself
    await asyncio.wait({step}, timeout=deadline_s + subject.settings.slack_s)
    if not step.done():
        step.cancel()
        waited_s = time.monotonic() - began
        raise AssertionError(
            f"{what}, a call may take {deadline_s:g} s, and step() had not come back after {waited_s:.1f} s"
        )
    result = step.result()
    if result.terminated or result.truncated:
        return
    answers = [message for message in result.observation if message.role is Role.TOOL]
    assert answers, f"{what}: the model is told nothing"


async def _endless_programs(subject: Subject) -> AsyncIterator[str]:
    """Real programs that never end, in the sandbox, under the tools' own deadlines."""
    if subject.sandboxes is None:
        return
    env = subject.new()
    await env.reset(seed=subject.seed, options={"task": subject.first})
    tools = {tool.name: tool for tool in env.all_tools()}
    for name, reply in endless(ways_in(list(tools.values()))):
        deadline_s = _deadline_of(env, tools[name])
        if deadline_s > _PATIENCE_S:
            yield f"'{name}' may take {deadline_s:g} s, which was not waited for"
            continue
        await env.reset(seed=subject.seed, options={"task": subject.first})
        await _returns_within(subject, env, reply, deadline_s, f"'{name}' runs a program that never ends")
        yield f"an endless program in '{name}'"
    await env.close()


def _deadline_of(env: Env, tool: Tool) -> float:
    own_s = limits_of(tool).timeout_s
    return own_s if own_s is not None else float(getattr(env, "tool_timeout_s", _PATIENCE_S))


async def _cancellation(subject: Subject) -> str:
    env, waiting = await _waiting(subject)
    former = subject.open_now()
    step = asyncio.ensure_future(env.step(waiting))
    await asyncio.sleep(0.1)
    if step.done():
        raise NotApplicable("a step that was made to wait did not wait: it does not call what all_tools() gives")
    step.cancel()
    slack_s = subject.settings.slack_s
    await asyncio.wait({step}, timeout=slack_s)
    assert step.done(), f"a cancelled step() went on for {slack_s:g} s"
    if not step.cancelled():
        outcome = step.exception() or step.result()
        raise AssertionError(f"a cancelled step() ended with {outcome!r}, as if it had not been cancelled")
    await env.close()
    left = "" if subject.leaks else await subject.left_open(former)
    assert not left, f"after a cancelled step and close() there is still {left}"
    return "ended at once, nothing is left"


async def _waiting(subject: Subject) -> tuple[Env, Reply]:
    """An instance in an episode, and a reply whose step waits for ever: for a tool, or without tools for the reward."""
    schemas = await _schemas_by_name(subject)
    env, tools = subject.hanging(None)
    await env.reset(seed=subject.seed, options={"task": subject.first})
    if tools:
        schema = schemas.get(tools[0].name, {})
        return env, calling((tools[0].name, draw_arguments(schema, subject.rng(subject.first))))
    if not isinstance(env, ToolEnv):
        raise NotApplicable("it has no tools that a step could wait for")

    async def never(episode: Any) -> float:
        await asyncio.Event().wait()
        return 0.0

    env.__dict__["reward"] = never
    return env, Reply.of("…")


async def _close(subject: Subject) -> str:
    schemas = await subject.schemas()
    await subject.tidy()
    env = subject.new()
    drawn = [(each["function"]["name"], draw_arguments(each, subject.rng(subject.first))) for each in schemas]
    reply = calling(*drawn[:8]) if drawn else Reply.of("…")
    former = subject.open_now()
    for ending in ("close() in the middle of an episode", "the end of an episode", "truncate()"):
        subject.doing = ending
        await env.reset(seed=subject.seed, options={"task": subject.first})
        result = await env.step(reply)
        if not (result.terminated or result.truncated):
            await _end(env, ending)
        async with asyncio.timeout(subject.settings.slack_s):
            await env.close()
        left = await subject.left_open(former)
        subject.leaks = bool(left)
        assert not left, f"after {ending} and close() there is still {left}"
    return "no session and no task is left"


async def _end(env: Env, ending: str) -> None:
    if ending.startswith("truncate"):
        await env.truncate("context")
    if not ending.startswith("the end"):
        return
    replies = saying("…")
    for _ in range(_MOST_STEPS):
        result = await env.step(next(replies))
        if result.terminated or result.truncated:
            return


ROBUSTNESS_CHECKS: Sequence[EnvCheck] = (
    EnvCheck(
        name="hanging tools",
        must="a tool that never answers, or a program that never ends, does not hold up the episode",
        advice="Give every call a deadline: leave running the tools to ToolEnv (tool_timeout_s, or a tool's own "
        "timeout_s), or put `async with asyncio.timeout(…)` around what step waits for. Blocking code belongs in a "
        "plain function, which has a thread of its own, or in the sandbox.",
        body=_hanging_tools,
    ),
    EnvCheck(
        name="close",
        must="close frees what an episode holds",
        advice="Close in close() what begin() or a tool opened, and end the asyncio tasks that were started; call "
        "`await super().close()`.",
        body=_close,
    ),
    EnvCheck(
        name="cancellation",
        must="a cancelled step ends soon, and leaves nothing open",
        advice="Let CancelledError pass: catch `Exception`, not `BaseException`, and shield nothing from it. Free in "
        "`finally` what was opened.",
        body=_cancellation,
    ),
)
