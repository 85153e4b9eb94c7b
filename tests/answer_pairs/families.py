r"""Ways of writing a number: each gives a true form of a value and a near miss, right by exact arithmetic.

`FAMILIES[name]` is `(true_form, near_miss)`; both take the value and a random generator and give text. A near miss is
written like a true form but has another value.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random

Form = Callable[[Fraction, Random], str]


def decimal(value: Fraction, zeros: int = 0) -> str:
    r"""The finite decimal of a value with some more zeros behind it; `\frac{a}{b}` if it has none."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
        if places > 40:
            return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    digits = str(abs(value.numerator * 10**places // value.denominator)).rjust(places + 1, "0")
    whole, rest = digits[: len(digits) - places], digits[len(digits) - places :] + "0" * zeros
    return ("-" if value < 0 else "") + whole + ("." + rest if rest else "")


def off_by_a_little(value: Fraction, rng: Random) -> Fraction:
    """Another value: a unit, a tenth, or a digit somewhere else is different."""
    return value + rng.choice([1, -1, Fraction(1, 10), -Fraction(1, 10), 10, -10, Fraction(1, 10**9)])


def trailing_zeros(value: Fraction, rng: Random) -> str:
    return decimal(value, zeros=rng.randint(1, 4))


def trailing_zeros_missed(value: Fraction, rng: Random) -> str:
    return decimal(off_by_a_little(value, rng), zeros=rng.randint(1, 4))


def quotient(value: Fraction, rng: Random) -> str:
    factor = rng.randint(2, 30)
    command = rng.choice([r"\frac", r"\dfrac", r"\tfrac"])
    return rf"{command}{{{value.numerator * factor}}}{{{value.denominator * factor}}}"


def quotient_missed(value: Fraction, rng: Random) -> str:
    factor = rng.randint(2, 30)
    return rf"\frac{{{value.numerator * factor + rng.choice([1, -1])}}}{{{value.denominator * factor}}}"


def grouped(value: Fraction, rng: Random) -> str:
    text = decimal(value)
    if text.startswith("\\"):
        return text
    whole, _, rest = text.lstrip("-").partition(".")
    groups = f"{int(whole):,}".replace(",", rng.choice([",", "{,}", r"\,", "\u202f", "\u00a0"]))
    return ("-" if value < 0 else "") + groups + ("." + rest if rest else "")


def grouped_missed(value: Fraction, rng: Random) -> str:
    return grouped(value + rng.choice([1000, -1000, 1, -1]), rng)


def scientific(value: Fraction, rng: Random) -> str:
    shift = rng.randint(1, 6)
    return rf"{decimal(value / 10**shift)} \times 10^{{{shift}}}"


def scientific_missed(value: Fraction, rng: Random) -> str:
    shift = rng.randint(1, 6)
    if value == 0:
        return rf"1 \times 10^{{-{shift}}}"
    return rf"{decimal(value / 10**shift)} \times 10^{{{shift + rng.choice([1, -1])}}}"


def percentage(value: Fraction, rng: Random) -> str:
    return decimal(100 * value) + rng.choice([r"\%", "%", " percent", " per cent"])


def percentage_missed(value: Fraction, rng: Random) -> str:
    if value and rng.random() < 0.5:
        return decimal(value) + r"\%"
    return decimal(100 * value + 1) + r"\%"


def with_a_unit(value: Fraction, rng: Random) -> str:
    number = decimal(value)
    return rng.choice([rf"\${number}", f"{number} dollars", rf"{number}\text{{ apples}}", rf"{number}\,\mathrm{{cm}}"])


def with_a_unit_missed(value: Fraction, rng: Random) -> str:
    return with_a_unit(off_by_a_little(value, rng), rng)


def a_sum(value: Fraction, rng: Random) -> str:
    part = rng.randint(1, 99)
    return rng.choice([f"{decimal(value - part)} + {part}", f"{decimal(value + part)} - {part}"])


def a_sum_missed(value: Fraction, rng: Random) -> str:
    return a_sum(value + rng.choice([1, -1]), rng)


def a_root(value: Fraction, rng: Random) -> str:
    sign = "-" if value < 0 else ""
    if rng.random() < 0.5:
        return rf"{sign}\sqrt{{{decimal(value * value)}}}"
    return rf"\sqrt[3]{{{decimal(value**3)}}}"


def a_root_missed(value: Fraction, rng: Random) -> str:
    sign = "-" if value < 0 else ""
    return rf"{sign}\sqrt{{{decimal(value * value + 1)}}}"


def in_another_base(value: Fraction, rng: Random) -> str:
    if value.denominator != 1 or value < 0:
        return rf"{decimal(2 * value)} \div 2"
    base = rng.randint(2, 9)
    return f"{_digits(value.numerator, base)}_{{{base}}}"


def in_another_base_missed(value: Fraction, rng: Random) -> str:
    if value.denominator != 1 or value < 0:
        return rf"{decimal(2 * value + 1)} \div 2"
    base = rng.randint(2, 9)
    return f"{_digits(value.numerator + 1, base)}_{{{base}}}"


def wrapped(value: Fraction, rng: Random) -> str:
    number = decimal(value)
    return rng.choice(
        [
            rf"\boxed{{{number}}}",
            f"${number}$",
            rf"\({number}\)",
            f"x = {number}",
            f"**{number}**",
            f"#### {number}",
            rf"\text{{{number}}}" if not number.startswith("\\") else rf"\fbox{{{number}}}",
            f"{number}." if "." not in number and "\\" not in number else rf"\displaystyle {number}",
        ]
    )


def wrapped_missed(value: Fraction, rng: Random) -> str:
    return wrapped(-value if value and rng.random() < 0.5 else off_by_a_little(value, rng), rng)


def _digits(number: int, base: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, base)
        digits = str(digit) + digits
    return digits


FAMILIES: dict[str, tuple[Form, Form]] = {
    "trailing zeros": (trailing_zeros, trailing_zeros_missed),
    "quotient": (quotient, quotient_missed),
    "grouped": (grouped, grouped_missed),
    "scientific": (scientific, scientific_missed),
    "percentage": (percentage, percentage_missed),
    "unit": (with_a_unit, with_a_unit_missed),
    "sum": (a_sum, a_sum_missed),
    "root": (a_root, a_root_missed),
    "base": (in_another_base, in_another_base_missed),
    "wrapped": (wrapped, wrapped_missed),
}
