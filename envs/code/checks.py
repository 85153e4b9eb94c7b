"""Hidden tests: how they are written down, and when what came back fulfils one. Nothing here runs in the sandbox.

A test is a JSON object of one of these forms, or text `assert NAME(ARGUMENTS) == LITERAL`:

| runs | keys | |
|---|---|---|
| a call of the entry point | `args`, `kwargs` | both may be left out |
| a program | `stdin` | the solution as a script |
| an expression | `expression`, `setup` | evaluated after the statements of `setup` |

and says what must come of it: `expected` (a value), `stdout` (what is printed; of a program or of a call), or `raises`
(the name of an exception class; subclasses count).
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from miles_agents.envs.code.harness import UnreadableValueError, encode_value
from miles_agents.errors import DataError, did_you_mean

_RUNS = {
    "call": frozenset({"args", "kwargs"}),
    "program": frozenset({"stdin"}),
    "expression": frozenset({"expression", "setup"}),
}
_WANTED = frozenset({"expected", "stdout", "raises"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One hidden test: a case for the sandbox, and what must come of it, which stays on the host."""

    case: Mapping[str, Any]  # what the harness is told
    wanted: Mapping[str, Any]  # `expected`, `stdout` and `raises`, as far as they were given

    def fulfilled(self, record: Mapping[str, Any], *, float_tolerance: float = 0.0) -> bool:
        """True if the record of a run is what is wanted.

        Success needs the harness's own report that the call returned or the program ran to its end: neither an exit
        code nor a matching text is enough. A program that leaves by `sys.exit(0)` counts as ended if it printed
        something.

        Args:
            record: of the case, from the results file; anything in it may be forged.
            float_tolerance: relative and absolute; 0 compares numbers exactly and by type.
        """
        kind, stdout = record.get("kind"), record.get("stdout")
        if not isinstance(stdout, str):
            return False
        if "raises" in self.wanted:
            types = record.get("types")
            return kind == "raised" and isinstance(types, list) and self.wanted["raises"] in types
        if self.case["run"] == "program":
            left = kind == "exited" and record.get("code") == 0 and bool(stdout.strip())
            return (kind == "ended" or left) and same_output(self.wanted["stdout"], stdout, float_tolerance)
        if kind != "returned":
            return False
        if "stdout" in self.wanted and not same_output(self.wanted["stdout"], stdout, float_tolerance):
            return False
        try:
            return "expected" not in self.wanted or same_value(
                self.wanted["expected"], record.get("value"), float_tolerance
            )
        except RecursionError:  # nested too deep to be any of our values
            return False


def read_check(row: Any, place: str) -> Check:
    """A hidden test from its row.

    Args:
        row: see the module.
        place: file and line, for messages.

    Raises:
        DataError: it is of no known form.
    """
    if isinstance(row, str):
        return _from_assert(row, place)
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: a test is an object or an assert statement, not {row!r}")
    unknown = sorted(set(row) - _WANTED - frozenset().union(*_RUNS.values()))
    if unknown:
        raise DataError(f"{place}: a test has no '{unknown[0]}'. {did_you_mean(unknown[0], _all_keys())}")
    wanted = {name: row[name] for name in sorted(_WANTED) if name in row}
    if not wanted:
        raise DataError(f"{place}: a test says what must come of it: expected, stdout or raises")
    run = "expression" if "expression" in row else "program" if "stdin" in row else "call"
    alien = sorted(set(row) - _WANTED - _RUNS[run])
    if alien:
        raise DataError(f"{place}: '{alien[0]}' does not go together with a test by {run}")
    _check_wanted(run, wanted, place)
    if run == "expression":
        case = {"expression": _text(row, "expression", place), "setup": _text(row, "setup", place)}
    elif run == "program":
        case = {"stdin": _text(row, "stdin", place)}
    else:
        case = _call_case(row.get("args", []), row.get("kwargs", {}), place)
    return Check(case={"run": run, **case}, wanted=wanted)


def _all_keys() -> list[str]:
    return sorted(_WANTED.union(*_RUNS.values()))


def _check_wanted(run: str, wanted: Mapping[str, Any], place: str) -> None:
    if "raises" in wanted and len(wanted) > 1:
        raise DataError(f"{place}: a test with 'raises' has neither 'expected' nor 'stdout'")
    if run == "program" and set(wanted) != {"stdout"}:
        raise DataError(f"{place}: a test with 'stdin' has 'stdout' and nothing else to compare with")
    for name in ("stdout", "raises"):
        _text(wanted, name, place)


def _text(row: Mapping[str, Any], name: str, place: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, str):
        raise DataError(f"{place}: '{name}' of a test is {value!r}, not text")
    return value


def _call_case(args: Any, kwargs: Any, place: str) -> dict[str, Any]:
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
        raise DataError(f"{place}: 'args' of a test is a list and 'kwargs' an object, not {args!r} and {kwargs!r}")
    try:
        return {"args": encode_value(list(args)), "kwargs": encode_value(dict(kwargs))}
    except UnreadableValueError as error:
        raise DataError(f"{place}: the arguments of a test cannot be handed over: {error}") from error


