"""What is wrong with a call's arguments, in words for the model that wrote it.

One bounded line: which argument, what is allowed, what was given. Pydantic's vocabulary stays out of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from miles_agents.errors import did_you_mean

MAX_ERROR_CHARS = 400

_MAX_PROBLEMS = 4
_MAX_VALUE_CHARS = 40
_MAX_PATH_CHARS = 60
_MAX_CHOICES_CHARS = 120

# Pydantic's message by the error's type, where its own would not help a model.
_WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dataclass_type": "must be an object",
    "date_from_datetime_parsing": "must be a date such as 2026-01-31",
    "date_parsing": "must be a date such as 2026-01-31",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "list_type": "must be a list",
    "set_type": "must be a list",
    "tuple_type": "must be a list",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    path: str  # of the value within the arguments
    text: str  # without what was given
    given: str
    form: str = ""  # which form of a union this is about
    form_path: str = ""  # where the union stands


def describe_bad_arguments(
    tool: str, error: ValidationError, arguments: Mapping[str, Any], *, allowed: Mapping[str, Any]
) -> str:
    """One line for the model.

    Args:
        tool: its name.
        error: what pydantic found.
        arguments: what the model wrote.
        allowed: the tool's arguments by name.
    """
    problems = [_problem(each, arguments, allowed) for each in error.errors(include_url=False)]
    lines = [_sentence(group) for group in _by_union(problems)]
    more = f"; and {len(lines) - _MAX_PROBLEMS} more" if len(lines) > _MAX_PROBLEMS else ""
    return clipped(f"bad arguments for '{tool}': {'; '.join(lines[:_MAX_PROBLEMS])}{more}", MAX_ERROR_CHARS)


def clipped(text: str, limit: int) -> str:
    """`text`, shortened to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _problem(error: Mapping[str, Any], arguments: Mapping[str, Any], allowed: Mapping[str, Any]) -> _Problem:
    missing = error["type"] == "missing"
    path, form, form_path = _locate(error["loc"], arguments, missing=missing)
    if missing:
        return _Problem(path=path, text="is missing", given="", form=form, form_path=form_path)
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        name = str(error["loc"][-1])
        hint = did_you_mean(name, allowed) if len(error["loc"]) == 1 else "Leave it out."
        return _Problem(path=path, text=f"is no argument. {hint.rstrip('.')}", given="", form=form, form_path=form_path)
    given = clipped(json.dumps(error["input"], ensure_ascii=False, default=str), _MAX_VALUE_CHARS)
    return _Problem(path=path, text=_requirement(error), given=given, form=form, form_path=form_path)


def _locate(loc: Sequence[Any], arguments: Mapping[str, Any], *, missing: bool) -> tuple[str, str, str]:
    """The path of an error's place in the arguments, and the last form of a union on the way and its path.

    Pydantic mixes names of union members into the places of errors; they are what leads nowhere in the arguments.
    """
    path, form, form_path = "", "", ""
    value: Any = arguments
    for number, key in enumerate(loc):
        inside = isinstance(value, Mapping) and key in value
        if inside or (isinstance(value, list) and isinstance(key, int) and key < len(value)):
            value = value[key]
            path += _step(key, first=not path)
        elif missing and number == len(loc) - 1:
            path += _step(key, first=not path)
        elif key != "[key]":
            form, form_path = str(key), path
    return _shown(path or "arguments"), form, _shown(form_path)


def _shown(path: str) -> str:
    return clipped(" ".join(path.split()), _MAX_PATH_CHARS)


def _step(key: Any, *, first: bool) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return str(key) if first else f".{key}"


def _requirement(error: Mapping[str, Any]) -> str:
    kind, message = str(error["type"]), str(error["msg"])
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in ("literal_error", "enum"):
        return f"must be {_choices(str(error['ctx']['expected']), error['input'])}"
    message = message.replace("dictionary", "object")
    message = re.sub(r"^(Value error|Assertion failed), ", "", message)
    message = re.sub(r"^[A-Z]\w*( input)? should ", "must ", message)
    if kind.endswith("_parsing") or kind == "int_from_float":  # ", unable to parse string as an integer"
        message = message.split(",", 1)[0]
    message = re.sub(r"\ba valid (?=[aeiou])", "an ", message).replace("a valid ", "a ")
    return message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _choices(expected: str, given: Any) -> str:
    if len(expected) <= _MAX_CHOICES_CHARS:
        return expected
    choices = re.findall(r"'([^']*)'", expected)
    near = get_close_matches(str(given), choices, n=3, cutoff=0.5) or choices[:3]
    return f"one of {len(choices)} values such as {', '.join(map(repr, near))}"


def _by_union(problems: Sequence[_Problem]) -> list[list[_Problem]]:
    """Problems of one union together, in the order they came; each other one alone."""
    groups: list[list[_Problem]] = []
    unions: dict[str, list[_Problem]] = {}
    for problem in problems:
        if not problem.form:
            groups.append([problem])
        elif problem.form_path in unions:
            unions[problem.form_path].append(problem)
        else:
            unions[problem.form_path] = [problem]
            groups.append(unions[problem.form_path])
    return groups


def _sentence(group: Sequence[_Problem]) -> str:
    first = group[0]
    if len(group) == 1:
        return _alone(first)
    if all(each.path == each.form_path and each.text.startswith("must be ") for each in group):
        texts = list(dict.fromkeys(each.text.removeprefix("must be ") for each in group))
        return f"'{first.path}' must be {' or '.join(texts)}, got {first.given}"
    forms = " / ".join(f"({each.form}) {_alone(each)}" for each in group)
    return f"'{first.form_path}' fits none of its forms: {forms}"


def _alone(problem: _Problem) -> str:
    return f"'{problem.path}' {problem.text}" + (f", got {problem.given}" if problem.given else "")
