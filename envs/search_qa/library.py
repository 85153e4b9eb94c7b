"""The documents that a policy may search and read, with their index; made once for all environments of a process."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from miles_agents.contracts import ToolContext, ToolOutput
from miles_agents.envs.data_files import files_of
from miles_agents.envs.data_rows import read_rows
from miles_agents.envs.search_qa.world import World
from miles_agents.errors import DataError, ToolError, did_you_mean
from miles_agents.tools.bm25 import BM25Retriever, read_corpus
from miles_agents.tools.search import Document
from miles_agents.tools.typed import Arguments, TypedTool


class Library:
    """Documents by id and title, and a retriever over them."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = tuple(documents)
        self.by_id = {document.id: document for document in self.documents}
        self.ids_by_title: dict[str, str] = {}
        for document in self.documents:
            self.ids_by_title.setdefault(document.title, document.id)
        self.retriever = BM25Retriever(self.documents)


class _Id(Arguments):
    id: str = Field(description="the id in brackets before a search result")


class ReadTool(TypedTool[_Id]):
    """Shows a document whole."""

    name = "read"
    description = "Read a document that a search has found."
    arguments = _Id

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library

    async def run(self, arguments: _Id, context: ToolContext) -> ToolOutput:
        """Show it.

        Raises:
            ToolError: there is no such document.
        """
        identity = arguments.id.strip().strip("[]").strip()
        document = self._library.by_id.get(identity)
        if document is None:
            raise ToolError(f"no document {identity[:80]!r}; search first, ids stand in brackets, e.g. [d12]")
        return ToolOutput(f"[{document.id}] {document.title}\n{document.text}", info={"documents": [document.id]})


@functools.lru_cache(maxsize=8)
def world_library(things: int, seed: int) -> tuple[World, Library]:
    """The generated world and its documents."""
    world = World(things, seed)
    return world, Library(world.documents)


def corpus_library(corpus: str) -> Library:
    """The documents of a JSONL file with `id`, `title` and `text` on each line.

    Raises:
        DataError: no such file, or a line that is no document.
    """
    path = Path(corpus).expanduser()
    if not path.is_file():
        near = [str(file) for file in path.parent.glob("*")] if path.parent.is_dir() else []
        raise DataError(f"env.corpus: no file {corpus}. {did_you_mean(str(path), near)}")
    return _corpus_library(path.resolve(), path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _corpus_library(path: Path, changed_ns: int) -> Library:
    return Library(read_corpus(path))


def context_library(data: str) -> Library:
    """The documents that stand beside the questions, in a column `context`, each title once.

    HotpotQA's two layouts are read: `[[title, [sentence, …]], …]` and `{"title": […], "sentences": [[…], …]}`.

    Raises:
        DataError: no file, or a row without a context in one of these layouts; file and line are named.
    """
    files = [file for each in files_of(data).values() for file in each]
    return _context_library(tuple((file.resolve(), file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(maxsize=8)
def _context_library(files: Sequence[tuple[Path, int]]) -> Library:
    texts: dict[str, str] = {}
    for file, _ in files:
        for number, row in read_rows(file):
            for title, text in _paragraphs(row, f"{file}:{number}"):
                texts.setdefault(title, text)
    return Library(
        [Document(id=f"d{number}", title=title, text=text) for number, (title, text) in enumerate(texts.items(), 1)]
    )


def _paragraphs(row: Mapping[str, Any], place: str) -> Iterable[tuple[str, str]]:
    context = row.get("context")
    try:
        if isinstance(context, Mapping):
            context = list(zip(context["title"], context["sentences"], strict=True))
        found = [(str(title), " ".join(" ".join(sentences).split())) for title, sentences in context or ()]
    except (KeyError, TypeError, ValueError):
        found = []
    if not found:
        raise DataError(f"{place}: no documents in the column 'context'; give a file of documents: env.corpus=PATH")
    return found
