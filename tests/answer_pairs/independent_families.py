"""Rewrites of a gold number: texts that equal it by docs/answers.md, and texts of the same look that do not.

`FAMILIES` maps a name to two functions of an exact value and a source of chance. The first writes the value in another
way. The second writes a near miss: a digit off, a sign turned, a power of ten, a lost percent sign. Every near miss is
built from a value that was compared exactly with the gold one. A family that cannot express a value (a base of 2.5)
falls back on a plain number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

Writer = Callable[[Fraction, random.Random], str]

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FULLWIDTH = str.maketrans("-.0123456789", "－．０１２３４５６７８９")
MINUSES = ("-", "−", "‑", "–", "—")
BASE_WORDS = {2: "two", 3: "three", 5: "five", 8: "eight"}


# --- numbers as text --------------------------------------------------------------------------------------------------


def decimal_places(value: Fraction) -> int | None:
    """Places after the point that spell `value` exactly; None if no number of places does."""
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    return max(twos, fives) if rest == 1 else None


def plain(value: Fraction) -> str:
    """The exact decimal, or a LaTeX fraction where there is none."""
    places = decimal_places(value)
    sign = "-" if value < 0 else ""
    if places is None:
        return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
    digits = str(int(abs(value) * 10**places)).rjust(places + 1, "0")
    return sign + (digits if places == 0 else f"{digits[:-places]}.{digits[-places:]}")


def with_another_digit(value: Fraction, rng: random.Random) -> Fraction:
    """One decimal digit replaced, or two neighbours swapped; `value` itself where the swap changes nothing."""
    places = decimal_places(value)
    if places is None:
        return Fraction(value.numerator + rng.choice((-1, 1)), value.denominator)
    digits = list(str(int(abs(value) * 10**places)))
    at = rng.randrange(len(digits))
    if at and rng.random() < 0.5:
        digits[at - 1], digits[at] = digits[at], digits[at - 1]
    else:
        digits[at] = rng.choice([digit for digit in "0123456789" if digit != digits[at]])
    return Fraction(int("".join(digits)), 10**places) * (-1 if value < 0 else 1)


def another(value: Fraction, rng: random.Random) -> Fraction:
    """A value that is easily taken for `value` and never equals it."""
    candidates = (with_another_digit(value, rng), value + 1, value - 1, -value, value * 10, value / 10)
    return rng.choice([candidate for candidate in candidates if candidate != value])


def misread(write: Writer) -> Writer:
    """The near miss that writes another value in the way of `write`."""
    return lambda value, rng: write(another(value, rng), rng)


def pick(value: Fraction, rng: random.Random, texts: dict[str, Fraction | None]) -> str:
    """One of `texts` whose value (None: no number at all) is not `value`."""
    return rng.choice([text for text, means in texts.items() if means != value])


# --- separators -------------------------------------------------------------------------------------------------------


def grouped(value: Fraction, separator: str, size: int = 3) -> str:
    text = plain(value)
    if decimal_places(value) is None:
        return text
    whole, point, rest = text.lstrip("-").partition(".")
    groups = []
    while whole:
        whole, group = whole[:-size], whole[-size:]
        groups.append(group)
    return ("-" if value < 0 else "") + separator.join(reversed(groups)) + point + rest


def commas(value: Fraction, rng: random.Random) -> str:
    return grouped(value, ",")


def misplaced_commas(value: Fraction, rng: random.Random) -> str:
    """Groups of two (a list of numbers), a point for the comma, or other digits."""
    if value.denominator == 1 and abs(value) >= 1000 and rng.random() < 0.6:
        head, tail = divmod(abs(value.numerator), 1000)
        pointed = ("-" if value < 0 else "") + f"{head}.{tail:03d}"
        return rng.choice((grouped(value, ",", 2), pointed))
    return commas(another(value, rng), rng)


def spaces(value: Fraction, rng: random.Random) -> str:
    return grouped(value, rng.choice(("{,}", "\\,", ",\\!", " ", "\u2009", "\u202f", "\u00a0")))


# --- units, percent ---------------------------------------------------------------------------------------------------


def money(value: Fraction, rng: random.Random) -> str:
    text = rng.choice((plain(value), commas(value, rng)))
    behind = (f"{text} dollars", f"{text}\\text{{ dollars}}", f"{text} euros", f"{text} €")
    before = () if value < 0 or decimal_places(value) is None else (f"${text}", f"\\${text}", f"€{text}", f"£{text}")
    return rng.choice(behind + before)


def measured(value: Fraction, rng: random.Random) -> str:
    units = (" cm", " apples", " degrees", "^\\circ", "°", "\\text{ km}", "\\,\\mathrm{kg}", " mph", "\\text{ cm}^2")
    return plain(value) + rng.choice(units)


def percent(value: Fraction, rng: random.Random) -> str:
    return plain(value * 100) + rng.choice(("%", "\\%", " percent", " per cent", "\\text{ percent}"))


def percent_slip(value: Fraction, rng: random.Random) -> str:
    slips: dict[str, Fraction | None] = {
        f"{plain(value)}%": value / 100,
        f"{plain(value)}\\%": value / 100,
        plain(value * 100): value * 100,
        f"{plain(value * 1000)}%": value * 10,
        f"{plain(value * 100 + 1)}%": value + Fraction(1, 100),
    }
    return pick(value, rng, slips)


# --- fractions --------------------------------------------------------------------------------------------------------


def over(numerator: int, denominator: int, rng: random.Random) -> str:
    sign = "-" if numerator < 0 else ""
    name = rng.choice(("\\frac", "\\dfrac", "\\tfrac", ""))
    top = abs(numerator)
    return f"{sign}{top}/{denominator}" if not name else f"{sign}{name}{{{top}}}{{{denominator}}}"


def fraction(value: Fraction, rng: random.Random) -> str:
    scale = rng.randint(1, 12)
    return over(value.numerator * scale, value.denominator * scale, rng)


def fraction_slip(value: Fraction, rng: random.Random) -> str:
    """Swapped, sign turned, or one off above or below the line."""
    scale = rng.randint(1, 12)
    top, below = value.numerator * scale, value.denominator * scale
    pairs = [(top + 1, below), (top, below + 1), (-top, below), (top * 10, below)]
    if top:
        pairs.append((below if top > 0 else -below, abs(top)))
    return over(*rng.choice([pair for pair in pairs if Fraction(*pair) != value]), rng)


def mixed(value: Fraction, rng: random.Random) -> str:
    """`2 1/2`; for a whole number, a sum with a fraction that is one."""
    if value.denominator == 1:
        part = rng.randint(2, 9)
        return f"{value - 1}+\\frac{{{part}}}{{{part}}}"
    whole, rest = divmod(abs(value.numerator), value.denominator)
    return mixed_text(value < 0, whole, Fraction(rest, value.denominator), rng)


def mixed_text(negative: bool, whole: int, part: Fraction, rng: random.Random) -> str:
    sign, top, below = "-" if negative else "", part.numerator, part.denominator
    forms = [f"{sign}{whole or ''}{name}{{{top}}}{{{below}}}" for name in ("\\frac", "\\dfrac")]
    if not 100 <= top <= 999:  # three digits after a space are a group of thousands
        forms.append(f"{sign}{whole} {top}/{below}" if whole else f"{sign}{top}/{below}")
    return rng.choice(forms)


def mixed_slip(value: Fraction, rng: random.Random) -> str:
    """The product of the two parts, another whole part, or a half too many."""
    if value.denominator == 1:
        same = rng.randint(2, 9)
        product = f"{value - 1} \\cdot \\frac{{{same}}}{{{same}}}"
        return rng.choice((product, mixed_text(value < 0, abs(int(value)), Fraction(1, 2), rng)))
    whole, rest = divmod(abs(value.numerator), value.denominator)
    part, sign = Fraction(rest, value.denominator), -1 if value < 0 else 1
    more = mixed_text(value < 0, whole + 1, part, rng)
    product = f"{sign * whole} \\cdot \\frac{{{part.numerator}}}{{{part.denominator}}}"
    turned = mixed_text(value > 0, whole, part, rng)
    return pick(value, rng, {more: sign * (whole + 1 + part), product: sign * whole * part, turned: -value})


# --- powers -----------------------------------------------------------------------------------------------------------


def scaled(mantissa: Fraction, exponent: int, rng: random.Random) -> str:
    text = plain(mantissa)
    forms = [f"{text} \\times 10^{{{exponent}}}", f"{text} \\cdot 10^{{{exponent}}}"]
    forms.append(f"{text}×10{str(exponent).translate(SUPERSCRIPTS)}")
    if decimal_places(mantissa) is not None:
        forms += [f"{text}e{exponent}", f"{text}E{exponent}"]
    return rng.choice(forms)


def scientific(value: Fraction, rng: random.Random) -> str:
    exponent = rng.randint(-3, len(str(abs(int(value)))) + 1)
    return scaled(value / Fraction(10) ** exponent, exponent, rng)


def scientific_slip(value: Fraction, rng: random.Random) -> str:
    exponent = rng.randint(-3, len(str(abs(int(value)))) + 1)
    mantissa = value / Fraction(10) ** exponent
    if value and rng.random() < 0.5:
        return scaled(mantissa, exponent + rng.choice((-1, 1)), rng)
    return scaled(another(mantissa, rng), exponent, rng)


def root(value: Fraction, rng: random.Random) -> str:
    return f"{'-' if value < 0 else ''}\\sqrt{{{plain(value * value)}}}"


def root_slip(value: Fraction, rng: random.Random) -> str:
    """The root of one more, the root of the value, or the sign turned; both sides are compared by their squares."""
    slips = [f"{'-' if value < 0 else ''}\\sqrt{{{plain(value * value + 1)}}}"]
    if value:
        slips.append(root(-value, rng))
    if abs(value) not in (0, 1):
        slips.append(f"{'-' if value < 0 else ''}\\sqrt{{{plain(abs(value))}}}")
    return rng.choice(slips)


# --- sums and products ------------------------------------------------------------------------------------------------


def joined(first: Fraction, second: Fraction) -> str:
    return f"{plain(first)} {'-' if second < 0 else '+'} {plain(abs(second))}"


def total(value: Fraction, rng: random.Random) -> str:
    first = Fraction(rng.randint(-50, 1000))
    return joined(first, value - first)


def total_slip(value: Fraction, rng: random.Random) -> str:
    """The value and something more, or a sum that misses it."""
    first = Fraction(rng.randint(-50, 1000))
    return rng.choice((joined(value, Fraction(rng.choice((1, -1, 2)))), joined(first, another(value - first, rng))))


def multiplied(first: int, second: Fraction, rng: random.Random) -> str:
    text = plain(second) if second >= 0 else f"({plain(second)})"
    sign = rng.choice(("×", "·", "\\times", "\\cdot"))
    return f"{first} {sign} {text}"


def product(value: Fraction, rng: random.Random) -> str:
    first = rng.randint(2, 9)
    return multiplied(first, value / first, rng)


def product_slip(value: Fraction, rng: random.Random) -> str:
    first = rng.randint(2, 9)
    second = value / first
    summed = joined(Fraction(first), second)
    missed = multiplied(first, another(second, rng), rng)
    return pick(value, rng, {missed: None, summed: first + second})


# --- signs, wrapping, digits ------------------------------------------------------------------------------------------


def signed(value: Fraction, rng: random.Random) -> str:
    if value < 0:
        return rng.choice(MINUSES) + plain(-value)
    return rng.choice(("", "+")) + plain(value) if value else rng.choice(("0", "-0", "+0"))


def signed_slip(value: Fraction, rng: random.Random) -> str:
    if not value:
        return rng.choice(MINUSES) + "1"
    return rng.choice((signed(-value, rng), f"\\pm {plain(abs(value))}", f"±{plain(abs(value))}"))


WRAPPINGS = (
    "${}$",
    "$${}$$",
    "\\({}\\)",
    "\\[{}\\]",
    "\\boxed{{{}}}",
    "$\\boxed{{{}}}$",
    "\\boxed{{\\boxed{{{}}}}}",
    "#### {}",
    "{}.",
    " {} \n",
    "\\displaystyle {}",
    "\\left({}\\right)",
    "$\\boxed{{{}}}$.",
)


def wrapped(value: Fraction, rng: random.Random) -> str:
    return rng.choice(WRAPPINGS).format(plain(value))


def fullwidth(value: Fraction, rng: random.Random) -> str:
    return plain(value).translate(FULLWIDTH)


def padded(value: Fraction, rng: random.Random) -> str:
    """Zeros in front and behind."""
    if decimal_places(value) is None:
        return plain(value)
    digits = plain(abs(value))
    behind = "0" * rng.randint(0, 6)
    tail = behind if "." in digits else f".{behind}" if behind else ""
    return ("-" if value < 0 else "") + "0" * rng.randint(0, 3) + digits + tail


def hardly(value: Fraction, rng: random.Random) -> str:
    """A decimal that misses the value by less than a thousandth, down to the 15th place."""
    places = rng.randint(3, 15)
    cut = Fraction(round(value * 10**places), 10**places)
    return plain(cut if cut != value else value + Fraction(rng.choice((-1, 1)), 10**places))


# --- names, lists, bases ----------------------------------------------------------------------------------------------


def assigned(value: Fraction, rng: random.Random) -> str:
    name = rng.choice("xynk")
    return rng.choice(("{0} = {1}", "{0}={1}", "${0} = {1}$", "{0} = {1}.")).format(name, plain(value))


def assigned_slip(value: Fraction, rng: random.Random) -> str:
    """Another value, an inequality, or one solution too many."""
    text, name, more = plain(value), rng.choice("xynk"), plain(another(value, rng))
    relations = [f"{name} {sign} {text}" for sign in (">", "<", "\\neq", "\\geq")]
    return rng.choice(
        (*relations, f"{name} = {text} or {more}", f"{name} = {more}", assigned(another(value, rng), rng))
    )


def repeated(value: Fraction, rng: random.Random) -> str:
    """One value, written as a set or more than once; no comma, which could join three digits to a number."""
    text = plain(value)
    return rng.choice((f"\\{{{text}\\}}", f"\\left\\{{ {text} \\right\\}}", f"{text} and {text}", f"{text}; {text}"))


def one_more(value: Fraction, rng: random.Random) -> str:
    text, more = plain(value), plain(another(value, rng))
    return rng.choice((f"{text} and {more}", f"{more}; {text}", f"\\{{{more}\\}}", f"({text}, {more})"))


def digits_in(number: int, base: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, base)
        digits = str(digit) + digits
    return digits or "0"


def subscripted(digits: str, base: int, negative: bool, rng: random.Random) -> str:
    forms = [f"{digits}_{base}", f"{digits}_{{{base}}}"]
    if base in BASE_WORDS:
        forms.append(f"{digits}_{{\\text{{{BASE_WORDS[base]}}}}}")
    return ("-" if negative else "") + rng.choice(forms)


def based(value: Fraction, rng: random.Random) -> str:
    if value.denominator != 1:
        return plain(value)
    base = rng.randint(2, 9)
    return subscripted(digits_in(abs(int(value)), base), base, value < 0, rng)


def based_slip(value: Fraction, rng: random.Random) -> str:
    """Another number in the base, the same digits in the next base, or the digits alone."""
    if value.denominator != 1:
        return plain(another(value, rng))
    base, sign = rng.randint(2, 8), -1 if value < 0 else 1
    digits = digits_in(abs(int(value)), base)
    off = int(value) + rng.choice((-1, 1))
    slips: dict[str, Fraction | None] = {
        subscripted(digits_in(abs(off), base), base, off < 0, rng): Fraction(off),
        subscripted(digits, base + 1, value < 0, rng): Fraction(sign * int(digits, base + 1)),
        ("-" if value < 0 else "") + digits: Fraction(sign * int(digits)),
    }
    return pick(value, rng, slips)


FAMILIES: dict[str, tuple[Writer, Writer]] = {
    "commas": (commas, misplaced_commas),
    "spaces": (spaces, misread(spaces)),
    "money": (money, misread(money)),
    "measured": (measured, misread(measured)),
    "percent": (percent, percent_slip),
    "fraction": (fraction, fraction_slip),
    "mixed": (mixed, mixed_slip),
    "scientific": (scientific, scientific_slip),
    "root": (root, root_slip),
    "total": (total, total_slip),
    "product": (product, product_slip),
    "signed": (signed, signed_slip),
    "wrapped": (wrapped, misread(wrapped)),
    "fullwidth": (fullwidth, misread(fullwidth)),
    "padded": (padded, hardly),
    "assigned": (assigned, assigned_slip),
    "repeated": (repeated, one_more),
    "based": (based, based_slip),
}
