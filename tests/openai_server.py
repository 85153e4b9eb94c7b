"""A small OpenAI-compatible server that answers from a script, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "sk-very-secret/0123456789"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One HTTP answer."""

    body: Any = None  # JSON, or bytes as they are
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drops: bool = False  # close the connection without an answer
    delay_s: float = 0.0


def says(
    content: str | None = None,
    *,
    calls: Iterable[tuple[str, str, str]] = (),
    finish: str = "stop",
    tokens: tuple[int, int] = (10, 5),
    **message: Any,
) -> Answer:
    """A completion. `calls` are (id, name, arguments as text); `tokens` are prompt's and completion's."""
    written = [
        {"id": each, "type": "function", "function": {"name": name, "arguments": text}} for each, name, text in calls
    ]
    if written:
        message["tool_calls"] = written
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return Answer(body={"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})


def refuses(status: int, message: str, *, code: str | None = None, headers: Mapping[str, str] = {}) -> Answer:
    """An error in the API's form."""
    return Answer(status=status, body={"error": {"message": message, "code": code}}, headers=headers)


Script = Callable[[Mapping[str, Any]], Answer]


class OpenAIServer:
    """What it was asked, and where it is."""

    def __init__(self, script: Script | Iterable[Answer], *, key: str = "", models: Iterable[str] | None = ("m",)):
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""
        self.models_status = 200
        self._key = key
        self._models = None if models is None else list(models)
        self._script = script if callable(script) else self._in_order(iter(script))

    @staticmethod
    def _in_order(answers: Iterator[Answer]) -> Script:
        return lambda _: next(answers, refuses(400, "the script has ended"))

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        if self._models is None:
            return web.json_response({"error": "not found"}, status=404)
        if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
            said = f"bad key {request.headers.get('Authorization', '')}"  # some servers repeat it
            return web.json_response({"error": {"message": said}}, status=401)
        return web.json_response({"data": [{"id": name} for name in self._models]}, status=self.models_status)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests.append(asked)
        answer = self._script(asked)
        await asyncio.sleep(answer.delay_s)
        if answer.drops:
            assert request.transport is not None
            request.transport.close()
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        return web.Response(body=body, status=answer.status, headers=answer.headers, content_type="application/json")


@contextmanager
def serving(
    script: Script | Iterable[Answer], *, key: str = "", models: Iterable[str] | None = ("m",)
) -> Iterator[OpenAIServer]:
    """A server, listening at `base_url` until the end."""
    server = OpenAIServer(script, key=key, models=models)
    ready, ended = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", server.list_models)
        app.router.add_post("/v1/chat/completions", server.complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.base_url = f"http://127.0.0.1:{port}/v1"
        loops.append(asyncio.get_running_loop())
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(10)
