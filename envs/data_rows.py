"""Rows of JSONL, JSON, CSV and Parquet files, numbered, with errors that name file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from miles_agents.errors import DataError

Row = tuple[int, Mapping[str, Any]]  # line (JSONL, CSV) or row (JSON, Parquet) from 1, and the row by column


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a file, in order; the format is told by the suffix.

    Numbers of JSON files are given as the text that stands there, so that nothing is rounded.

    Raises:
        DataError: an unknown format, an unreadable or empty file, a broken line; file and line are named.
    """
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{file}: unknown format '{file.suffix}'; it can be {', '.join(FORMATS)}")
    number = 0
    try:
        for number, row in reader(file):
            yield number, row
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
    if number == 0:
        raise DataError(f"{file}: the file is empty")


def _jsonl(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:  # bytes: a line that is no UTF-8 is then named like any other broken line
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _mapping(_parsed(line, f"{file}:{number}"), f"{file}:{number}")


def _json(file: Path) -> Iterator[Row]:
    rows = _parsed(file.read_bytes() or b"[]", str(file))
    if not isinstance(rows, list):
        raise DataError(f"{file}: expected a list of objects, got {type(rows).__name__}")
    for number, row in enumerate(rows, 1):
        yield number, _mapping(row, f"{file}: row {number}")


def _csv(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for row in reader:
                fields = len(reader.fieldnames or ())
                if None in row or None in row.values():
                    raise DataError(f"{file}:{reader.line_num}: broken line: it has not the header's {fields} fields")
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{file}:{reader.line_num + 1}: broken line: {error}") from error


def _parquet(file: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq  # slow to load, and most runs read no Parquet
    from pyarrow.lib import ArrowException

    try:
        with pq.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except ArrowException as error:
        raise DataError(f"{file}: broken Parquet file: {error}") from error


def _parsed(text: bytes, place: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"), parse_float=str, parse_int=str)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and place.endswith(".json"):
            raise DataError(f"{place}: one object per line? Then name it .jsonl (line {error.lineno})") from error
        where = place if error.lineno == 1 else f"{place}, line {error.lineno}"
        raise DataError(f"{where}: broken JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: broken JSON: {error}") from error


def _mapping(row: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected an object with named columns, got {type(row).__name__}")
    return row


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
FORMATS = tuple(_READERS)
