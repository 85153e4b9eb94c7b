r"""Sizes of numbers that are too large to evaluate: power towers, giant factorials, tiny powers.

A positive number is kept as bounds of its decimal logarithm; a bound is a `Tower`, ±10^10^…^m. Every step rounds
outwards, so two numbers whose bounds do not meet are certainly different. Products of powers are also compared by
their prime factors, which shows that 2^{10^{10}} = 4^{5·10^9}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from miles_agents.answers.exact import NotExactError, form_of
from miles_agents.answers.syntax import Add, Call, Mul, Node, Num, Pow, Sym

_LIMIT = 1e15  # a mantissa above it goes one level up
_SLOP = 1e-12  # relative error allowed to each floating-point step
_LOG10_2 = math.log10(2)
_CONSTANTS = {"π": math.pi, "e": math.e}


class UnknownSizeError(Exception):
    """The size of this expression is not found."""


class Tower(NamedTuple):
    """`sign · 10^10^…^mantissa` with `level` tens; level 0 is the mantissa itself."""

    sign: int
    level: int
    mantissa: float

    def key(self) -> tuple[int, float]:
        """In the order of the values."""
        return (self.sign * self.level, self.sign * self.mantissa)

    def negative(self) -> Tower:
        """The same with the other sign."""
        return Tower(-self.sign, self.level, self.mantissa)


def tower(value: float) -> Tower:
    """The tower of an ordinary number."""
    return _levelled(1 if value >= 0 else -1, 0, abs(value))


def _levelled(sign: int, level: int, mantissa: float) -> Tower:
    while mantissa > _LIMIT:
        level, mantissa = level + 1, math.log10(mantissa)
    return Tower(sign, level, mantissa)


def _moved(value: Tower, up: bool) -> Tower:
    """A little up or down, by more than a rounding error."""
    grow = up == (value.sign > 0)
    mantissa = value.mantissa * (1 + _SLOP if grow else 1 - _SLOP)
    if value.level == 0 and not grow and mantissa < 1e-300:
        return Tower(1, 0, 0.0)
    return _levelled(value.sign, value.level, mantissa + (1e-300 if grow else 0.0))


def _power_of_ten(value: Tower) -> Tower:
    """10^value, which is positive."""
    if value.sign > 0:
        return tower(10.0**value.mantissa) if value.level == 0 and value.mantissa < 15 else _raise(value)
    return tower(10.0**-value.mantissa if value.level == 0 and value.mantissa < 300 else 0.0)


def _raise(value: Tower) -> Tower:
    return Tower(1, value.level + 1, value.mantissa)


def _logarithm(value: Tower) -> Tower:
    """log10 of a positive tower."""
    if value.level == 0:
        return tower(math.log10(value.mantissa))
    return _levelled(1, value.level - 1, value.mantissa)


def added(first: Tower, second: Tower, *, up: bool) -> Tower:
    """A bound of the sum: from above if `up`, else from below."""
    large, small = sorted((first, second), key=lambda each: (each.level, each.mantissa), reverse=True)
    if large.level == 0:
        return _moved(tower(large.sign * large.mantissa + small.sign * small.mantissa), up)
    # |small| ≤ |large|, so the sum is between 0 and 2·large, and the exact share matters only one level down.
    if small.level < large.level - 1 or small.mantissa == 0:
        return _moved(large, up)
    exponent = _logarithm(Tower(1, large.level, large.mantissa))
    outwards = up == (large.sign > 0)
    if large.sign == small.sign:
        shift = _LOG10_2 if outwards else 0.0
    elif outwards:
        shift = 0.0
    else:
        gap = added(exponent, _log_or_low(small).negative(), up=False)
        if gap.key() < tower(_LOG10_2 + 0.01).key():
            raise UnknownSizeError("two towers of nearly the same size")
        shift = -_LOG10_2
    moved = added(exponent, tower(shift), up=outwards) if shift else _moved(exponent, outwards)
    return _power_of_ten(moved) if large.sign > 0 else _power_of_ten(moved).negative()


def _log_or_low(value: Tower) -> Tower:
    return _logarithm(Tower(1, value.level, value.mantissa)) if value.mantissa > 1 else tower(0.0)


def multiplied(first: Tower, second: Tower, *, up: bool) -> Tower:
    """A bound of the product."""
    if not first.mantissa or not second.mantissa:
        return tower(0.0)
    sign = first.sign * second.sign
    if first.level == second.level == 0 and first.mantissa * second.mantissa < _LIMIT:
        return _moved(tower(sign * first.mantissa * second.mantissa), up)
    outwards = up == (sign > 0)
    exponent = added(
        _logarithm(Tower(1, first.level, first.mantissa)),
        _logarithm(Tower(1, second.level, second.mantissa)),
        up=outwards,
    )
    product = _power_of_ten(exponent)
    return _moved(product if sign > 0 else product.negative(), up)


@dataclass(frozen=True, slots=True)
class Size:
    """A real number: its sign and bounds of log10 of its magnitude (without meaning if the sign is 0)."""

    sign: int
    low: Tower
    high: Tower

    def bounds(self) -> tuple[Tower, Tower]:
        """Of the number itself."""
        if self.sign == 0:
            return tower(0.0), tower(0.0)
        low, high = _moved(_power_of_ten(self.low), False), _moved(_power_of_ten(self.high), True)
        return (low, high) if self.sign > 0 else (high.negative(), low.negative())


def certainly_different(first: Node, second: Node) -> bool:
    """Whether the sizes alone show that two numbers differ."""
    try:
        left, right = size_of(first), size_of(second)
    except (UnknownSizeError, NotExactError, OverflowError, ValueError, RecursionError):
        return False
    if left.sign != right.sign:
        return True
    return left.sign != 0 and (left.high.key() < right.low.key() or right.high.key() < left.low.key())


def size_of(node: Node) -> Size:
    """The size of a number.

    Raises:
        UnknownSizeError: it is no number, or the bounds are too wide to tell.
    """
    exact = _exact_size(node)
    if exact is not None:
        return exact
    match node:
        case Sym(name) if name in _CONSTANTS:
            return _of_float(_CONSTANTS[name])
        case Mul(factors):
            return _size_of_product([size_of(factor) for factor in factors])
        case Add(terms):
            return _size_of_sum([size_of(term) for term in terms])
        case Pow(base, exponent):
            return _size_of_power(size_of(base), size_of(exponent), exponent)
        case Call("factorial", (argument,)):
            return _size_of_factorial(size_of(argument))
        case Call("percent", (argument,)):
            return _size_of_product([size_of(argument), _of_float(0.01)])
        case Call("sqrt", (argument,)):
            half = Num(Fraction(1, 2))
            return _size_of_power(size_of(argument), size_of(half), half)
    raise UnknownSizeError(type(node).__name__)


def _exact_size(node: Node) -> Size | None:
    try:
        value = form_of(node).number
    except NotExactError:
        return None
    if value is None:
        return None
    if not value:
        return Size(0, tower(0.0), tower(0.0))
    return _around(math.log10(abs(value.numerator)) - math.log10(value.denominator), 1 if value > 0 else -1)


def _of_float(value: float) -> Size:
    return _around(math.log10(value), 1)


def _around(log: float, sign: int) -> Size:
    spread = _SLOP * (1 + abs(log))
    return Size(sign, tower(log - spread), tower(log + spread))


def _size_of_product(sizes: list[Size]) -> Size:
    result = sizes[0]
    for size in sizes[1:]:
        result = Size(
            result.sign * size.sign, added(result.low, size.low, up=False), added(result.high, size.high, up=True)
        )
    return result


def _size_of_sum(sizes: list[Size]) -> Size:
    result = sizes[0]
    for size in sizes[1:]:
        result = _size_of_pair(result, size)
    return result


def _size_of_pair(first: Size, second: Size) -> Size:
    if not first.sign or not second.sign:
        return first if first.sign else second
    large, small = (first, second) if first.high.key() >= second.high.key() else (second, first)
    doubled = added(large.high, tower(_LOG10_2), up=True)
    if first.sign == second.sign:
        return Size(first.sign, max(first.low, second.low, key=Tower.key), doubled)
    gap = added(large.low, small.high.negative(), up=False)
    if gap.key() <= tower(_LOG10_2).key():
        raise UnknownSizeError("a difference of numbers of nearly the same size")
    return Size(large.sign, added(large.low, tower(-_LOG10_2), up=False), large.high)


def _size_of_power(base: Size, exponent: Size, node: Node) -> Size:
    if base.sign == 0 or (base.sign < 0 and not _is_even(node)):
        raise UnknownSizeError("a power of zero or of a negative number")
    products = [
        (multiplied(log, times, up=False), multiplied(log, times, up=True))
        for log in (base.low, base.high)
        for times in exponent.bounds()
    ]
    low = min((pair[0] for pair in products), key=Tower.key)
    high = max((pair[1] for pair in products), key=Tower.key)
    return Size(1, low, high)


def _is_even(node: Node) -> bool:
    value = form_of(node).number
    return value is not None and value.denominator == 1 and value.numerator % 2 == 0


def _size_of_factorial(argument: Size) -> Size:
    """By the logarithm of the gamma function; far up between (n/e)^n and n^n."""
    if argument.sign < 0:
        raise UnknownSizeError("the factorial of a negative number")
    low, high = argument.bounds()
    if high.level == 0:
        return Size(1, _log_gamma(low, up=False), _log_gamma(high, up=True))
    shrunk = added(_logarithm(low), tower(-math.log10(math.e)), up=False)
    return Size(1, multiplied(low, shrunk, up=False), multiplied(high, _logarithm(high), up=True))


def _log_gamma(value: Tower, *, up: bool) -> Tower:
    return _moved(tower(math.lgamma(value.mantissa + 1) / math.log(10)), up)


# Prime factors


@dataclass(frozen=True)
class _Huge:
    """An integer too large to evaluate, as the exponents of its primes."""

    sign: int
    primes: tuple[tuple[int, _Exponent], ...]


_Exponent = int | _Huge
_Factors = dict[int, _Exponent]


def equal_by_prime_factors(first: Node, second: Node) -> bool | None:
    """Whether two products of powers of rationals are the same number; None if they are no such products."""
    try:
        left, right = _factors(first), _factors(second)
    except (UnknownSizeError, NotExactError, RecursionError):
        return None
    return _same_factors(left, right)


def _same_factors(left: _Factors, right: _Factors) -> bool | None:
    """Prime by prime; an exponent too large to evaluate is compared by its own primes."""
    found: list[bool | None] = [left.keys() == right.keys()]
    for prime in left.keys() & right.keys():
        mine, theirs = left[prime], right[prime]
        if isinstance(mine, int) and isinstance(theirs, int):
            found.append(mine == theirs)
        elif isinstance(mine, _Huge) and isinstance(theirs, _Huge):
            found.append(mine.sign == theirs.sign and _same_factors(dict(mine.primes), dict(theirs.primes)))
        else:
            found.append(None)
    return False if False in found else None if None in found else True


def _factors(node: Node) -> _Factors:
    match node:
        case Pow(base, exponent):
            return _scaled(_factors(base), _integer(exponent))
        case Mul(factors):
            total: _Factors = {}
            for factor in factors:
                for prime, times in _factors(factor).items():
                    total[prime] = _exponents_added(total.get(prime, 0), times)
            return {prime: times for prime, times in total.items() if times != 0}
    value = form_of(node).number
    if value is None or value <= 0:
        raise UnknownSizeError("no positive rational")
    found = _prime_factors(value.numerator)
    for prime, times in _prime_factors(value.denominator).items():
        found[prime] = -times
    return dict(found)


def _prime_factors(number: int) -> dict[int, int]:
    if number.bit_length() > 40 and number & (number - 1):
        raise UnknownSizeError("a large base")
    found: dict[int, int] = {}
    prime = 2
    while prime * prime <= number and prime < 2_000:
        while number % prime == 0:
            number //= prime
            found[prime] = found.get(prime, 0) + 1
        prime += 1
    if number >= 2_000**2:
        raise UnknownSizeError("a large prime")
    if number > 1:
        found[number] = found.get(number, 0) + 1
    return found


def _integer(node: Node) -> _Exponent:
    try:
        value = form_of(node).number
    except NotExactError:
        value = None
    if value is None:
        return _Huge(1, tuple(sorted(_factors(node).items(), key=lambda item: item[0])))
    if value.denominator != 1:
        raise UnknownSizeError("a root")
    return value.numerator


def _scaled(factors: _Factors, times: _Exponent) -> _Factors:
    return {prime: _exponents_multiplied(exponent, times) for prime, exponent in factors.items() if times != 0}


def _exponents_multiplied(first: _Exponent, second: _Exponent) -> _Exponent:
    if isinstance(first, int) and isinstance(second, int):
        return first * second
    total: _Factors = {}
    sign = 1
    for part in (first, second):
        primes = part.primes if isinstance(part, _Huge) else tuple(_prime_factors(abs(part)).items())
        sign *= part.sign if isinstance(part, _Huge) else (1 if part > 0 else -1)
        for prime, exponent in primes:
            total[prime] = _exponents_added(total.get(prime, 0), exponent)
    return _Huge(sign, tuple(sorted(total.items(), key=lambda item: item[0])))


def _exponents_added(first: _Exponent, second: _Exponent) -> _Exponent:
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    if first == 0 or second == 0:
        return second if first == 0 else first
    raise UnknownSizeError("a sum of exponents too large to add")
