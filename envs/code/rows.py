"""Rows of JSONL files by split, for problems whose tests are nested values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from miles_agents.envs.data_files import find_files
from miles_agents.envs.splits import normalised, split_of
from miles_agents.errors import DataError

T = TypeVar("T")

_HELD_OUT = ("test", "validation")  # in the order of their claim on a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[T]):
    """What the rows of a file are.

    Args:
        read: a row, its line's name (`file:line`) and a shorter one for ids → what it stands for.
        text: of such a thing, what says whether two are the same; it decides the split.
    """

    read: Callable[[Mapping[str, Any], str, str], T]
    text: Callable[[T], str]

    def of_split(self, path: str, split: str) -> list[T]:
        """The rows of one split of a data file (JSONL), a folder of them or a `{split}` pattern.

        A single file is divided 80/10/10 by a hash of the text. In a folder a split that has a file is that whole file,
        and a missing validation or test split is cut from train. A text that is in two files is kept where it matters
        most: test, then validation, then train.

        Raises:
            DataError: a missing file, a broken line, a row that `read` refuses; file and line are named.
        """
        file = Path(path).expanduser()
        if "{split}" not in path and file.is_file():
            found = [each for each in self._of([file]) if split_of(self.text(each)) == split]
        else:
            found = self._from_files(path, split)
        if not found:
            raise DataError(
                f"{path}: no row falls into split '{split}'; give a folder with train.jsonl and {split}.jsonl"
            )
        return found

    def _from_files(self, path: str, split: str) -> list[T]:
        files = find_files(path)
        source = split if split in files else "train"
        if source not in files:
            raise DataError(
                f"{path}: no file for split '{split}', nor a train file to cut it from; found: {sorted(files)}"
            )
        found = list(self._of(files[source]))
        stronger = [name for name in _HELD_OUT if name in files]
        if source == "train":
            cut = set(_HELD_OUT) - set(files)
            homes = [split_of(self.text(each)) for each in found]
            found = [
                each for each, home in zip(found, homes, strict=True) if (home if home in cut else "train") == split
            ]
        else:
            stronger = stronger[: stronger.index(split)]
        taken = {normalised(self.text(each)) for name in stronger for each in self._of(files[name])}
        return [each for each in found if normalised(self.text(each)) not in taken]

    def _of(self, files: Sequence[Path]) -> Iterator[T]:
        for file in files:
            for number, row in read_json_lines(file):
                yield self.read(row, f"{file}:{number}", f"{file.name}:{number}")


def read_json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file with their line numbers; numbers stay numbers, for they are arguments of calls.

    Raises:
        DataError: no JSONL file, one that cannot be read or is empty, a line that is no object.
    """
    if file.suffix != ".jsonl":
        raise DataError(f"{file}: tests are nested, so the file must be JSON lines: name it .jsonl")
    number = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{file}:{number}: broken JSON: {error}") from error
                if not isinstance(row, dict):
                    raise DataError(f"{file}:{number}: expected an object, got {type(row).__name__}")
                yield number, row
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
    if number == 0:
        raise DataError(f"{file}: the file is empty")
