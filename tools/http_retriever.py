"""`HTTPRetriever`: documents from a search server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from miles_agents.errors import EpisodeError, FailureCause, InfrastructureError, UsageError
from miles_agents.tools.optional import library
from miles_agents.tools.search import Document

if TYPE_CHECKING:
    import aiohttp

_MAX_BYTES = 4 << 20
_MAX_SHOWN_CHARS = 200


class _Found(BaseModel):
    """One document of a server's answer; what else it says of it is left out."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    text: str
    title: str = ""


class _Answer(BaseModel):
    documents: list[_Found]


_ANSWER = TypeAdapter[_Answer | list[_Found]](_Answer | list[_Found])


class HTTPRetriever:
    """Asks a server: `POST {"query": …, "k": …}`; it answers `{"documents": [{"id", "title", "text"}, …]}` or
    the bare list.

    One connection pool serves all episodes of an event loop. One call of `search` asks once: a `SearchTool` asks again,
    later and later, after a connection error, a deadline or a status of 500 and above, as its `limits.retries` say. A
    status of 400 to 499 is never tried again.

    Args:
        url: where to post.
        timeout_s: of one request.
        headers: sent with each, e.g. a key.
        max_connections: at a time.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        headers: Mapping[str, str] | None = None,
        max_connections: int = 64,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"HTTPRetriever: {url!r} is no address; it begins with http:// or https://")
        if timeout_s <= 0 or max_connections < 1:
            raise UsageError("HTTPRetriever: timeout_s must be positive and max_connections at least 1")
        _library()  # missing, it is found out before the run
        self.url = url
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Nothing to do: connections are made by searches."""

    async def close(self) -> None:
        """Close the connections; the next search makes new ones."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    async def search(self, query: str, k: int) -> list[Document]:
        """At most `k` documents, in the server's order.

        Raises:
            InfrastructureError: no connection, no answer in time, or a status of 500 and above.
            EpisodeError: any other status, or an answer that is not as agreed.
        """
        aiohttp = _library()
        try:
            async with self._connected().post(self.url, json={"query": query, "k": k}) as response:
                body = await self._body(response)
                status = response.status
        except TimeoutError as error:
            raise InfrastructureError(f"{self.url} gave no answer in {self._timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise InfrastructureError(f"{self.url}: {error or type(error).__name__}") from error
        if status >= 500:
            raise InfrastructureError(f"{self.url} answered {status}: {_shown(body)}")
        if status != 200:
            raise EpisodeError(f"{self.url} answered {status}: {_shown(body)}", cause=FailureCause.TOOL)
        return self._documents(body)[:k]

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > _MAX_BYTES:
                raise EpisodeError(f"{self.url} answered more than {_MAX_BYTES} bytes", cause=FailureCause.TOOL)
        return bytes(body)

    def _documents(self, body: bytes) -> list[Document]:
        try:
            answer = _ANSWER.validate_python(json.loads(body))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise EpisodeError(f"{self.url} gave no documents: {reason}", cause=FailureCause.TOOL) from error
        except ValueError as error:
            raise EpisodeError(f"{self.url} gave no documents: {error}", cause=FailureCause.TOOL) from error
        found = answer.documents if isinstance(answer, _Answer) else answer
        return [Document(id=each.id, title=each.title, text=each.text) for each in found]

    def _connected(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            aiohttp = _library()
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=self._max_connections),
            )
            self._loop = loop
        return self._session


def _shown(body: bytes) -> str:
    return " ".join(body[: 4 * _MAX_SHOWN_CHARS].decode(errors="replace").split())[:_MAX_SHOWN_CHARS] or "(nothing)"


def _library() -> Any:
    return library("aiohttp", extra="search", needed_by="HTTPRetriever")
