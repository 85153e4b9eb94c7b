"""Data files → splits: which file is which split, and what is cut where one is missing.

`path` may be

- a file: its rows are divided 80/10/10 by `split_of` the question;
- a folder with `train.jsonl`, `validation.jsonl`, `test.jsonl` (any of the formats; also `valid`, `val`, `dev`, and
  numbered shards like `train-00000-of-00002.parquet`);
- a pattern with `{split}`: `data/{split}.csv`;
- an address on the Hugging Face hub, `hf://OWNER/NAME` (see `data_hub`): as for a folder; but one file alone, or files
  named after no split, are divided.

A split that has a file of its own is that whole file. A missing validation or test split is cut from train (its 10 % by
`split_of`). A question that is in two files is kept where it matters most: test, then validation, then train.

Where rows are divided or cut, near-duplicates (`near_duplicates.families`) stay together: the split of a family is that
of its alphabetically first question. Files that were published as splits are left as they are; `contamination` says
what they share.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from miles_agents.envs.data_hub import PREFIX, files_of_address
from miles_agents.envs.data_problems import DataColumns, DataProblem, Problems, Reading, SkippedRow, read_problems
from miles_agents.envs.data_rows import FORMATS
from miles_agents.envs.near_duplicates import families
from miles_agents.envs.splits import normalised, split_of
from miles_agents.errors import DataError, did_you_mean

logger = logging.getLogger(__name__)

SPLIT_NAMES = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
WHOLE = "whole"  # files that are no split of their own: their rows are divided
_HELD_OUT = ("test", "validation")  # in the order of their claim on a question
_SHARD = re.compile(r"-\d+-of-\d+(-[0-9a-f]{16})?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How rows are divided into splits where no file says it."""

    seed: int = 0  # of the hash that decides the split
    near_duplicates: bool = True  # keep near-duplicates on one side; False: equal questions only


