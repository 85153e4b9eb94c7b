"""The judge behind an OpenAI-compatible server; all environments of an event loop share its connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from miles_agents.contracts.chat_model import ChatModel, ChatParams
from miles_agents.contracts.threads import run_in_thread
from miles_agents.envs.judge.asking import Asked, UnreadableVerdictError, Verdict, correction, read_verdict
from miles_agents.envs.judge.cache import VerdictCache
from miles_agents.errors import ConfigError, EpisodeError, GraderError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings:
    """Which model judges, and how it is asked."""

    base_url: str = ""
    model: str = ""
    api_key_env: str = ""  # name of the variable that holds the key; empty: none is sent
    cache: str = ""  # folder; empty: verdicts are not kept
    retries: int = 2  # after an answer that is no verdict
    temperature: float = 0.0
    max_tokens: int = 2048  # of one answer, thinking included
    request_deadline_s: float = 120.0
    max_tokens_key: str = "max_tokens"
    sends_seed: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole_deadline_s(self) -> float:
        """For all tries together."""
        return self.request_deadline_s * (1 + self.retries)

    def asked_alike(self) -> dict[str, Any]:
        """What a verdict depends on besides the messages; the address is not among it."""
        return {"model": self.model, "temperature": self.temperature, "extra_body": dict(self.extra_body)}

    def check(self) -> None:
        """Refuse what cannot judge.

        Raises:
            UsageError: there is no judge; says what to type.
            ConfigError: no such variable.
        """
        if not self.base_url or not self.model:
            raise UsageError(
                "env=judge has no judge. Give one: env.base_url=http://127.0.0.1:30000/v1 env.model=NAME (any "
                "OpenAI-compatible server; where it wants a key, env.api_key_env=VARIABLE); or, to try things out "
                "without a model, env.judge=rules, which counts keywords"
            )

    def key(self) -> str:
        """The key, from the environment; nothing of it is shown.

        Raises:
            ConfigError: there is no such variable.
        """
        if not self.api_key_env:
            return ""
        key = os.environ.get(self.api_key_env, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(
                "env.api_key_env is the name of an environment variable that holds the judge's key, and there is none "
                "of the name given, or it holds characters that no key has: export JUDGE_API_KEY=… and write "
                "env.api_key_env=JUDGE_API_KEY"
            )
        return key


class ModelJudge:
    """Asks, reads, asks again; `open` first, `close` at the end.

    Args:
        settings: of the judge.

    Raises:
        UsageError: no judge is named, or its cache cannot be written to.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        settings.check()
        self._settings = settings
        self._cache = (
            VerdictCache(Path(settings.cache).expanduser(), settings.asked_alike()) if settings.cache else None
        )
        self._connection: _Connection | None = None

    async def open(self) -> None:
        """Connect, or share the connections that others opened.

        Raises:
            UsageError: the server does not answer, or does not know the model.
        """
        if self._connection is None:
            connection = _connection(self._settings)
            await connection.join()
            self._connection = connection

    async def close(self) -> None:
        """Leave the connections to the others, or close them. May be called twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.leave()

    async def verdict(self, asked: Asked) -> Verdict:
        """What the judge finds, from the cache where it has been asked before.

        Raises:
            GraderError: the server failed, or no answer was a verdict.
            UsageError: no request can succeed, e.g. the key is refused.
        """
        cache = self._cache
        if cache is not None and (kept := await run_in_thread(cache.get, asked)) is not None:
            return kept
        said, verdict = await self._ask(asked)
        if cache is not None:
            await run_in_thread(cache.put, asked, said)
        return verdict

    async def _ask(self, asked: Asked) -> tuple[str, Verdict]:
        if self._connection is None:
            raise UsageError("the judge is closed: open_shared() comes before the first episode")
        settings = self._settings
        conversation = self._connection.model.conversation(())
        conversation.add(asked.messages)
        why = ""
        for attempt in range(settings.retries + 1):
            params = ChatParams(
                max_new_tokens=settings.max_tokens,
                temperature=settings.temperature,
                seed=attempt,
                deadline_s=settings.request_deadline_s,
            )
            try:
                completion = await conversation.reply(params)
            except EpisodeError as error:
                raise GraderError(f"the judge failed: {error}") from error
            if completion is None:
                raise GraderError("the judge failed: the task and the reply do not fit into its context")
            try:
                if completion.reply.truncated:
                    raise UnreadableVerdictError(f"it was cut at env.max_tokens={settings.max_tokens}")  # noqa: TRY301
                return completion.reply.content, read_verdict(completion.reply.content, asked)
            except UnreadableVerdictError as error:
                why = str(error)
                conversation.add([correction(why)])
        raise GraderError(f"the judge gave no verdict in {settings.retries + 1} answers; of the last one: {why}")


class _Connection:
    """A started chat model, as long as somebody uses it."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.model = _chat_model(settings)
        self._lock = asyncio.Lock()
        self._users = 0

    async def join(self) -> None:
        async with self._lock:
            if self._users == 0:
                await self.model.start()
            self._users += 1

    async def leave(self) -> None:
        async with self._lock:
            self._users -= 1
            if self._users == 0:
                await self.model.close()


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Connection]] = WeakKeyDictionary()


def _connection(settings: JudgeSettings) -> _Connection:
    here = _connections.setdefault(asyncio.get_running_loop(), {})
    name = repr(settings)
    if name not in here:
        here[name] = _Connection(settings)
    return here[name]


def _chat_model(settings: JudgeSettings) -> ChatModel:
    from miles_agents.engines.openai.client import Server  # needs aiohttp
    from miles_agents.engines.openai.model import OpenAIChatModel

    return OpenAIChatModel(
        model=settings.model,
        server=Server(base_url=settings.base_url.rstrip("/"), key=settings.key(), settings="env"),
        max_tokens_key=settings.max_tokens_key,
        sends_seed=settings.sends_seed,
        extra_body=settings.extra_body,
    )
