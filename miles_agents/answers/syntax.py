"""The tree of a mathematical expression, as read; nothing is simplified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


class UnreadableError(Exception):
    """The text is no expression of this grammar."""


class TooComplexError(Exception):
    """The text may well be an expression, but is too long or too deep to be read."""


@dataclass(frozen=True, slots=True)
class Num:
    """An exact rational."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Sym:
    """A variable, or one of the constants π, e, i and ∞."""

    name: str


@dataclass(frozen=True, slots=True)
class Add:
    """A sum."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mul:
    """A product."""

    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Pow:
    """A power; a quotient is a product with a power of −1."""

    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function: sqrt, root, factorial, percent, degree, sin, log and others."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Foreign:
    """LaTeX that this grammar leaves to the library: an integral, a sum, a limit."""

    latex: str


Node = Num | Sym | Add | Mul | Pow | Call | Foreign

ZERO = Num(Fraction(0))
ONE = Num(Fraction(1))
MINUS_ONE = Num(Fraction(-1))
CONSTANTS = frozenset("πei")


def negative(node: Node) -> Node:
    """The node with the other sign."""
    return Num(-node.value) if isinstance(node, Num) else Mul((MINUS_ONE, node))


def difference(left: Node, right: Node) -> Node:
    """`left − right`."""
    return Add((left, negative(right)))


def quotient(top: Node, bottom: Node) -> Node:
    """`top / bottom`."""
    return Mul((top, Pow(bottom, MINUS_ONE)))


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below."""
    match node:
        case Add(parts) | Mul(parts) | Call(_, parts):
            return parts
        case Pow(base, exponent):
            return (base, exponent)
        case _:
            return ()


def substituted(node: Node, name: str, value: Node) -> Node:
    """The node with a value for a variable."""
    match node:
        case Sym(own) if own == name:
            return value
        case Add(terms):
            return Add(tuple(substituted(each, name, value) for each in terms))
        case Mul(factors):
            return Mul(tuple(substituted(each, name, value) for each in factors))
        case Pow(base, exponent):
            return Pow(substituted(base, name, value), substituted(exponent, name, value))
        case Call(function, arguments):
            return Call(function, tuple(substituted(each, name, value) for each in arguments))
    return node


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(children(current))


def variables(node: Node) -> frozenset[str]:
    """The names that are no constants."""
    return frozenset(each.name for each in walk(node) if isinstance(each, Sym)) - CONSTANTS - {"∞"}
