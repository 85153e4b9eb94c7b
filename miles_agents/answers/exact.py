"""Exact arithmetic on expressions: quotients of polynomials in variables, π, e, i and square roots of integers.

A `Form` is `top / bottom`, each a sum of terms `coefficient · √radicand · x^n · …`. Different roots of squarefree
integers, powers of π (or of e), i and variables are linearly independent, so two forms are equal exactly if `a·d =
b·c` term by term. What has no form here raises `NotExactError` (something else must decide) or `TooLargeError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from miles_agents.answers import patience
from miles_agents.answers.syntax import Add, Call, Mul, Node, Num, Pow, Sym

Monomial = tuple[int, tuple[tuple[str, int], ...]]  # squarefree radicand, powers of names in order
Polynomial = dict[Monomial, Fraction]

_UNIT: Monomial = (1, ())
MAX_BITS = 40_000  # of one number
_MAX_TERMS = 300
_MAX_FACTORIAL = 3_000
_SMALL_PRIMES = [p for p in range(2, 1000) if all(p % d for d in range(2, int(p**0.5) + 1))]


class NotExactError(Exception):
    """The expression has no form of this kind."""


class TooLargeError(NotExactError):
    """A number of more than `MAX_BITS` bits."""


class UndefinedError(Exception):
    """A division by zero, or a function outside its domain: the expression has no value."""


@dataclass(frozen=True, slots=True)
class Form:
    """A quotient of polynomials."""

    top: Polynomial
    bottom: Polynomial

    @property
    def number(self) -> Fraction | None:
        """The value, if it is a rational."""
        if any(key != _UNIT for key in (*self.top, *self.bottom)):
            return None
        return self.top.get(_UNIT, Fraction(0)) / self.bottom[_UNIT]

    @property
    def names(self) -> frozenset[str]:
        """Every variable and constant in it."""
        return frozenset(name for part in (self.top, self.bottom) for _, powers in part for name, _ in powers)


def rational(value: Fraction | int) -> Form:
    """The form of a number."""
    return Form({_UNIT: Fraction(value)} if value else {}, {_UNIT: Fraction(1)})


def form_of(node: Node) -> Form:
    """The form of an expression.

    Raises:
        NotExactError: it has none, or would be too large.
        UndefinedError: it has no value.
    """
    patience.check()
    match node:
        case Num(value):
            return rational(value)
        case Sym(name):
            return Form({(1, ((name, 1),)): Fraction(1)}, {_UNIT: Fraction(1)})
        case Add(terms):
            return _sum([form_of(term) for term in terms])
        case Mul(factors):
            result = form_of(factors[0])
            for factor in factors[1:]:
                result = _product(result, form_of(factor))
            return result
        case Pow(base, exponent):
            return _power(base, exponent)
        case Call(name, arguments) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[form_of(argument) for argument in arguments])
    raise NotExactError(type(node).__name__)


def forms_equal(first: Form, second: Form) -> bool | None:
    """Whether the two are the same; None where that is unknown (π and e in one expression)."""
    if _multiplied(first.top, second.bottom) == _multiplied(second.top, first.bottom):
        return True
    return None if {"π", "e"} <= first.names | second.names else False


def constant_ratio(first: Form, second: Form) -> Fraction | None:
    """The nonzero rational c with `first = c · second`; None if there is none."""
    left, right = _multiplied(first.top, second.bottom), _multiplied(second.top, first.bottom)
    if not left or left.keys() != right.keys():
        return None
    ratios = {left[key] / right[key] for key in left}
    return ratios.pop() if len(ratios) == 1 else None


def _checked(value: Fraction) -> Fraction:
    patience.check()
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooLargeError
    return value


def _added(first: Polynomial, second: Polynomial) -> Polynomial:
    total = dict(first)
    for key, value in second.items():
        total[key] = _checked(total.get(key, Fraction(0)) + value)
        if not total[key]:
            del total[key]
    if len(total) > _MAX_TERMS:
        raise NotExactError("too many terms")
    return total


def _multiplied(first: Polynomial, second: Polynomial) -> Polynomial:
    if len(first) * len(second) > _MAX_TERMS**2 // 4:
        raise NotExactError("too many terms")
    total: Polynomial = {}
    for key, value in first.items():
        for other, factor in second.items():
            product, extra = _joined(key, other)
            total[product] = _checked(total.get(product, Fraction(0)) + value * factor * extra)
    kept = {key: value for key, value in total.items() if value}
    if len(kept) > _MAX_TERMS:
        raise NotExactError("too many terms")
    return kept


def _joined(first: Monomial, second: Monomial) -> tuple[Monomial, int]:
    """The product of two monomials, and the integer that comes out of the roots and of i² = −1."""
    shared = math.gcd(first[0], second[0])
    radicand = first[0] // shared * (second[0] // shared)
    powers = dict(first[1])
    for name, power in second[1]:
        powers[name] = powers.get(name, 0) + power
    sign = 1
    if "i" in powers:
        turns = powers.pop("i") % 4
        sign = -1 if turns >= 2 else 1
        if turns % 2:
            powers["i"] = 1
    return (radicand, tuple(sorted((name, power) for name, power in powers.items() if power))), shared * sign


def _sum(forms: list[Form]) -> Form:
    total = forms[0]
    for form in forms[1:]:
        if form.bottom == total.bottom:
            total = Form(_added(total.top, form.top), total.bottom)
        else:
            top = _added(_multiplied(total.top, form.bottom), _multiplied(form.top, total.bottom))
            total = Form(top, _multiplied(total.bottom, form.bottom))
    return total


def _product(first: Form, second: Form) -> Form:
    return Form(_multiplied(first.top, second.top), _multiplied(first.bottom, second.bottom))


def _inverse(form: Form) -> Form:
    if not form.top:
        raise UndefinedError("division by zero")
    if len(form.top) == 1:  # stays a polynomial
        ((radicand, powers), value) = next(iter(form.top.items()))
        monomial = (radicand, tuple((name, -power) for name, power in powers))
        key, sign = _joined(_UNIT, monomial)
        inverse: Polynomial = {key: sign / (value * radicand)}
        return Form(_multiplied(inverse, form.bottom), {_UNIT: Fraction(1)})
    return Form(form.bottom, form.top)


def _power(base_node: Node, exponent_node: Node) -> Form:
    exponent = form_of(exponent_node).number
    base = form_of(base_node)
    if exponent is None:
        raise NotExactError("a variable exponent")
    if exponent.denominator == 1:
        return _whole_power(base, exponent.numerator)
    if base.number is None or base.number < 0:
        raise NotExactError("a root of an expression")
    if exponent.denominator == 2:
        return _whole_power(square_root(base), exponent.numerator)
    return _whole_power(root(base, rational(exponent.denominator)), exponent.numerator)


def _whole_power(base: Form, exponent: int) -> Form:
    if exponent < 0:
        base, exponent = _inverse(base), -exponent
    if not base.top:
        if exponent == 0:
            raise UndefinedError("0^0")
        return base
    if base.number is not None:
        bits = max(base.number.numerator.bit_length() - 1, base.number.denominator.bit_length() - 1)
        if bits * exponent > MAX_BITS:
            raise TooLargeError
        return rational(_checked(base.number**exponent))
    if len(base.top) == len(base.bottom) == 1 and base.bottom.get(_UNIT) == 1:
        return _monomial_power(base, exponent)
    if exponent > 200:
        raise NotExactError("a high power of a sum")
    result = rational(1)
    for _ in range(exponent):
        result = _product(result, base)
    return result


def _monomial_power(base: Form, exponent: int) -> Form:
    ((radicand, powers), value) = next(iter(base.top.items()))
    number = _whole_power(rational(value), exponent)
    roots = _whole_power(rational(radicand), exponent // 2)
    raised = tuple((name, power * exponent) for name, power in powers)
    key, sign = _joined((radicand if exponent % 2 else 1, ()), (1, raised))
    return _product(_product(number, roots), Form({key: Fraction(sign)}, {_UNIT: Fraction(1)}))


def square_root(form: Form) -> Form:
    """The principal root of a rational, as `q·√n` with n squarefree.

    Raises:
        NotExactError: not of a rational, or of one whose squarefree part is not found quickly.
    """
    value = form.number
    if value is None:
        raise NotExactError("a root of an expression")
    outside, inside = _square_part(abs(value.numerator) * value.denominator)
    if not inside:
        return rational(0)
    key: Monomial = (inside, (("i", 1),) if value < 0 else ())
    return Form({key: Fraction(outside, value.denominator)}, {_UNIT: Fraction(1)})


def _square_part(number: int) -> tuple[int, int]:
    """`(a, b)` with `number = a²·b` and b squarefree; `(0, 0)` for 0."""
    exact = math.isqrt(number)
    if exact * exact == number:
        return exact, 1 if number else 0
    outside, inside = 1, 1
    for prime in _SMALL_PRIMES:
        times = 0
        while number % prime == 0:
            number //= prime
            times += 1
        outside *= prime ** (times // 2)
        inside *= prime ** (times % 2)
        if number == 1:
            break
    exact = math.isqrt(number)
    if exact * exact == number:
        return outside * exact, inside
    if number > 10**9:  # might hide the square of a prime above 1000
        raise NotExactError("a large radicand")
    return outside, inside * number


def root(form: Form, degree: Form) -> Form:
    """The real n-th root of a rational that has a rational one, or a square root."""
    value, order = form.number, degree.number
    if order is None or order.denominator != 1 or order < 1 or value is None:
        raise NotExactError("a root of an expression")
    if order == 2:
        return square_root(form)
    if (value < 0 and order % 2 == 0) or order > 64:
        raise NotExactError("not a real root")
    top, bottom = (_whole_root(abs(part), int(order)) for part in (value.numerator, value.denominator))
    if top is None or bottom is None:
        raise NotExactError("an irrational root")
    return rational(Fraction(top if value >= 0 else -top, bottom))


def _whole_root(number: int, order: int) -> int | None:
    low, high = 0, 1 << (number.bit_length() // order + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**order <= number else (low, middle - 1)
    return low if low**order == number else None


def _whole(form: Form) -> int:
    value = form.number
    if value is None:
        raise NotExactError("not a number")
    if value.denominator != 1:
        raise NotExactError("not an integer")
    return value.numerator


def _real(form: Form) -> Fraction:
    if form.number is None:
        raise NotExactError("not a rational")
    return form.number


def _factorial(form: Form) -> Form:
    number = _whole(form)
    if number < 0:
        raise UndefinedError("the factorial of a negative number")
    if number > _MAX_FACTORIAL:
        raise TooLargeError
    return rational(_checked(Fraction(math.factorial(number))))


def _binomial(top: Form, bottom: Form) -> Form:
    upper, lower = _whole(top), _whole(bottom)
    if upper < 0 or lower < 0:
        raise NotExactError("a generalised binomial")
    if min(lower, upper - lower) * max(upper.bit_length(), 1) > MAX_BITS:
        raise TooLargeError
    return rational(math.comb(upper, lower))


_SINES: dict[int, int | Fraction] = {
    0: Fraction(0),
    2: Fraction(1, 2),
    3: 2,
    4: 3,
    6: Fraction(1),
}  # of k·15°; an int n: √n/2


def _sine(form: Form) -> Form:
    """Of multiples of 30° and 45°."""
    turned = _product(form, Form({(1, (("π", -1),)): Fraction(12)}, {_UNIT: Fraction(1)})).number
    if turned is None or turned.denominator != 1:
        raise NotExactError("no angle of the table")
    steps = turned.numerator % 24
    sign, steps = (-1, steps - 12) if steps >= 12 else (1, steps)
    value = _SINES.get(min(steps, 12 - steps))
    if value is None:
        raise NotExactError("no angle of the table")
    if isinstance(value, int):
        return Form({(value, ()): Fraction(sign, 2)}, {_UNIT: Fraction(1)})
    return rational(sign * value)


def _cosine(form: Form) -> Form:
    return _sine(_sum([form, Form({(1, (("π", 1),)): Fraction(1, 2)}, {_UNIT: Fraction(1)})]))


def _tangent(form: Form) -> Form:
    cosine = _cosine(form)
    if not cosine.top:
        raise UndefinedError("a tangent of a right angle")
    return _product(_sine(form), _inverse(cosine))


def _logarithm(form: Form, base: Form) -> Form:
    """Of a rational power of a rational base."""
    value, root_value = form.number, base.number
    if value is None or root_value is None or value <= 0 or root_value <= 0 or root_value == 1:
        raise NotExactError("no rational logarithm")
    guess = Fraction(_log(value) / _log(root_value)).limit_denominator(64)
    if abs(guess.numerator) * max(root_value.numerator.bit_length(), root_value.denominator.bit_length()) > MAX_BITS:
        raise NotExactError("no small logarithm")
    if root_value**guess.numerator != value**guess.denominator:
        raise NotExactError("no rational logarithm")
    return rational(guess)


def _log(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def _natural_logarithm(form: Form) -> Form:
    """Of a power of e."""
    if len(form.top) == len(form.bottom) == 1:
        ((key, value),) = form.top.items()
        if value == 1 and form.bottom == {_UNIT: 1} and key[0] == 1:
            if not key[1]:
                return rational(0)
            if len(key[1]) == 1 and key[1][0][0] == "e":
                return rational(key[1][0][1])
    raise NotExactError("no rational logarithm")


def _exponential(form: Form) -> Form:
    return _whole_power(Form({(1, (("e", 1),)): Fraction(1)}, {_UNIT: Fraction(1)}), _whole(form))


_FUNCTIONS: dict[str, Callable[..., Form]] = {
    "sqrt": square_root,
    "root": root,
    "percent": lambda form: _product(form, rational(Fraction(1, 100))),
    "degree": lambda form: _product(form, Form({(1, (("π", 1),)): Fraction(1, 180)}, {_UNIT: Fraction(1)})),
    "factorial": _factorial,
    "binomial": _binomial,
    "abs": lambda form: rational(abs(_real(form))),
    "floor": lambda form: rational(math.floor(_real(form))),
    "ceiling": lambda form: rational(math.ceil(_real(form))),
    "max": lambda *forms: rational(max(_real(form) for form in forms)),
    "min": lambda *forms: rational(min(_real(form) for form in forms)),
    "gcd": lambda *forms: rational(math.gcd(*[_whole(form) for form in forms])),
    "lcm": lambda *forms: rational(math.lcm(*[_whole(form) for form in forms])),
    "sin": _sine,
    "cos": _cosine,
    "tan": _tangent,
    "log": _logarithm,
    "log10": lambda form: _logarithm(form, rational(10)),
    "ln": _natural_logarithm,
    "exp": _exponential,
}
