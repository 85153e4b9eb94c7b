"""`BM25Retriever`: full-text search in a corpus on this machine."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from miles_agents.contracts.threads import run_in_thread
from miles_agents.errors import DataError
from miles_agents.tools.optional import library
from miles_agents.tools.search import Document

_WORDS = r"(?u)\b\w+\b"


class _Index(NamedTuple):
    documents: Sequence[Document]
    bm25: Any  # bm25s.BM25


class BM25Retriever:
    """Ranks the documents of a corpus by Okapi BM25 (Lucene's variant), with the library `bm25s`.

    The index is made once, off the event loop, at `open` or at the first search, and shared by all searches. Documents
    of equal score come in the order of the corpus; those without a word of the query never come.

    Args:
        corpus: a JSONL file with `{"id", "title", "text"}` on each line (`title` may be left out), or documents.
        stopwords: a language of `bm25s` whose frequent words are left out, e.g. "en"; None leaves out none.
        k1: how soon more of the same word counts no more.
        b: how much long documents are held back, 0 to 1.

    Raises:
        UsageError: the package `bm25s` is missing.
    """

    def __init__(
        self,
        corpus: str | Path | Iterable[Document],
        *,
        stopwords: str | None = "en",
        k1: float = 1.5,
        b: float = 0.75,
    ) -> None:
        _library()  # missing, it is found out before the run
        self._corpus = Path(corpus) if isinstance(corpus, (str, Path)) else tuple(corpus)
        self._stopwords = stopwords
        self._k1 = k1
        self._b = b
        self._lock = threading.Lock()
        self._building: Future[_Index] | None = None

    async def open(self) -> None:
        """Make the index.

        Raises:
            DataError: the corpus is missing, empty or broken; the line is named.
        """
        await self._index()

    async def close(self) -> None:
        """Keeps the index: it holds nothing but memory."""

    async def search(self, query: str, k: int) -> list[Document]:
        """At most `k` documents, best first.

        Raises:
            DataError: see `open`.
        """
        index = await self._index()
        return await run_in_thread(self._ranked, index, query, k)

    async def _index(self) -> _Index:
        return await asyncio.wrap_future(self._start())

    def _start(self) -> Future[_Index]:
        """The index in the making: whoever comes first starts it, in a thread that no waiter can cancel."""
        with self._lock:
            if self._building is None:
                self._building = Future()
                self._building.set_running_or_notify_cancel()
                threading.Thread(target=self._build, args=(self._building,), name="bm25-index", daemon=True).start()
            return self._building

    def _build(self, future: Future[_Index]) -> None:
        try:
            documents = read_corpus(self._corpus) if isinstance(self._corpus, Path) else self._corpus
            _refuse_unusable(documents)
            bm25 = _library().BM25(k1=self._k1, b=self._b)
            bm25.index(self._words([f"{each.title}\n{each.text}" for each in documents]), show_progress=False)
        except BaseException as error:  # noqa: BLE001 — carried to everyone who waits for the index
            future.set_exception(error)
        else:
            future.set_result(_Index(documents, bm25))

    def _words(self, texts: list[str], *, ids: bool = True) -> Any:
        return _library().tokenize(
            texts, token_pattern=_WORDS, stopwords=self._stopwords or [], return_ids=ids, show_progress=False
        )

    def _ranked(self, index: _Index, query: str, k: int) -> list[Document]:
        known = index.bm25.get_tokens_ids(self._words([query], ids=False)[0])
        if not known:
            return []
        scores = cast(NDArray[np.float32], index.bm25.get_scores_from_ids(known))
        # Not the library's own top k: it orders equal scores by chance.
        least = np.partition(scores, -k)[-k] if k < len(scores) else np.float32(0)
        candidates = np.flatnonzero((scores >= least) & (scores > 0))
        order = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
        return [index.documents[place] for place in order]


def read_corpus(path: Path) -> tuple[Document, ...]:
    """The documents of a JSONL file.

    Raises:
        DataError: no such file, or a line that is no document; it is named.
    """
    documents: list[Document] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    documents.append(_document(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the corpus {path}: {error}") from error
    return tuple(documents)


def _document(line: str, where: str) -> Document:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f'{where}: not an object such as {{"id": "7", "title": "…", "text": "…"}}')
    identity, title, text = record.get("id"), record.get("title") or "", record.get("text")
    if isinstance(identity, bool) or not isinstance(identity, (str, int)):
        raise DataError(f"{where}: 'id' is {identity!r}; give a text or a whole number")
    if not isinstance(text, str) or not isinstance(title, str):
        raise DataError(f"{where}: 'text' must be a text, and 'title', where it is given, too")
    return Document(id=str(identity), title=title, text=text)


def _refuse_unusable(documents: Sequence[Document]) -> None:
    if not documents:
        raise DataError("the corpus to search in has no documents")
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise DataError(f"the corpus to search in has the id {document.id!r} twice")
        seen.add(document.id)


def _library() -> Any:
    bm25s = library("bm25s", extra="search", needed_by="BM25Retriever")
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    return bm25s
