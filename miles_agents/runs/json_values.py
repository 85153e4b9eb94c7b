"""Values as strict JSON: numpy numbers become Python's, and numbers that JSON has no word for are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from miles_agents.errors import DataError

_TAG = "$float"  # {"$float": "nan"}


def to_json(value: Any, where: str) -> Any:
    """`value` as JSON that `from_json` turns back; `where` names it in the error.

    Raises:
        DataError: something that JSON has no word for.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_TAG: str(value)}
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong or _TAG in value:
            raise DataError(f"{where} has the key {(wrong or [_TAG])[0]!r}; keys are strings other than {_TAG!r}")
        return {key: to_json(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(entry, where) for entry in value]
    raise DataError(f"{where} holds a {type(value).__name__}, which is no JSON value: {str(value)[:80]!r}")


def from_json(stored: Any) -> Any:
    """The value behind `to_json`'s; tuples come back as lists."""
    if isinstance(stored, dict):
        if stored.keys() == {_TAG}:
            return float(stored[_TAG])
        return {key: from_json(entry) for key, entry in stored.items()}
    if isinstance(stored, list):
        return [from_json(entry) for entry in stored]
    return stored


def for_people(value: Any, where: str = "value") -> Any:
    """`value` as JSON to be looked at: numbers that are not finite become the texts "nan", "inf", "-inf"."""
    return _untagged(to_json(from_json(value), where))


def _untagged(stored: Any) -> Any:
    if isinstance(stored, dict):
        return stored[_TAG] if stored.keys() == {_TAG} else {key: _untagged(entry) for key, entry in stored.items()}
    return [_untagged(entry) for entry in stored] if isinstance(stored, list) else stored


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON text that can always be written as UTF-8: readable, unless half a surrogate pair forces escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # e.g. a model wrote "\ud800" in JSON arguments
        return json.dumps(value, allow_nan=False, indent=indent)
    return text
