"""Questions and numeric answers from data files: JSONL, JSON, CSV or Parquet.

`path` may be

- a file: its rows are divided 80/10/10 by `split_of` the question, so equal questions share a split;
- a folder with `train.jsonl`, `validation.jsonl`, `test.jsonl` (any of the formats; also `valid`, `val`, `dev`, and
  numbered shards like `train-00000-of-00002.parquet`);
- a pattern with `{split}`: `data/{split}.csv`.

In the last two a split that has a file is that whole file. A missing validation or test split is cut from train (its
10 % by `split_of`). A question that is in two files is kept where it matters most: test, then validation, then train.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from miles_agents.answers import parse_number
from miles_agents.envs.data_rows import FORMATS, read_rows
from miles_agents.envs.splits import normalised, split_of
from miles_agents.errors import DataError, did_you_mean
from miles_agents.types import Message, Role

logger = logging.getLogger(__name__)

_SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
_HELD_OUT = ("test", "validation")  # in the order of their claim on a question
_SHARD = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataProblem:
    """One row."""

    id: str  # file name and row, unique within what was loaded: "train.jsonl:12"
    prompt: tuple[Message, ...]
    question: str  # the text that decides the split
    answer: str  # a number, as `answers.parse_number` reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumns:
    """Where a row keeps its question and its answer.

    A name may be a path into nested rows, `reward_model.ground_truth`. Several question columns are joined by a
    space. A question is text, or a list of messages (`[{"role": "user", "content": "…"}]`), which becomes the prompt
    as it is. An answer is a number or text; of `…#### 72` the part behind the last `####` counts.
    """

    question: tuple[str, ...] = ("question",)
    answer: str = "answer"


def load_split(path: str, split: str, columns: DataColumns) -> list[DataProblem]:
    """The problems of one split, in the order of the file(s).

    Raises:
        DataError: a missing file or folder, an unknown format, a broken line, a missing column, a question that is no
            text, an answer that is no number, or a split without problems. File and line (or row) are named.
    """
    if "{split}" not in path and Path(path).expanduser().is_file():
        everything = _read_problems([Path(path).expanduser()], columns)
        problems = [problem for problem in everything if split_of(problem.question) == split]
    else:
        problems = _from_files(path, find_files(path), split, columns)
    if not problems:
        raise DataError(
            f"{path}: no row falls into split '{split}'; give a larger file, or a folder with train.jsonl and "
            f"{split}.jsonl"
        )
    return problems


def _from_files(path: str, files: Mapping[str, Sequence[Path]], split: str, columns: DataColumns) -> list[DataProblem]:
    source = split if split in files else "train"
    if source not in files:
        raise DataError(f"{path}: no file for split '{split}', nor a train file to cut it from; found: {sorted(files)}")
    problems = _read_problems(files[source], columns)
    stronger = [name for name in _HELD_OUT if name in files]
    if source == "train":
        cut = set(_HELD_OUT) - set(files)
        problems = [problem for problem in problems if _home(problem, cut) == split]
    else:
        stronger = stronger[: stronger.index(split)]
    taken = {normalised(problem.question) for name in stronger for problem in _read_problems(files[name], columns)}
    kept = [problem for problem in problems if normalised(problem.question) not in taken]
    if len(kept) < len(problems):
        logger.warning(
            "%s: %d rows left out of '%s': their questions are held out", path, len(problems) - len(kept), split
        )
    return kept


def _home(problem: DataProblem, cut: set[str]) -> str:
    split = split_of(problem.question)
    return split if split in cut else "train"


def find_files(path: str) -> dict[str, list[Path]]:
    """The files of a folder or a `{split}` pattern, by split.

    Raises:
        DataError: nothing there, or two files for one split.
    """
    root = Path(path).expanduser()
    if "{split}" in path:
        found = {
            split: [file for name in names if (file := Path(str(root).replace("{split}", name))).is_file()]
            for split, names in _SPLIT_NAMES.items()
        }
    elif root.is_dir():
        files = sorted(file for file in root.iterdir() if file.suffix in FORMATS and file.is_file())
        found = {split: [file for file in files if _is_file_of(file, names)] for split, names in _SPLIT_NAMES.items()}
    else:
        near = [str(file) for file in root.parent.glob("*")] if root.parent.is_dir() else []
        raise DataError(f"env.data: no file or folder {path}. {did_you_mean(str(root), near)}")
    for split, files in found.items():
        if len(files) > 1 and not all(_SHARD.search(file.stem) for file in files):
            names = ", ".join(file.name for file in files)
            raise DataError(
                f"{path}: several files for split '{split}' ({names}); keep one, or give a '{{split}}' pattern"
            )
    found = {split: files for split, files in found.items() if files}
    if not found:
        raise DataError(
            f"{path}: no data files; expected train, validation or test with one of {', '.join(FORMATS)}, "
            "e.g. train.jsonl"
        )
    return found


def _is_file_of(file: Path, names: Sequence[str]) -> bool:
    return _SHARD.sub("", file.stem) in names


def _read_problems(files: Sequence[Path], columns: DataColumns) -> list[DataProblem]:
    return [
        _problem(row, columns, id=f"{file.name}:{number}", place=f"{file}:{number}")
        for file in files
        for number, row in read_rows(file)
    ]


def _problem(row: Mapping[str, Any], columns: DataColumns, *, id: str, place: str) -> DataProblem:
    cells = [_cell(row, name, place, option="env.question_column") for name in columns.question]
    if len(cells) == 1 and isinstance(cells[0], list):
        prompt = _messages(cells[0], columns.question[0], place)
    else:
        prompt = (Message.user(" ".join(_text(*named, place) for named in zip(cells, columns.question, strict=True))),)
    answer = _answer(_cell(row, columns.answer, place, option="env.answer_column"), columns.answer, place)
    return DataProblem(id=id, prompt=prompt, question="\n".join(message.text for message in prompt), answer=answer)


def _cell(row: Mapping[str, Any], column: str, place: str, *, option: str) -> Any:
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            nested = [f"{key}.{inner}" for key, each in row.items() if isinstance(each, Mapping) for inner in each]
            raise DataError(f"{place}: no column '{column}'; set {option}. {did_you_mean(column, [*row, *nested])}")
        value = value[part]
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


def _answer(cell: Any, column: str, place: str) -> str:
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float, Decimal)):
        raise DataError(f"{place}: '{column}' is {_shown(cell)}, not a numeric answer; set env.answer_column")
    answer = str(cell).rpartition("####")[2].strip()
    if parse_number(answer) is None:
        raise DataError(f"{place}: '{column}' is {_shown(answer)}, which is no number (numeric answers only)")
    return answer


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
