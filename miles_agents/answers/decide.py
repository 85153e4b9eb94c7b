"""Whether two expressions are equal, by exact arithmetic and by size; what is left over is for the symbolic part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from miles_agents.answers.exact import (
    Form,
    NotExactError,
    TooLargeError,
    UndefinedError,
    constant_ratio,
    form_of,
    forms_equal,
    rational,
)
from miles_agents.answers.syntax import ZERO, Add, Call, Mul, Node, Num, Pow, Sym, variables, walk
from miles_agents.answers.towers import certainly_different, equal_by_prime_factors

_CACHED = 4_096
_ONE = rational(1)


def all_of(verdicts: Iterable[bool | None]) -> bool | None:
    """And, in three values."""
    unknown = False
    for verdict in verdicts:
        if verdict is False:
            return False
        unknown = unknown or verdict is None
    return None if unknown else True


def any_of(verdicts: Iterable[bool | None]) -> bool | None:
    """Or, in three values."""
    unknown = False
    for verdict in verdicts:
        if verdict:
            return True
        unknown = unknown or verdict is None
    return None if unknown else False


def expressions_equal(first: Node, second: Node) -> bool | None:
    """Whether two expressions are equal; None if exact arithmetic and sizes do not tell.

    An expression without a value (1/0) equals nothing.
    """
    try:
        left, right = _form(first), _form(second)
    except UndefinedError:
        return False
    except TooLargeError:
        return False if _varies(first, second) or _varies(second, first) else _by_size(first, second)
    except NotExactError:
        return True if first == second else None
    return forms_equal(left, right)


def proportional(first: Node, second: Node) -> Fraction | bool | None:
    """The nonzero rational c with `first = c · second`, False if there is none, None if that is unknown."""
    try:
        ratio = constant_ratio(_form(first), _form(second))
    except UndefinedError:
        return False
    except NotExactError:
        return Fraction(1) if first == second else None
    if ratio is not None:
        return ratio
    irrational = any(
        isinstance(each, Call) or (isinstance(each, Sym) and each.name in "πe") for each in _all(first, second)
    )
    return None if irrational else False


def _all(first: Node, second: Node) -> Iterable[Node]:
    yield from walk(first)
    yield from walk(second)


@lru_cache(maxsize=_CACHED)
def _form(node: Node) -> Form:
    return form_of(node)


def _varies(first: Node, second: Node) -> bool:
    """Whether the first is a polynomial that is surely not constant, and the second a number."""
    if variables(second) or not variables(first):
        return False
    try:
        form = _form(first)
    except (NotExactError, UndefinedError):
        return False
    return form.bottom == _ONE.bottom and bool(variables(first) & form.names) and not {"π", "e"} <= form.names


def _by_size(first: Node, second: Node) -> bool | None:
    first, second = _without_shared_terms(first, second)
    if first == second:
        return True
    if certainly_different(first, second):
        return False
    return equal_by_prime_factors(first, second)


def _without_shared_terms(first: Node, second: Node) -> tuple[Node, Node]:
    left, right = (Counter(node.terms if isinstance(node, Add) else (node,)) for node in (first, second))
    shared = left & right
    if not shared:
        return first, second
    return _total(left - shared), _total(right - shared)


def _total(terms: Counter[Node]) -> Node:
    left = tuple(terms.elements())
    return Add(left) if len(left) > 1 else left[0] if left else ZERO


def without_base(node: Node, base: Node) -> Node:
    r"""The expression with `\log`, written without a base, to this base."""
    match node:
        case Call("log", (argument,)):
            return Call("log", (without_base(argument, base), base))
        case Call(name, arguments):
            return Call(name, tuple(without_base(each, base) for each in arguments))
        case Add(terms):
            return Add(tuple(without_base(each, base) for each in terms))
        case Mul(factors):
            return Mul(tuple(without_base(each, base) for each in factors))
        case Pow(lower, upper):
            return Pow(without_base(lower, base), without_base(upper, base))
    return node


def has_open_base(node: Node) -> bool:
    r"""Whether a `\log` in it was written without a base."""
    return any(isinstance(each, Call) and each.name == "log" and len(each.arguments) == 1 for each in walk(node))


BASES: tuple[Node, ...] = (Num(Fraction(10)), Sym("e"))