class DataSet:
    """The problems of data files, by split; files are read once.

    Args:
        files: by split, or under `WHOLE` (see `files_of`).
        reading: how rows become problems.
        cutting: how rows are divided.
        name: of the data, for messages.
    """

    def __init__(
        self,
        files: Mapping[str, Sequence[Path]],
        reading: Reading | None = None,
        *,
        cutting: Cutting | None = None,
        name: str = "data",
    ) -> None:
        self.files = {split: tuple(paths) for split, paths in files.items()}
        self.name = name
        self._reading = reading or Reading()
        self._cutting = cutting or Cutting()
        self._read: dict[str, Problems] = {}
        self._homes: dict[str, list[str]] = {}

    def problems(self, split: str) -> list[DataProblem]:
        """The problems of one split, in the order of the file(s).

        Raises:
            DataError: see `read_problems`; or no file for the split, nor one to cut it from; or no problem in it.
        """
        source = self._source(split)
        found = list(self._kept(source))
        if source != split:  # a split that is cut, or a whole that is divided
            homes = self._homes_of(source)
            found = [problem for problem, home in zip(found, homes, strict=True) if home == split]
        elif source == "train" and not set(_HELD_OUT) <= set(self.files):
            homes = self._homes_of(source)
            kept = {"train", *(name for name in _HELD_OUT if name in self.files)}
            found = [problem for problem, home in zip(found, homes, strict=True) if home in kept]
        found = self._without_claimed(found, split, source)
        if not found:
            raise DataError(self._empty(split, source))
        return found

    def skipped(self, split: str) -> tuple[SkippedRow, ...]:
        """The rows that were left out of the files which the split comes from, and why."""
        source = self._source(split)
        self._kept(source)
        return self._read[source].skipped

    def _source(self, split: str) -> str:
        source = next((name for name in (split, WHOLE, "train") if name in self.files), None)
        if source is None:
            raise DataError(
                f"{self.name}: no file for split '{split}', nor a train file to cut it from; found: "
                f"{sorted(self.files)}"
            )
        return source

    def _kept(self, source: str) -> tuple[DataProblem, ...]:
        if source not in self._read:
            found = read_problems(self.files[source], self._reading)
            self._read[source] = found
            if found.skipped:
                first = found.skipped[0]
                logger.warning(
                    "%s: %d of %d rows left out, their answers cannot be read; the first is %s: %s",
                    self.name,
                    len(found.skipped),
                    len(found.skipped) + len(found.kept),
                    first.id,
                    first.reason,
                )
        return self._read[source].kept

    def _homes_of(self, source: str) -> list[str]:
        """The split of each problem of files that are divided."""
        if source not in self._homes:
            questions = [problem.question for problem in self._kept(source)]
            firsts: list[str] = [normalised(question) for question in questions]
            if self._cutting.near_duplicates:
                groups = families(questions)
                least: dict[int, str] = {}
                for group, text in zip(groups, firsts, strict=True):
                    least[group] = min(text, least.get(group, text))
                firsts = [least[group] for group in groups]
            self._warn_of_a_large_family(firsts)
            self._homes[source] = [split_of(text, seed=self._cutting.seed) for text in firsts]
        return self._homes[source]

    def _warn_of_a_large_family(self, firsts: Sequence[str]) -> None:
        text, most = Counter(firsts).most_common(1)[0] if firsts else ("", 0)
        if most > max(10, len(firsts) // 10):
            logger.warning(
                "%s: %d of %d questions are near-duplicates of each other and share a split: %.60s…",
                self.name,
                most,
                len(firsts),
                text,
            )

    def _without_claimed(self, found: list[DataProblem], split: str, source: str) -> list[DataProblem]:
        stronger = [name for name in _HELD_OUT if name in self.files]
        if source in stronger:
            stronger = stronger[: stronger.index(source)]
        taken = {normalised(problem.question) for name in stronger for problem in self._kept(name)}
        kept = [problem for problem in found if normalised(problem.question) not in taken]
        if len(kept) < len(found):
            logger.warning(
                "%s: %d rows left out of '%s': their questions are held out", self.name, len(found) - len(kept), split
            )
        return kept

    def _empty(self, split: str, source: str) -> str:
        if source == split:
            return f"{self.name}: no row is left for split '{split}'"
        related = ""
        if self._cutting.near_duplicates and len(set(self._homes_of(source))) < len(self._kept(source)):
            related = "; near-duplicates share a split (env.near_duplicates=false lets them be in several)"
        return (
            f"{self.name}: no row falls into split '{split}'{related}; give a larger file, or a folder with "
            f"train.jsonl and {split}.jsonl"
        )


def load_split(path: str, split: str, columns: DataColumns) -> list[DataProblem]:
    """The problems of one split of a path, with numeric answers.

    Raises:
        DataError: a missing file or folder; and see `DataSet.problems`.
    """
    return DataSet(files_of(path), Reading(layouts=(columns,)), name=path).problems(split)


def files_of(path: str) -> dict[str, list[Path]]:
    """The files of a path by split, or under `WHOLE` where it is one file.

    Raises:
        DataError: nothing there, or two files for one split; or the hub cannot be reached.
    """
    if path.startswith(PREFIX):
        return by_name(files_of_address(path))
    if "{split}" not in path and Path(path).expanduser().is_file():
        return {WHOLE: [Path(path).expanduser()]}
    return find_files(path)


def find_files(path: str) -> dict[str, list[Path]]:
    """The files of a folder or a `{split}` pattern, by split.

    Raises:
        DataError: nothing there, or two files for one split.
    """
    root = Path(path).expanduser()
    if "{split}" in path:
        found = {
            split: [file for name in names if (file := Path(str(root).replace("{split}", name))).is_file()]
            for split, names in SPLIT_NAMES.items()
        }
    elif root.is_dir():
        files = data_files_in(root)
        found = {split: [file for file in files if _is_file_of(file, names)] for split, names in SPLIT_NAMES.items()}
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


def by_name(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files of one folder by split, or under `WHOLE` if they are named after no split, or all after one."""
    try:
        found = find_files(str(files[0].parent))
    except DataError:
        found = {}
    found = {split: kept for split, each in found.items() if (kept := [file for file in each if file in files])}
    return found if len(found) > 1 else {WHOLE: list(files)}


def data_files_in(folder: Path) -> list[Path]:
    """The files of a folder that have one of the formats, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix in FORMATS and file.is_file())


def _is_file_of(file: Path, names: Sequence[str]) -> bool:
    return _SHARD.sub("", file.stem) in names
