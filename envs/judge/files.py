"""Tasks from files: `question`, `rubric`, optionally `reference` and `max_words` on each line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_agents.envs.data_files import WHOLE, files_of
from miles_agents.envs.data_rows import read_rows
from miles_agents.envs.judge.rubric import OpenTask, Rubric, read_criteria
from miles_agents.envs.splits import normalised, split_of
from miles_agents.errors import DataError, did_you_mean

_COLUMNS = ("id", "question", "rubric", "reference", "max_words", "kind")
_HELD_OUT = ("test", "validation")  # in the order of their claim on a question


def loaded_tasks(path: str, split: str) -> list[OpenTask]:
    """The tasks of one split of a data file, a folder of them or a `{split}` pattern.

    A single file is divided 80/10/10 by a hash of the question; a missing validation or test split is cut from train. A
    question that is in two files is kept where it matters most: test, then validation, then train.

    Raises:
        DataError: a missing file, a broken line, a row without question or rubric; file and line are named.
    """
    files = files_of(path)
    source = next((name for name in (split, WHOLE, "train") if name in files), None)
    if source is None:
        raise DataError(f"{path}: no file for split '{split}', nor a train file to cut it from; found: {sorted(files)}")
    tasks = list(_read(files[source]))
    if source != split or split == "train":
        cut = ("train", *_HELD_OUT) if source == WHOLE else tuple(name for name in _HELD_OUT if name not in files)
        homes = [split_of(task.question) for task in tasks]
        tasks = [task for task, home in zip(tasks, homes, strict=True) if (home if home in cut else "train") == split]
    stronger = [name for name in _HELD_OUT if name in files]
    stronger = stronger[: stronger.index(source)] if source in stronger else stronger
    taken = {normalised(task.question) for name in stronger for task in _read(files[name])}
    tasks = [task for task in tasks if normalised(task.question) not in taken]
    if not tasks:
        raise DataError(f"{path}: no row falls into split '{split}'; give a folder with train.jsonl and {split}.jsonl")
    return tasks


def _read(files: Sequence[Path]) -> Iterator[OpenTask]:
    for file in files:
        for number, row in read_rows(file):
            yield _task(row, id=f"{file.name}:{number}", place=f"{file}:{number}")


def _task(row: Mapping[str, Any], *, id: str, place: str) -> OpenTask:
    unknown = sorted(set(row) - set(_COLUMNS))
    if unknown:
        raise DataError(f"{place}: a task has no '{unknown[0]}'. {did_you_mean(unknown[0], _COLUMNS)}")
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{place}: 'question' is {question!r:.80}; it is a text")
    if "rubric" not in row:
        raise DataError(f"{place}: the row has no 'rubric'")
    for name in ("id", "reference", "kind"):
        if not isinstance(row.get(name) or "", str):
            raise DataError(f"{place}: '{name}' is {row[name]!r:.80}; it is a text")
    return OpenTask(
        id=str(row.get("id") or id),
        question=question.strip(),
        rubric=Rubric(
            criteria=read_criteria(row["rubric"], place),
            reference=str(row.get("reference") or "").strip(),
            max_words=_max_words(row.get("max_words"), place),
        ),
        kind=str(row.get("kind") or ""),
    )


def _max_words(value: Any, place: str) -> int | None:
    if value is None or value == "":
        return None
    text = str(value)
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise DataError(f"{place}: 'max_words' is {value!r:.80}; it is a whole number above 0")
    return int(text)
