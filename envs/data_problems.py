"""Rows of data files → problems: which columns, what counts as an answer, what is left out and why."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

from miles_agents.answers import parse_number
from miles_agents.envs.data_rows import Row, read_rows
from miles_agents.envs.splits import normalised
from miles_agents.errors import DataError, did_you_mean
from miles_agents.types import Message, Role

_INTEGRAL = re.compile(r"(?P<whole>[-−+]?[0-9][0-9,]*)\.0+")
_MAX_ANSWER_CHARS = 1000


class AnswerKind(StrEnum):
    """What the gold answers of a set may be."""

    NUMBER = "number"  # a number as `answers.parse_number` reads it
    INTEGER = "integer"  # a whole number
    ANY = "any"  # whatever the answer checker compares: numbers, expressions, sets, text


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProblem:
    """One row."""

    id: str  # file name and row, unique within what was loaded: "train.jsonl:12"
    prompt: tuple[Message, ...]
    question: str  # the text that decides the split: the prompt without an instruction built into it
    answer: str
    instructed: bool = False  # the prompt says itself how to answer
    extra: Mapping[str, Any] = field(default_factory=dict)  # the columns named by `Reading.keep` that the row has


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row that was left out, and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumns:
    """Where a row keeps its question and its answer.

    A name may be a path into nested rows, `reward_model.ground_truth`. Several question columns are joined by a
    space. A question is text, or a list of messages (`[{"role": "user", "content": "…"}]`), which becomes the prompt
    as it is. An answer is a number or text; of `…#### 72` the part behind the last `####` counts.
    """

    question: tuple[str, ...] = ("question",)
    answer: str = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    r"""How the rows of a set are read."""

    layouts: tuple[DataColumns, ...] = (DataColumns(),)  # a file is read by the first that its first row has
    kind: AnswerKind = AnswerKind.NUMBER
    smallest: int | None = None  # answers below are unreadable; None: no bound
    largest: int | None = None
    skip_unparsable: bool = False  # leave out rows whose answer cannot be read, and list them; else they are an error
    distinct: bool = False  # keep the first of several rows with the same question and answer
    keep: tuple[str, ...] = ()  # further columns that are wanted where a row has them
    instruction: re.Pattern[str] | None = (
        None  # around the question in the prompt; its group "question" is the question
    )


@dataclass(frozen=True, slots=True)
class Problems:
    """What was read from some files."""

    kept: tuple[DataProblem, ...]
    skipped: tuple[SkippedRow, ...]


class _UnreadableAnswerError(ValueError):
    """The gold answer of a row is none."""


def read_problems(files: Sequence[Path], reading: Reading) -> Problems:
    """The problems of some files, in order.

    Raises:
        DataError: an unknown format, a broken line, a missing column, a question that is no text, or an answer that
            cannot be read while `skip_unparsable` is off. File and line (or row) are named.
    """
    kept: list[DataProblem] = []
    skipped: list[SkippedRow] = []
    seen: set[tuple[str, str]] = set()
    for file in files:
        columns: DataColumns | None = None
        for row in read_rows(file):
            columns = columns or _layout(row[1], reading.layouts)
            try:
                problem = _problem(file, row, columns, reading)
            except _UnreadableAnswerError as error:
                if not reading.skip_unparsable:
                    raise DataError(f"{file}:{row[0]}: {error}") from error
                skipped.append(SkippedRow(id=f"{file.name}:{row[0]}", reason=str(error)))
                continue
            key = (normalised(problem.question), problem.answer)
            if reading.distinct and key in seen:
                continue
            seen.add(key)
            kept.append(problem)
    return Problems(tuple(kept), tuple(skipped))


def _layout(row: Mapping[str, Any], layouts: Sequence[DataColumns]) -> DataColumns:
    for columns in layouts:
        if all(_find(row, name) is not _MISSING for name in (*columns.question, columns.answer)):
            return columns
    return layouts[0]


def _problem(file: Path, row: Row, columns: DataColumns, reading: Reading) -> DataProblem:
    number, values = row
    place = f"{file}:{number}"
    cells = [_cell(values, name, place, option="env.question_column") for name in columns.question]
    if len(cells) == 1 and isinstance(cells[0], list):
        prompt = _messages(cells[0], columns.question[0], place)
    else:
        prompt = (Message.user(" ".join(_text(*named, place) for named in zip(cells, columns.question, strict=True))),)
    answer = _answer(_cell(values, columns.answer, place, option="env.answer_column"), columns.answer, reading)
    question = "\n".join(message.text for message in prompt)
    within = reading.instruction.fullmatch(question) if reading.instruction else None
    return DataProblem(
        id=f"{file.name}:{number}",
        prompt=prompt,
        question=within["question"] if within else question,
        answer=answer,
        instructed=within is not None,
        extra={name: value for name in reading.keep if (value := _find(values, name)) is not _MISSING},
    )


_MISSING = object()


def _find(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _cell(row: Mapping[str, Any], column: str, place: str, *, option: str) -> Any:
    value = _find(row, column)
    if value is _MISSING:
        nested = [f"{key}.{inner}" for key, each in row.items() if isinstance(each, Mapping) for inner in each]
        raise DataError(f"{place}: no column '{column}'; set {option}. {did_you_mean(column, [*row, *nested])}")
    return value


def _text(cell: Any, column: str, place: str) -> str:
    if not isinstance(cell, str) or not cell.strip():
        raise DataError(f"{place}: '{column}' is {_shown(cell)}, not a question; set env.question_column")
    return cell.strip()


def _messages(cells: list[Any], column: str, place: str) -> tuple[Message, ...]:
    messages = []
    for cell in cells:
        role, content = (cell.get("role"), cell.get("content")) if isinstance(cell, Mapping) else (None, None)
        if role not in (Role.SYSTEM, Role.USER, Role.ASSISTANT) or not isinstance(content, str):
            raise DataError(f"{place}: '{column}' holds {_shown(cell)}, not a message with a role and text content")
        make = {"system": Message.system, "user": Message.user, "assistant": Message.assistant}[role]
        messages.append(make(content))
    if not messages or messages[-1].role is not Role.USER or not messages[-1].text.strip():
        raise DataError(f"{place}: the messages of '{column}' do not end with a question of the user")
    return tuple(messages)


def _answer(cell: Any, column: str, reading: Reading) -> str:
    if reading.kind == AnswerKind.ANY and isinstance(cell, list) and cell:
        cell = cell[0]  # of several right answers the first
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float, Decimal)):
        raise _UnreadableAnswerError(
            f"'{column}' is {_shown(cell)}, not a {'numeric ' if reading.kind != AnswerKind.ANY else ''}answer; "
            "set env.answer_column"
        )
    text = str(cell).rpartition("####")[2].strip()
    if reading.kind == AnswerKind.ANY:
        if not text or len(text) > _MAX_ANSWER_CHARS or (isinstance(cell, float) and not math.isfinite(cell)):
            raise _UnreadableAnswerError(f"'{column}' is {_shown(text)}, not an answer; set env.answer_column")
        return text
    return _number(text, column, reading)


def _number(text: str, column: str, reading: Reading) -> str:
    if (integral := _INTEGRAL.fullmatch(text)) is not None:
        text = integral["whole"]  # 43.0 of a column of floats is meant as 43
    value = parse_number(text)
    if value is None:
        raise _UnreadableAnswerError(
            f"'{column}' is {_shown(text)}, which is no number (env.answer_kind=any takes other answers)"
        )
    if reading.kind == AnswerKind.INTEGER:
        if value.denominator != 1:
            raise _UnreadableAnswerError(f"'{column}' is {_shown(text)}, which is no whole number")
        text = str(value.numerator)
    low, high = reading.smallest, reading.largest
    if (low is not None and value < low) or (high is not None and value > high):
        raise _UnreadableAnswerError(f"'{column}' is {_shown(text)}, which is not between {low} and {high}")
    return text


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