def _from_assert(text: str, place: str) -> Check:
    """`assert f(1, [2]) == 3`; only literals are read, nothing is evaluated."""
    try:
        (statement,) = ast.parse(text.strip()).body
        assert isinstance(statement, ast.Assert)
        compared = statement.test
        assert isinstance(compared, ast.Compare)
        assert len(compared.ops) == 1
        assert isinstance(compared.ops[0], ast.Eq)
        call = compared.left
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        args = [ast.literal_eval(each) for each in call.args]
        kwargs = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg}
        expected = ast.literal_eval(compared.comparators[0])
    except (SyntaxError, ValueError, AssertionError, TypeError, RecursionError) as error:
        raise DataError(f"{place}: a test in words is `assert NAME(LITERALS) == LITERAL`, not {text!r}") from error
    return Check(case={"run": "call", **_call_case(args, kwargs, place)}, wanted={"expected": expected})


def same_output(expected: str, printed: str, float_tolerance: float = 0.0) -> bool:
    """Equal line by line, trailing white space and empty lines at the end left out.

    With a tolerance, words that are numbers in both are compared as numbers.
    """
    wanted, given = _lines(expected), _lines(printed)
    if wanted == given:
        return True
    if float_tolerance <= 0 or len(wanted) != len(given):
        return False
    words = [(one.split(), other.split()) for one, other in zip(wanted, given, strict=True)]
    return all(len(one) == len(other) for one, other in words) and all(
        _same_word(a, b, float_tolerance) for one, other in words for a, b in zip(one, other, strict=True)
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_word(expected: str, given: str, float_tolerance: float) -> bool:
    if expected == given:
        return True
    try:
        return _close(float(expected), float(given), float_tolerance)
    except ValueError:
        return False


def same_value(expected: Any, encoded: Any, float_tolerance: float = 0.0) -> bool:
    """True if `encoded`, a value as `encode_value` writes it, is the expected value, in value and type.

    A boolean is no number; an expected float takes an integer of its value, an expected integer no float; an expected
    list takes a tuple (JSON has none); not a number equals itself. With a tolerance all numbers are compared by
    `math.isclose`, relative and absolute. Keys of dicts and members of sets are compared exactly.

    The work is bounded by the size of `expected`, whatever was made to come back: nothing else is decoded, and what
    came back is put into no table by a hash that it could choose.
    """
    if expected is None or type(expected) in (bool, str):
        return type(encoded) is type(expected) and bool(encoded == expected)
    if type(expected) in (int, float):
        return _same_number(expected, encoded, float_tolerance)
    if type(expected) in (list, tuple):
        given = encoded if type(expected) is list and isinstance(encoded, list) else _inside(encoded, "t")
        return (
            isinstance(given, list)
            and len(given) == len(expected)
            and all(same_value(one, other, float_tolerance) for one, other in zip(expected, given, strict=True))
        )
    if type(expected) is dict:
        return _same_dict(expected, _inside(encoded, "d"), float_tolerance)
    return _canonical(encode_value(expected)) == _canonical(encoded)


def _inside(encoded: Any, tag: str) -> Any:
    return encoded.get(tag) if isinstance(encoded, dict) and len(encoded) == 1 else None


def _same_dict(expected: Mapping[Any, Any], pairs: Any, float_tolerance: float) -> bool:
    if not isinstance(pairs, list) or len(pairs) != len(expected):
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return False
    given = {_canonical(key): value for key, value in pairs}
    return len(given) == len(pairs) and all(
        (name := _canonical(encode_value(key))) in given and same_value(value, given[name], float_tolerance)
        for key, value in expected.items()
    )


def _canonical(encoded: Any) -> str:
    """Text that two encoded values share only if they are equal: sets have no order."""
    if isinstance(encoded, list):
        return "[" + ",".join(_canonical(each) for each in encoded) + "]"
    if isinstance(encoded, dict):
        parts = []
        for tag, inner in sorted(encoded.items()):
            if tag in ("s", "z", "d") and isinstance(inner, list):
                parts.append(f"{tag}:{{{','.join(sorted(_canonical(each) for each in inner))}}}")
            else:
                parts.append(f"{json.dumps(tag)}:{_canonical(inner)}")
        return "{" + ",".join(parts) + "}"
    return json.dumps(encoded)


def _same_number(expected: Any, encoded: Any, float_tolerance: float) -> bool:
    text = _inside(encoded, "i")
    integer = text is not None
    try:
        given = int(text, 16) if integer else float.fromhex(_inside(encoded, "f"))
        if float_tolerance > 0:
            return _close(float(expected), float(given), float_tolerance)
    except OverflowError:  # an integer too large for a float
        return integer and bool(expected == given)
    except (ValueError, TypeError):
        return False
    if type(expected) is int and not integer:
        return False
    both_nan = expected != expected and given != given
    return bool(expected == given or both_nan)


def _close(expected: float, given: float, tolerance: float) -> bool:
    both_nan = math.isnan(expected) and math.isnan(given)
    return both_nan or math.isclose(expected, given, rel_tol=tolerance, abs_tol=tolerance)
