"""Questions from files, in the way of HotpotQA: a question, its answer(s), and the titles that lead there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from miles_agents.envs.data_files import Cutting, DataSet, files_of
from miles_agents.envs.data_problems import AnswerKind, DataColumns, DataProblem, Reading

_MORE_ANSWERS = ("answers", "golden_answers", "aliases", "answer_aliases")
_FACTS = "supporting_facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuestion:
    """One row."""

    id: str  # file name and row
    text: str
    answers: tuple[str, ...]  # each is right; the first is the row's own
    titles: tuple[str, ...]  # of the documents that lead to the answer, as far as the row names them


class QuestionFiles:
    """The questions of a path, divided as `envs/data_files.py` says; files are read once.

    Args:
        path: a file, a folder or a pattern with `{split}`.
        question_column: the question.
        answer_column: the answer, or a list of right ones; those of the columns `answers`, `golden_answers`, `aliases`
            and `answer_aliases` are right too.
    """

    def __init__(self, path: str, *, question_column: str, answer_column: str) -> None:
        own = DataColumns(question=(question_column,), answer=answer_column)
        others = [DataColumns(question=(question_column,), answer=name) for name in _MORE_ANSWERS[:2]]
        reading = Reading(layouts=(own, *others), kind=AnswerKind.ANY, keep=(answer_column, *_MORE_ANSWERS, _FACTS))
        self._answer_column = answer_column
        self._set = DataSet(files_of(path), reading, cutting=Cutting(), name=path)

    def questions(self, split: str) -> list[FileQuestion]:
        """The questions of a split.

        Raises:
            DataError: a missing column, a broken line, no question in the split; file and line are named.
        """
        return [self._question(problem) for problem in self._set.problems(split)]

    def _question(self, problem: DataProblem) -> FileQuestion:
        columns = (self._answer_column, *_MORE_ANSWERS)
        others = [text for name in columns for text in _texts(problem.extra.get(name))]
        return FileQuestion(
            id=problem.id,
            text=problem.question,
            answers=tuple(dict.fromkeys([problem.answer, *others])),
            titles=tuple(dict.fromkeys(_titles(problem.extra.get(_FACTS)))),
        )


def _texts(cell: Any) -> Iterable[str]:
    return [each for each in cell if isinstance(each, str)] if isinstance(cell, list) else ()


def _titles(facts: Any) -> Iterable[str]:
    if isinstance(facts, Mapping):
        return _texts(facts.get("title"))
    return [fact[0] for fact in facts or () if isinstance(fact, (list, tuple)) and fact and isinstance(fact[0], str)]
