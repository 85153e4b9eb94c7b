"""HTTP to an OpenAI-compatible server: retries, deadlines, and errors told apart by who can mend them.

aiohttp, because the `openai` package costs some 30 ms of CPU an episode and aiohttp 1.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import random
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miles_agents.errors import ConfigError, EngineError, UsageError, did_you_mean

try:
    import aiohttp
    from yarl import URL  # a part of aiohttp's interface
except ModuleNotFoundError as error:
    raise UsageError("engine=openai needs aiohttp: pip install 'miles-agents[openai]'") from error

_AGAIN = frozenset({408, 409, 425, 429, *range(500, 600)})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_MAX_SHOWN = 300
_CONTEXT_WORDS = (
    "context_length_exceeded",
    "context length",
    "context size",
    "maximum context",
    "max_model_len",
    "prompt is too long",
)
# What the operator has to mend: the same request would be refused in every episode.
_HINTS = {
    "insufficient_quota": "The account has no credit left",
    "unsupported_parameter": "See {of}.max_tokens_key, {of}.sends_seed and {of}.extra_body",
    "unsupported_value": "See temperature, top_p and {of}.extra_body",
    "unknown_parameter": "See {of}.sends_seed, top_k and {of}.extra_body",
}


class NoRoomError(Exception):
    """The server says that the conversation does not fit into its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where requests go.

    Raises:
        ConfigError: `base_url` is no plain address. The message does not repeat it: it may hold a key.
    """

    base_url: str  # e.g. http://127.0.0.1:30000/v1
    key: str = ""  # empty: none is sent
    connections: int = 256  # at the same time
    retries: int = 5  # of one request, after the first try
    settings: str = "engine"  # the group of the settings that messages name

    def __post_init__(self) -> None:
        try:
            parts = urllib.parse.urlsplit(self.base_url)
            plain = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:  # a port that is no number
            plain = False
        if not plain or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(
                f"{self.settings}.base_url: give an address such as http://127.0.0.1:30000/v1, without a key, a "
                "password or a question mark; a key goes into an environment variable that "
                f"{self.settings}.api_key_env names"
            )

    def __repr__(self) -> str:  # a key in an error message or log would be there for all to see
        return f"Server({self.base_url})"


class Client:
    """One session of kept-alive connections. `open` first, `close` at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None
        self._random = random.Random()  # spreads retries; nothing that is recorded depends on it
        self._completions = URL(f"{server.base_url}/chat/completions")  # read once, not at each request

    async def open(self) -> None:
        """Make the session; connects to nothing yet."""
        if self._session is None:
            headers = {"Content-Type": "application/json"}
            if self._server.key:
                headers["Authorization"] = f"Bearer {self._server.key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._server.connections, ttl_dns_cache=300),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                auto_decompress=True,
                # None is kept: a cookie that pins a client to one machine would send all episodes there.
                cookie_jar=aiohttp.DummyCookieJar(),
            )

    async def close(self) -> None:
        """End all requests."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def check(self, model: str) -> None:
        """See whether the server answers and knows the model.

        Raises:
            UsageError: it does not; says what to look at.
        """
        url = f"{self._server.base_url}/models"
        try:
            async with asyncio.timeout(20.0), self._opened().get(url) as response:
                text = self._without_key(await response.read()).decode("utf-8", "replace")
                if response.status in (401, 403):
                    raise self._refused(response.status, text)
                if response.status != 200:
                    return  # not every server lists its models
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise UsageError(
                f"no answer from {url}: {why}. Is the server running? Set {self._server.settings}.base_url"
            ) from error
        names = _model_names(text)
        if names and model not in names:
            key = "model" if self._server.settings == "engine" else f"{self._server.settings}.model"
            raise UsageError(f"the server has no model {model!r}. {did_you_mean(model, names)} Write {key}=…")

    async def post(self, body: bytes, *, deadline_s: float | None) -> Mapping[str, Any]:
        """Send a request to `/chat/completions`, again where that can help; the decoded answer comes back.

        Raises:
            NoRoomError: the conversation is too long for the server.
            EngineError: the server failed, or the deadline passed.
            UsageError: the key or the model is refused: no request can succeed.
        """
        failures: list[Exception] = []
        try:
            async with asyncio.timeout(deadline_s):
                return await self._until_answered(body, failures)
        except TimeoutError as error:
            last = f"; before: {failures[-1]}" if failures else ""
            key = f"{self._server.settings}.request_deadline_s"
            raise EngineError(f"no reply within {deadline_s or 0:g} s ({key}){last}") from error

    async def _until_answered(self, body: bytes, failures: list[Exception]) -> Mapping[str, Any]:
        url, session = self._completions, self._opened()
        for attempt in range(self._server.retries + 1):
            asked_s = 0.0
            try:
                async with session.post(url, data=body, allow_redirects=False) as response:
                    raw = self._without_key(await response.read())
                    if response.status == 200:
                        return _decoded(raw)
                    failures.append(self._failure(response.status, raw.decode("utf-8", "replace")))
                    if response.status not in _AGAIN or isinstance(failures[-1], UsageError):
                        raise failures[-1]
                    asked_s = _asked_pause_s(response.headers.get("Retry-After"))
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
                failures.append(EngineError(f"no answer from {url}: {error or type(error).__name__}"))
            if attempt < self._server.retries:
                await asyncio.sleep(asked_s or self._pause_s(attempt))
        raise EngineError(f"{failures[-1]} (tried {self._server.retries + 1} times)")

    def _pause_s(self, attempt: int) -> float:
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**attempt) * self._random.uniform(0.5, 1.0)

    def _failure(self, status: int, text: str) -> Exception:
        said = _error_text(text)
        if status in (401, 403):
            return self._refused(status, text)
        if status == 404:
            return UsageError(f"the server knows no such model or address ({self._server.base_url}): {said}")
        if 300 <= status < 400:
            return UsageError(
                f"{self._server.base_url} sends elsewhere ({status}): set {self._server.settings}.base_url to that "
                "address"
            )
        for code, hint in _HINTS.items():
            if 400 <= status < 500 and code in text:
                return UsageError(
                    f"the server refuses each request ({status}): {said}. {hint.format(of=self._server.settings)}"
                )
        if status in (400, 413, 422) and any(words in said.lower() for words in _CONTEXT_WORDS):
            return NoRoomError(said)
        return EngineError(f"the server answered {status}: {said}")

    def _refused(self, status: int, text: str) -> UsageError:
        which = "the key that was sent" if self._server.key else "a request without a key"
        return UsageError(
            f"the server refuses {which} ({status}: {_error_text(text)}). Set the variable that "
            f"{self._server.settings}.api_key_env names"
        )

    def _without_key(self, raw: bytes) -> bytes:
        """What the server says, less a key that it repeats: it would be written down."""
        key = self._server.key
        for written in (key, key.replace("/", "\\/")) if key else ():  # as it is, and as some servers escape it
            if written.encode() in raw:
                raw = raw.replace(written.encode(), "…".encode())
        return raw

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineError("the connection to the server is closed")
        return self._session


def _decoded(raw: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError as error:
        raise EngineError(f"the server's answer is no JSON: {raw[:_MAX_SHOWN]!r}") from error
    if not isinstance(answer, Mapping):
        raise EngineError(f"the server's answer is no JSON object: {raw[:_MAX_SHOWN]!r}")
    return answer


def _error_text(text: str) -> str:
    """What an error response says, in one bounded line."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = text
    for key in ("error", "message", "detail"):
        if isinstance(found, Mapping) and found.get(key):
            code = found.get("code")
            found = found[key]
            if isinstance(found, str) and isinstance(code, str):
                found = f"{code}: {found}"
    shown = found if isinstance(found, str) else json.dumps(found)
    return " ".join(shown.split())[:_MAX_SHOWN] or "no reason given"


def _asked_pause_s(header: str | None) -> float:
    """`Retry-After`: seconds, or a date; 0 if there is none. Bounded."""
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    if math.isnan(seconds):
        return 0.0
    return min(max(seconds, 0.0), 2 * _LONGEST_PAUSE_S)


def _model_names(text: str) -> list[str]:
    try:
        listed = json.loads(text)
    except ValueError:
        return []
    data = listed.get("data") if isinstance(listed, Mapping) else None
    return [each["id"] for each in data or () if isinstance(each, Mapping) and isinstance(each.get("id"), str)]
