r"""Proofs and disproofs by sympy; imported by worker processes only.

Unequal is only what a numeric evaluation with error control shows, equal only what simplifies to zero. Expressions are
taken to be equal if they are wherever both are real (`\ln x^2 = 2\ln x`, but `\sqrt{x^2} ≠ x`). Everything else stays
open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import sympy

from miles_agents.answers.syntax import Add, Call, Foreign, Mul, Node, Num, Pow, Sym

_MAX_POWER_BITS = 2_000_000  # of one evaluated power
_MAX_FACTORIAL = 5_000
_MAX_SYMBOLIC_EXPONENT = 1_000
_DIGITS = 30
_MAX_DIGITS = 500  # tried before a difference is taken for possibly zero
_POINTS = tuple(
    Fraction(*pair) for pair in ((7, 5), (-13, 11), (23, 7), (-31, 9), (3, 17), (-2, 13), (41, 10), (17, 3))
)
_CONSTANTS = {"π": sympy.pi, "e": sympy.E, "i": sympy.I, "∞": sympy.oo}
_GREEK_LATEX = {"π": r"\pi ", "∞": r"\infty ", "*": r"\cdot ", "≤": r"\le ", "≥": r"\ge ", "⟅": r"\{", "⟆": r"\}"}


class TooLargeError(Exception):
    """The expression has a number that should not be evaluated."""


class OpenError(Exception):
    """The expression cannot be translated."""


class SymbolicProver:
    """Decides by sympy what exact arithmetic does not; see the module for what counts as a proof."""

    def equal(self, first: Node, second: Node) -> bool | None:
        """Whether two expressions are equal; None if neither was shown."""
        try:
            left, right = to_sympy(first), to_sympy(second)
        except (TooLargeError, OpenError):
            return None
        if left.has(sympy.zoo, sympy.nan) or right.has(sympy.zoo, sympy.nan):
            return False
        if left == right:
            return True
        if left.is_infinite or right.is_infinite:
            return None if left.is_infinite and right.is_infinite else False
        if _disproved(left, right):
            return False
        return True if _is_zero(left - right) else None

    def ratio_sign(self, first: Node, second: Node) -> int | None:
        """The sign of the constant c with `first = c · second`; 0 if there is none, None if neither was shown."""
        try:
            left, right = to_sympy(first), to_sympy(second)
        except (TooLargeError, OpenError):
            return None
        ratio = sympy.simplify(left / right)
        if not ratio.free_symbols:
            value = sympy.re(ratio).evalf(_DIGITS)
            return None if not value.is_number or value == 0 else 1 if value > 0 else -1
        names = sorted(ratio.free_symbols, key=str)
        values = [value for point in _points(len(names)) if (value := _at(ratio, names, point)) is not None]
        return 0 if any(_apart(values[0], value) for value in values[1:]) else None


def to_sympy(node: Node) -> Any:
    """The expression for sympy; evaluated as it is built.

    Raises:
        TooLargeError: it has a number that should not be evaluated.
        OpenError: the library cannot read it.
    """
    match node:
        case Num(value):
            return sympy.Rational(value.numerator, value.denominator)
        case Sym(name):
            return _CONSTANTS[name] if name in _CONSTANTS else sympy.Symbol(name, real=True)
        case Add(terms):
            return sympy.Add(*[to_sympy(term) for term in terms])
        case Mul(factors):
            return sympy.Mul(*[to_sympy(factor) for factor in factors])
        case Pow(base, exponent):
            return _power(to_sympy(base), to_sympy(exponent))
        case Call(name, arguments):
            return _FUNCTIONS[name](*[to_sympy(argument) for argument in arguments])
        case Foreign(latex):
            return _from_latex(latex)


def _power(base: Any, exponent: Any) -> Any:
    if base.is_number and exponent.is_number and not exponent.is_infinite and not base.is_infinite:
        times = abs(float(exponent.evalf(15))) if exponent.is_real else 0.0
        size = abs(base.evalf(15))
        if math.isinf(times) or (size != 0 and abs(float(sympy.log(size, 2).evalf(15))) * times > _MAX_POWER_BITS):
            raise TooLargeError
    elif exponent.is_Rational and abs(exponent) > _MAX_SYMBOLIC_EXPONENT:
        raise TooLargeError
    return sympy.Pow(base, exponent)


def _factorial(argument: Any) -> Any:
    if argument.is_number and not (argument.is_real and argument <= _MAX_FACTORIAL):
        raise TooLargeError
    return sympy.factorial(argument)


def _root(radicand: Any, degree: Any) -> Any:
    if radicand.is_number and radicand.is_negative and degree.is_odd:
        return -sympy.root(-radicand, degree)
    if degree.is_odd and not radicand.is_nonnegative:
        return sympy.sign(radicand) * sympy.Abs(radicand) ** (1 / degree)
    return sympy.root(radicand, degree)


def _from_latex(latex: str) -> Any:
    """An integral, sum, product or limit, read by latex2sympy and evaluated.

    Decimals are given to it as quotients, so that nothing is rounded.
    """
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    latex = re.sub(r"[0-9]*\.[0-9]+", _as_quotient, latex)
    for sign, command in _GREEK_LATEX.items():
        latex = latex.replace(sign, command)
    try:
        found = latex2sympy(latex, is_real=True, conversion_config=ConversionConfig(lowercase_symbols=False))
        found = found.doit()
    except Exception as error:  # seam: the library raises many kinds for what it cannot read
        raise OpenError(latex) from error
    if not isinstance(found, sympy.Expr) or found.has(sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit):
        raise OpenError(latex)
    if found.has(sympy.Float):
        raise OpenError(latex)
    return found.subs(
        {symbol: _CONSTANTS.get(symbol.name, sympy.Symbol(symbol.name, real=True)) for symbol in found.free_symbols}
    )


def _as_quotient(decimal: re.Match[str]) -> str:
    value = Fraction(decimal[0])
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": sympy.sqrt,
    "root": _root,
    "percent": lambda argument: argument / 100,
    "degree": lambda argument: argument * sympy.pi / 180,
    "factorial": _factorial,
    "binomial": sympy.binomial,
    "abs": sympy.Abs,
    "floor": sympy.floor,
    "ceiling": sympy.ceiling,
    "max": sympy.Max,
    "min": sympy.Min,
    "gcd": lambda *arguments: sympy.gcd(list(arguments)),
    "lcm": lambda *arguments: sympy.lcm(list(arguments)),
    "log": sympy.log,
    "log10": lambda argument: sympy.log(argument, 10),
    "ln": sympy.log,
    "exp": sympy.exp,
    "arcsin": sympy.asin,
    "arccos": sympy.acos,
    "arctan": sympy.atan,
    "arccot": sympy.acot,
    "arcsec": sympy.asec,
    "arccsc": sympy.acsc,
    **{
        name: getattr(sympy, name)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth")
    },
}


# Disproofs


def _points(names: int) -> Iterator[tuple[Fraction, ...]]:
    if names == 0:
        yield ()
        return
    for start in range(len(_POINTS)):
        yield tuple(_POINTS[(start + 3 * place) % len(_POINTS)] + place for place in range(names))
    for start in range(3):  # all positive, where logarithms and roots are real
        yield tuple(abs(_POINTS[(start + 3 * place) % len(_POINTS)]) + place for place in range(names))


def _disproved(left: Any, right: Any) -> bool:
    """Whether the two differ at a point where both are real (or, without variables or with i, at any)."""
    names = sorted(left.free_symbols | right.free_symbols, key=str)
    anywhere = not names or left.has(sympy.I) or right.has(sympy.I)
    for point in _points(len(names)):
        first, second = _at(left, names, point), _at(right, names, point)
        if first is None or second is None:
            continue
        real = all(sympy.im(value) == 0 for value in (first, second))
        if (real or anywhere) and _not_zero(_put(left - right, names, point)):
            return True
    return False


def _not_zero(number: Any) -> bool:
    """Whether a number is shown not to be zero: evaluated with error control, some digits of it are certain."""
    value = number.evalf(_DIGITS, maxn=_MAX_DIGITS)
    return any(part.is_comparable and part != 0 for part in value.as_real_imag())


def _put(expression: Any, names: list[Any], point: tuple[Fraction, ...]) -> Any:
    return expression.subs(
        {name: sympy.Rational(value.numerator, value.denominator) for name, value in zip(names, point, strict=True)}
    )


def _at(expression: Any, names: list[Any], point: tuple[Fraction, ...]) -> Any:
    """The value with `_DIGITS` certain digits; None if it has none there."""
    value = _put(expression, names, point).evalf(_DIGITS)
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo) or value.free_symbols:
        return None
    real, imaginary = value.as_real_imag()
    if not (real.is_Float or real.is_Integer or real == 0) or not (imaginary.is_Float or imaginary == 0):
        return None
    return value


def _apart(first: Any, second: Any) -> bool:
    """Whether two values differ by more than their common error."""
    size = max(abs(first), abs(second))
    return bool(abs(first - second) > size * sympy.Float(10) ** (8 - _DIGITS))


# Proofs


def _is_zero(expression: Any) -> bool:
    """Whether the expression simplifies to zero."""
    steps: tuple[Callable[[Any], Any], ...] = (
        sympy.expand,
        lambda each: sympy.simplify(each),
        lambda each: sympy.simplify(sympy.expand_trig(sympy.expand_log(each))),
        lambda each: sympy.simplify(each.rewrite(sympy.exp)),
        _with_positive_names,
        sympy.radsimp,
        sympy.expand_complex,
    )
    if any(step(expression) == 0 for step in steps):
        return True
    return not expression.free_symbols and expression.is_algebraic is True and _minimal_polynomial_is_x(expression)


def _with_positive_names(expression: Any) -> Any:
    """Simplified for positive variables, if it is real for no others."""
    if not expression.has(sympy.log):
        return expression
    positive = {name: sympy.Symbol(name.name, positive=True) for name in expression.free_symbols}
    return sympy.simplify(sympy.expand_log(expression.subs(positive)))


def _minimal_polynomial_is_x(expression: Any) -> bool:
    name = sympy.Dummy("x")
    return bool(sympy.minimal_polynomial(expression, name) == name)
