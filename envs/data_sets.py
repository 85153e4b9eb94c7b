"""Known data sets: where their files are and how their rows look.

Files are looked for in `$MILES_AGENTS_DATA/NAME/` (`gsm8k/train.jsonl`, `gsm8k/test.jsonl`, …), then on the Hugging
Face hub, whose downloads are kept in its own cache. `env.data=PATH` takes any other place, and `env.data=hf://OWNER/NAME`
any other data set of the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles_agents.envs.data_files import by_name, data_files_in, files_of
from miles_agents.envs.data_hub import PREFIX, fetch, files_of_address
from miles_agents.envs.data_problems import AnswerKind, DataColumns, Reading
from miles_agents.errors import UsageError, did_you_mean

VARIABLE = "MILES_AGENTS_DATA"  # names the folder of data sets

_DAPO_INSTRUCTION = re.compile(
    r"\s*Solve the following math problem[^\n]*\n\n(?P<question>.*?)\n\nRemember to put your answer[^\n]*\s*", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """Files of a data set on the Hugging Face hub."""

    repository: str  # "owner/name"
    files: str  # a pattern of the files below the repository's root


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSet:
    """A data set that is known by name."""

    name: str
    about: str
    sources: tuple[HubSource, ...]  # all of them together are the set
    reading: Reading
    splits: tuple[str, ...] = ("train", "validation", "test")  # ("test",): for evaluation only, all rows are test


def _columns(*question: str, answer: str = "answer") -> DataColumns:
    return DataColumns(question=question, answer=answer)


SETS = {
    known.name: known
    for known in (
        KnownSet(
            name="gsm8k",
            about="grade-school word problems of several steps",
            sources=(HubSource(repository="openai/gsm8k", files="main/*.parquet"),),
            reading=Reading(layouts=(_columns("question"),)),
        ),
        KnownSet(
            name="svamp",
            about="one-step word problems with distracting facts",
            sources=(HubSource(repository="ChilleD/SVAMP", files="data/*.parquet"),),
            reading=Reading(layouts=(_columns("Body", "Question", answer="Answer"),)),
        ),
        KnownSet(
            name="mawps",
            about="short word problems",
            sources=(HubSource(repository="MU-NLPC/Calc-mawps", files="data/*.parquet"),),
            reading=Reading(layouts=(_columns("input", answer="target"), _columns("question", answer="result"))),
        ),
        KnownSet(
            name="dapo_math",
            about="competition mathematics, each prompt with its own instruction",
            sources=(HubSource(repository="BytedTsinghua-SIA/DAPO-Math-17k", files="data/*.parquet"),),
            reading=Reading(
                layouts=(
                    _columns("prompt", answer="reward_model.ground_truth"),
                    _columns("prompt", answer="solution"),
                    _columns("prompt"),
                ),
                kind=AnswerKind.ANY,
                distinct=True,  # the published file repeats each of its 17 thousand problems about a hundred times
                instruction=_DAPO_INSTRUCTION,
            ),
        ),
        KnownSet(
            name="aime",
            about="the American Invitational Mathematics Examinations of 2024 and 2025",
            sources=(
                HubSource(repository="HuggingFaceH4/aime_2024", files="data/*.parquet"),
                HubSource(repository="math-ai/aime25", files="*.jsonl"),
            ),
            reading=Reading(
                layouts=(
                    _columns("problem"),
                    _columns("Problem", answer="Answer"),
                    _columns("question"),
                    _columns("Question", answer="Answer"),
                ),
                kind=AnswerKind.INTEGER,
                smallest=0,
                largest=999,
            ),
            splits=("test",),
        ),
    )
}


def known_set(name: str) -> KnownSet:
    """The set of that name.

    Raises:
        UsageError: there is none; the message lists them.
    """
    if name not in SETS:
        raise UsageError(f"env.dataset={name}: no such data set. {did_you_mean(name, SETS)}")
    return SETS[name]


def locate(known: KnownSet, data: str | None = None) -> dict[str, list[Path]]:
    """The files of a known set, by split or under `WHOLE`.

    A folder of `$MILES_AGENTS_DATA`, or a download, in which only one split has a file holds the set as a whole,
    whatever that file is called; so does one whose files are named after no split.

    Args:
        known: the set.
        data: a file, folder or pattern of the user's own, taken as it is named; None looks in the usual places.

    Raises:
        DataError: `data` is missing, or no place has the set; the message says what to type.
    """
    if data is not None and data.startswith(PREFIX):
        return _by_split(files_of_address(data), known)
    if data is not None:
        if known.splits == ("test",) and Path(data).expanduser().exists():
            path = Path(data).expanduser()
            return {"test": data_files_in(path) if path.is_dir() else [path]}
        return files_of(data)
    place = os.environ.get(VARIABLE)
    folder = Path(place).expanduser() / known.name if place else None
    files = data_files_in(folder) if folder and folder.is_dir() else []
    return _by_split(files or fetch_set(known), known)


def _by_split(files: Sequence[Path], known: KnownSet) -> dict[str, list[Path]]:
    if known.splits == ("test",):
        return {"test": list(files)}
    return by_name(files)


def fetch_set(known: KnownSet, *, download: Callable[..., str] | None = None) -> list[Path]:
    """The files of a set from the Hugging Face hub, downloaded if they are not there yet.

    Args:
        known: the set.
        download: what fetches a repository; None is `huggingface_hub.snapshot_download`.

    Raises:
        DataError: the hub cannot be reached, or the repository has no such files; the message says what to type.
    """
    return [
        file
        for source in known.sources
        for file in fetch(
            source.repository, [source.files], what=known.name, otherwise=_elsewhere(known), download=download
        )
    ]


def _elsewhere(known: KnownSet) -> str:
    columns = known.reading.layouts[0]
    return (
        f"put its files at ${VARIABLE}/{known.name}/ (now {VARIABLE}={os.environ.get(VARIABLE, '')!r}), or give a "
        f"file or folder: env.data=PATH, with the columns {', '.join((*columns.question, columns.answer))}"
    )
