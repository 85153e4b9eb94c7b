"""`search_qa-v0`: a question, a search tool over documents, a short answer."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable
from typing import Any

from miles_agents.contracts import Observation, Tool, ToolEnv
from miles_agents.envs.replies import AnswerForm, as_reply, final_answer
from miles_agents.envs.search_qa.library import Library, ReadTool, context_library, corpus_library, world_library
from miles_agents.envs.search_qa.questions import QuestionFiles
from miles_agents.envs.search_qa.scoring import exact_match, f1
from miles_agents.envs.search_qa.world import MAX_HOPS, World
from miles_agents.errors import ConfigError, choose, did_you_mean
from miles_agents.registry import environments
from miles_agents.tools.search import SearchTool
from miles_agents.types import Episode, Message, Reply, Task, ToolCall

_OPENING = (
    "Find the answer in the documents. Search for a few words, such as a name; read a document by the id that a search "
    "shows. Several documents are needed, one after the other."
)
_CLOSINGS = {
    AnswerForm.BOX: "Give the final answer, a few words, in \\boxed{}.",
    AnswerForm.LINE: "Give the final answer, a few words, in a last line of its own: Answer: …",
}
_SIZES = {"train": 1024, "validation": 128, "test": 256}  # of the generated splits


@environments.register("search_qa-v0")
class SearchQA(ToolEnv):
    r"""Questions of several steps over a collection of documents: an invented world, or files of your own.

    Tools: `search(query)`, which shows passages with their ids, and `read(id)`. Rewards: `answer`, 1 if the answer of
    the final reply equals a right one without case, punctuation and articles; `f1`, of their words; `evidence`, the
    share of the documents leading to the answer that the policy was shown (where they are known).

    Args:
        data: a file of questions, a folder or a pattern with `{split}`; None makes questions about an invented world.
        corpus: the documents, a JSONL file with `id`, `title`, `text` on each line; None takes those in the column
            `context` of `data` (HotpotQA).
        question_column: the column of the question in `data`.
        answer_column: the column of the answer, or of a list of right ones.
        hops: of how many steps invented questions are, a number or a list, 1 to 4.
        things: size of the invented world: documents for training; there is a quarter for validation and for test.
        world_seed: another one gives another world.
        k: documents shown for one search.
        snippet_chars: characters shown of one found document.
        answer_form: where the final reply gives its answer: box, or line (the last line `Answer: …`).
        system_prompt: None explains tools and answer; "" says nothing.
        max_turns: replies of the policy in one episode, the answer included.
        train_size: tasks of the train split; None is 1024, or all rows of `data`. A smaller number takes the first.
        validation_size: tasks of the validation split; None is 128, or all rows of `data`.
        test_size: tasks of the test split; None is 256, or all rows of `data`.
        answer_weight: weight of the reward `answer`.
        f1_weight: weight of the reward `f1`.
        evidence_weight: weight of the reward `evidence`; 0 records it only.

    Raises:
        ConfigError: a value out of its range.
        UsageError: the package `bm25s` is missing, or there is no such form.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        corpus: str | None = None,
        question_column: str = "question",
        answer_column: str = "answer",
        hops: Any = (2, 3),  # int or list[int]: a union that configuration schemas cannot express
        things: int = 600,
        world_seed: int = 0,
        k: int = 3,
        snippet_chars: int = 160,
        answer_form: str = "box",
        system_prompt: str | None = None,
        max_turns: int = 10,
        train_size: int | None = None,
        validation_size: int | None = None,
        test_size: int | None = None,
        answer_weight: float = 1.0,
        f1_weight: float = 0.0,
        evidence_weight: float = 0.0,
    ) -> None:
        self.data = data
        self.corpus = corpus
        self.hops = _hops(hops)
        self.things = things
        self.world_seed = world_seed
        self.k = k
        self.snippet_chars = snippet_chars
        self.form = choose(AnswerForm, answer_form, key="env.answer_form")
        self.system_prompt = f"{_OPENING} {_CLOSINGS[self.form]}" if system_prompt is None else system_prompt
        self.max_turns = max_turns
        self.reward_weights = {"answer": answer_weight, "f1": f1_weight, "evidence": evidence_weight}
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        self._check_ranges()
        weights = self.reward_weights.values()
        self.reward_range = (sum(min(weight, 0.0) for weight in weights), sum(max(weight, 0.0) for weight in weights))
        self._columns = {"question_column": question_column, "answer_column": answer_column}
        self._files: QuestionFiles | None = None
        self._library: Library | None = None
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._tools: tuple[Tool, ...] = ()

    def all_tools(self) -> tuple[Tool, ...]:
        """`search` and `read`.

        Raises:
            DataError: the documents cannot be read.
        """
        if not self._tools:
            library = self.library
            self._tools = (
                SearchTool(library.retriever, k=self.k, snippet_chars=self.snippet_chars),
                ReadTool(library),
            )
        return self._tools

    @property
    def library(self) -> Library:
        """The documents, shared by all environments of the process that ask for the same.

        Raises:
            DataError: they cannot be read.
        """
        if self._library is None:
            if self.data is None:
                self._library = world_library(self.things, self.world_seed)[1]
            else:
                self._library = context_library(self.data) if self.corpus is None else corpus_library(self.corpus)
        return self._library

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split, always the same and in the same order.

        Raises:
            ConfigError: no such split.
            DataError: a missing or broken file.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = tuple(self._generated(split) if self.data is None else self._loaded(split))
        return self._tasks[split]

    def reward(self, episode: Episode) -> dict[str, float]:
        """`answer`, `f1` and, where the way to the answer is known, `evidence`."""
        answer = final_answer(episode.final.content, self.form) or ""
        golds = [episode.task.answer, *episode.task.metadata.get("other_answers", ())]
        rewards = {"answer": exact_match(answer, golds), "f1": f1(answer, golds)}
        wanted = set(episode.task.metadata.get("evidence", ()))
        if wanted:
            events = [event for event in episode.tool_events if event.ok]
            shown = {identity for event in events for identity in event.info.get("documents", ())}
            rewards["evidence"] = len(wanted & shown) / len(wanted)
        return rewards

    def oracle(self, task: Task) -> Generator[Reply, Observation, None]:
        """Replies that score full: search for each document by its title, read it, answer."""
        for identity in task.metadata.get("evidence", ())[: (self.max_turns - 1) // 2]:
            yield _calling("search", query=self.library.by_id[identity].title)
            yield _calling("read", id=identity)
        yield Reply.of(as_reply(task.answer, self.form))

    def _generated(self, split: str) -> Iterable[Task]:
        world: World = world_library(self.things, self.world_seed)[0]
        size = self._sizes[split]
        wanted = _SIZES[split] if size is None else size
        questions = world.questions(split, self.hops, wanted)
        if len(questions) < wanted:
            raise ConfigError(
                f"env.{split}_size={wanted}: a world of env.things={self.things} gives {len(questions)} questions of "
                f"env.hops={list(self.hops)}; ask for fewer, or for more things"
            )
        for number, question in enumerate(questions):
            yield Task(
                id=f"{split}/{number}",
                prompt=(*self._system(), Message.user(question.text)),
                answer=question.answer,
                metadata={"hops": len(question.chain), "evidence": list(question.chain)},
                split=split,
            )

    def _loaded(self, split: str) -> Iterable[Task]:
        if self._files is None:
            self._files = QuestionFiles(str(self.data), **self._columns)
        titles = self.library.ids_by_title
        for question in self._files.questions(split)[: self._sizes[split]]:
            yield Task(
                id=f"{split}/{question.id}",
                prompt=(*self._system(), Message.user(question.text)),
                answer=question.answers[0],
                metadata={
                    "other_answers": list(question.answers[1:]),
                    "evidence": [titles[title] for title in question.titles if title in titles],
                },
                split=split,
            )

    def _system(self) -> tuple[Message, ...]:
        return (Message.system(self.system_prompt),) if self.system_prompt else ()

    def _check_ranges(self) -> None:
        checks = [
            ("things", self.things, self.things >= 100, "at least 100"),
            ("k", self.k, self.k >= 1, "at least 1"),
            ("snippet_chars", self.snippet_chars, self.snippet_chars >= 20, "at least 20"),
            ("max_turns", self.max_turns, self.max_turns >= 1, "at least 1"),
            *((f"{name}_size", size, size is None or size >= 1, "at least 1") for name, size in self._sizes.items()),
            *((f"{name}_weight", value, math.isfinite(value), "finite") for name, value in self.reward_weights.items()),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))
        if self.corpus is not None and self.data is None:
            raise ConfigError(f"env.corpus={self.corpus} without questions about it: give env.data=PATH too")


def _hops(given: Any) -> tuple[int, ...]:
    hops = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not hops or not all(isinstance(hop, int) and 1 <= hop <= MAX_HOPS for hop in hops) or len(set(hops)) < len(hops):
        raise ConfigError(f"env.hops={given!r}: give a number from 1 to {MAX_HOPS}, or a list of them: [2,3]")
    return hops


def _calling(name: str, **arguments: str) -> Reply:
    raw = json.dumps({"name": name, "arguments": arguments})
    call = ToolCall(id="call_0", name=name, arguments=arguments, raw=raw)
    return Reply(text=f"<tool_call>\n{raw}\n</tool_call>", calls=(call,))
