"""The loop that everything else is compared with: aiohttp by hand. Its parts drive libraries that bring no loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from benchmarks import envs_work
from benchmarks.envs_rounds import Plan
from benchmarks.envs_work import Outcome


class HandWritten:
    """The shortest loop that does the job: aiohttp and json, nothing kept but the messages."""

    description = "aiohttp and json by hand: no checks, no deadlines, no record"

    async def play(self, plan: Plan) -> list[Outcome]:
        """See `Subject.play`."""
        async with session_of(plan) as session:
            return await together(plan, lambda: _episode(session, plan.base_url))


def session_of(plan: Plan) -> aiohttp.ClientSession:
    """A session of as many connections as there are episodes in play."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=plan.together))


async def completion(
    session: aiohttp.ClientSession, base_url: str, messages: list[dict[str, Any]], **keys: Any
) -> dict[str, Any]:
    """One request; the message of the answer."""
    body = {"messages": messages, "max_tokens": envs_work.MAX_TOKENS, "temperature": 1.0, **keys}
    async with session.post(f"{base_url}/chat/completions", json=body) as response:
        message: dict[str, Any] = (await response.json())["choices"][0]["message"]
    return message


async def _episode(session: aiohttp.ClientSession, base_url: str) -> Outcome:
    messages = envs_work.prompt()
    calls = 0
    while True:
        message = await completion(session, base_url, messages, model=envs_work.MODEL, tools=[envs_work.TOOL])
        messages.append(message)
        if not message.get("tool_calls"):
            return Outcome(calls, message["content"])
        for call in message["tool_calls"]:
            result = envs_work.look(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            calls += 1


async def together(plan: Plan, episode: Callable[[], Awaitable[Outcome]]) -> list[Outcome]:
    """Play the plan's episodes, as many at a time as it says."""
    free = asyncio.Semaphore(plan.together)

    async def one() -> Outcome:
        async with free:
            return await episode()

    return await asyncio.gather(*(one() for _ in range(plan.episodes)))
