r"""Exact comparison of numeric answers, by rational arithmetic.

A number is one of these, with an optional sign (`-`, `−`, `+`) in front:

| written | read as |
|---|---|
| `42`, `7.0`, `.5`, `5.` | the decimal |
| `1,234,567.5`, `1{,}234`, `1\,234` | with thousands separators, in groups of exactly three |
| `1e3`, `2.5E-4` | scientific; exponents beyond ±1000 are no number |
| `3/4`, `\frac{3}{4}`, `\dfrac{…}{…}`, `\tfrac{…}{…}` | the quotient of two decimals |
| `35%`, `35\%` | 35/100, so it equals 0.35 and not 35 |
| `$18`, `\$18`, `$18$`, `-$5` | 18, 18, 18, −5: a dollar sign in front and math dollars around are dropped |

Anything else is no number and equals nothing: other units (`18 dollars`), mixed numbers (`2 1/2`), unfinished
arithmetic (`17+1`), `x = 18`, infinities. Texts longer than 1000 characters are no numbers either.
"""

from __future__ import annotations

import re
from fractions import Fraction

_MAX_CHARS = 1000
_MAX_EXPONENT = 1000

_DIGITS = r"(?:[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,5}})?"
_SIGN = r"[-−+]?"
_PLAIN = re.compile(rf"(?P<sign>{_SIGN})(?:\\?\$)?(?P<number>{_DECIMAL})(?P<percent>\\?%)?")
_QUOTIENT = re.compile(
    rf"(?P<sign>{_SIGN})(?:"
    rf"\\[dt]?frac\{{(?P<top>{_SIGN}{_DECIMAL})\}}\{{(?P<bottom>{_SIGN}{_DECIMAL})\}}"
    rf"|(?P<over>{_DECIMAL}) ?/ ?(?P<under>{_SIGN}{_DECIMAL}))"
)
_SEPARATORS = re.compile(r",|\{,\}|\\,")


def parse_number(text: str) -> Fraction | None:
    """The exact value of a number written as this module's table says; None if it is no number."""
    text = text.strip()
    if len(text) > _MAX_CHARS:
        return None
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    if (plain := _PLAIN.fullmatch(text)) is not None:
        value = _decimal(plain["number"])
        if value is not None and plain["percent"]:
            value /= 100
        return _signed(plain["sign"], value)
    if (quotient := _QUOTIENT.fullmatch(text)) is not None:
        top = _decimal(quotient["top"] or quotient["over"])
        bottom = _decimal(quotient["bottom"] or quotient["under"])
        if top is None or not bottom:
            return None
        return _signed(quotient["sign"], top / bottom)
    return None


def numbers_equal(answer: str, gold: str) -> bool:
    """True if both are numbers of exactly the same value; no rounding, no tolerance."""
    answered = parse_number(answer)
    return answered is not None and answered == parse_number(gold)


def _signed(sign: str, value: Fraction | None) -> Fraction | None:
    return value if value is None or sign in ("", "+") else -value


def _decimal(text: str) -> Fraction | None:
    text = _SEPARATORS.sub("", text).replace("−", "-")
    _, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > _MAX_EXPONENT:
        return None
    return Fraction(text)
