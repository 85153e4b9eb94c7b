"""The `search` tool: looks documents up in a corpus, by a `Retriever` of your choice."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import Field

from miles_agents.contracts import Shared, ToolContext, ToolLimits, ToolOutput
from miles_agents.errors import ToolError, UsageError
from miles_agents.tools.typed import Arguments, TypedTool, require_at_least

_MAX_QUERY_CHARS = 2000
_MAX_HITS_PER_WORD = 50  # of a word in one document, when its best passage is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A piece of the corpus."""

    id: str
    text: str
    title: str = ""


@runtime_checkable
class Retriever(Protocol):
    """Finds documents. One with `open` and `close` (see `contracts.Shared`) is made ready before the first episode."""

    async def search(self, query: str, k: int) -> Sequence[Document]:
        """At most `k` documents, best first; equal queries give equal answers.

        Raises:
            InfrastructureError: it failed in a way that may pass.
            EpisodeError: it failed in a way that stays.
        """
        ...


class _Query(Arguments):
    query: str = Field(description="what to look for: a few words")


class SearchTool(TypedTool[_Query]):
    """Shows the passages of a corpus that fit a query best, each under its document's id and title.

    Args:
        retriever: where documents come from; one is shared by all episodes.
        k: documents shown for a query.
        snippet_chars: shown of one document: the passage with most of the query's words.
        name: what the model calls it.
        limits: deadline, concurrency, retries; None tries three more times after an `InfrastructureError`.
    """

    name = "search"
    description = "Search a collection of documents. Shows the passages that fit the query best."
    arguments = _Query

    def __init__(
        self,
        retriever: Retriever,
        *,
        k: int = 3,
        snippet_chars: int = 500,
        name: str | None = None,
        limits: ToolLimits | None = None,
    ) -> None:
        super().__init__(name=name, limits=limits or ToolLimits(retries=3))
        if not isinstance(retriever, Retriever):
            raise UsageError(f"{self.name} tool: {retriever!r} is no retriever; it has no `search(query, k)`")
        require_at_least(self.name, k=(k, 1), snippet_chars=(snippet_chars, 20))
        self.retriever = retriever
        self.k = k
        self.snippet_chars = snippet_chars

    @property
    def definition(self) -> Hashable:
        """Tools that share a retriever count as one for `max_concurrency`."""
        return (type(self), self.name, id(self.retriever))

    async def open(self) -> None:
        """Make the retriever ready."""
        if isinstance(self.retriever, Shared):
            await self.retriever.open()

    async def close(self) -> None:
        """Free what the retriever holds."""
        if isinstance(self.retriever, Shared):
            await self.retriever.close()

    async def run(self, arguments: _Query, context: ToolContext) -> ToolOutput:
        """Search.

        Raises:
            ToolError: the query is empty or far too long.
            EpisodeError: the retriever failed.
        """
        query = arguments.query.strip()
        if not query:
            raise ToolError("the query is empty; give a few words to look for")
        if len(query) > _MAX_QUERY_CHARS:
            raise ToolError(f"the query has {len(query)} characters; at most {_MAX_QUERY_CHARS} are allowed")
        found = (await self.retriever.search(query, self.k))[: self.k]
        shown = [self._passage(document, query) for document in found]
        text = "\n\n".join(shown) or "no document fits; try other words"
        return ToolOutput(text, info={"documents": [document.id for document in found]})

    def _passage(self, document: Document, query: str) -> str:
        head = f"[{document.id}] {document.title}".rstrip()
        return f"{head}\n{snippet(document.text, query, self.snippet_chars)}"


def snippet(text: str, query: str, max_chars: int) -> str:
    """The stretch of `text` with most different words of `query`, the first of equal ones; white space is joined."""
    text = " ".join(text.split())
    if len(text) <= max_chars:
        return text
    hits = sorted(_hits(text.lower(), {word for word in re.findall(r"\w+", query.lower()) if len(word) > 1}))
    best, most, first = 0, 0, 0
    for last in range(len(hits)):
        while hits[last][0] + len(hits[last][1]) - hits[first][0] > max_chars:
            first += 1
        words = len({word for _, word in hits[first : last + 1]})
        if words > most:
            best, most = hits[first][0], words
    start = max(min(best - max_chars // 4, len(text) - max_chars), 0) if most else 0
    shown = text[start : start + max_chars]
    return ("… " if start else "") + shown + (" …" if start + max_chars < len(text) else "")


def _hits(text: str, words: set[str]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for word in words:
        matches = re.finditer(rf"\b{re.escape(word)}\b", text)
        found.extend((match.start(), word) for _, match in zip(range(_MAX_HITS_PER_WORD), matches, strict=False))
    return found
