r"""Units behind (and currency signs in front of) a number.

A unit is a scale, a power of π (degrees), and powers of base dimensions. Words that are in no table are dimensions of
their own: apples are converted into nothing but apples. All conversions are exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

Dimensions = frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Unit:
    """`scale · π^turns` of the base units of these dimensions; `offset` is added first (temperatures)."""

    scale: Fraction
    dimensions: Dimensions
    turns: int = 0
    offset: Fraction = Fraction(0)


def _table() -> dict[str, tuple[Fraction, str, int]]:
    """Word → scale, dimension, power of it."""
    rows: dict[str, tuple[Fraction, str, int]] = {}

    def add(dimension: str, scale: Fraction | int | str, names: str, power: int = 1) -> None:
        for name in names.split():
            rows[name] = (Fraction(scale), dimension, power)

    add("length", 1, "m meter metre")
    add("length", "1/100", "cm centimeter centimetre")
    add("length", "1/1000", "mm millimeter millimetre")
    add("length", "1/10", "dm decimeter decimetre")
    add("length", 1000, "km kilometer kilometre")
    add("length", "1/1000000", "μm micrometer micrometre micron")
    add("length", "1/1000000000", "nm nanometer nanometre")
    add("length", "254/10000", "in inch inche")
    add("length", "3048/10000", "ft foot feet")
    add("length", "9144/10000", "yd yard")
    add("length", "1609344/1000", "mi mile")
    add("mass", 1, "g gram gramme")
    add("mass", 1000, "kg kilogram kilogramme kilo")
    add("mass", "1/1000", "mg milligram milligramme")
    add("mass", 1_000_000, "tonne")
    add("mass", "45359237/100000", "lb pound")
    add("mass", "45359237/1600000", "oz ounce")
    add("time", 1, "s sec second")
    add("time", "1/1000", "ms millisecond")
    add("time", 60, "min minute")
    add("time", 3600, "h hr hour")
    add("time", 86_400, "d day")
    add("time", 604_800, "wk week")
    add("month", 1, "month")
    add("month", 12, "yr year")
    add("length", "1/1000", "L l liter litre", 3)
    add("length", "1/1000000", "mL ml milliliter millilitre cc", 3)
    add("length", "1/100000", "cl centiliter centilitre", 3)
    add("length", 10_000, "hectare ha", 2)
    add("length", "40468564224/10000000", "acre", 2)
    gallon = Fraction(3785411784, 10**12)  # of the United States, in cubic metres
    for share, names in ((1, "gallon gal"), (4, "quart qt"), (8, "pint pt"), (16, "cup"), (256, "tablespoon tbsp")):
        add("length", gallon / share, names, 3)
    add("length", gallon / 768, "teaspoon tsp", 3)
    add("dollar", 1, "dollar buck usd USD US$ $")
    add("dollar", "1/100", "cent ¢")
    add("euro", 1, "euro eur EUR €")
    add("sterling", 1, "gbp GBP £")
    add("sterling", "1/100", "pence penny")
    add("yen", 1, "yen jpy JPY ¥")
    add("rupee", 1, "rupee inr INR ₹ Rs")
    add("current", 1, "A ampere amp")
    add("byte", 1, "B byte")
    add("byte", 1000, "kB KB kilobyte")
    add("byte", 1_000_000, "MB megabyte")
    add("byte", 1_000_000_000, "GB gigabyte")
    add("angle", 1, "rad radian")
    return rows


_UNITS = _table()
_COMPOUNDS = {
    **dict.fromkeys(("N", "newton"), "kg*m/s^2"),
    **dict.fromkeys(("J", "joule"), "kg*m^2/s^2"),
    **dict.fromkeys(("W", "watt"), "kg*m^2/s^3"),
    **dict.fromkeys(("V", "volt"), "kg*m^2/A s^3"),
    "mph": "mi/h",
    "kph": "km/h",
    "kmh": "km/h",
    "kmph": "km/h",
    "mpg": "mile/gallon",
    "fps": "ft/s",
}
_TEMPERATURES = {
    "C": Unit(Fraction(1), frozenset({("kelvin", 1)}), 0, Fraction(27315, 100)),
    "F": Unit(Fraction(5, 9), frozenset({("kelvin", 1)}), 0, Fraction(45967, 100)),
    "K": Unit(Fraction(1), frozenset({("kelvin", 1)})),
}
_TEMPERATURE_WORDS = {"celsius": "C", "centigrade": "C", "fahrenheit": "F", "kelvin": "K"}
_DEGREE = Unit(Fraction(1, 180), frozenset({("angle", 1)}), 1)
CURRENCIES = "$€£¥₹¢"
MULTIPLES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SINGLE_LETTERS = frozenset("mgshLNJWVAK")  # what may be a unit behind a space; others are variables
_VARIABLES = frozenset("abcdmnpqxyz")
_JOINING = frozenset("of the a an total altogether".split())
_PIECE = re.compile(r"\s*(?:(?P<word>[A-Za-zμΩ¢€£¥₹$]+\.?)|\^\s*\{?\s*(?P<power>-?[0-9])\s*\}?|(?P<sign>[/*·]))")
_MAX_CHARS = 80


def currency(sign: str) -> Unit:
    """The unit of a currency sign."""
    return _simple(sign)


def read_unit(text: str) -> Unit | None:
    """The unit a text names (`cm`, `square feet`, `«km»/«h»`, `apples`, `dollars per hour`, `°C`), or None."""
    text = re.sub(r"[«»]", " ", text).strip()
    text = re.sub(r"^-\s*(?=[A-Za-z])|\bin (?:total|all)\b", "", text).strip().rstrip(".")
    if not text or len(text) > _MAX_CHARS:
        return None
    special = _temperature_or_angle(text)
    if special is not None:
        return special
    words = _words_of(text)
    return None if words is None else _from_words(words)


def may_be_unit(word: str, *, spaced: bool) -> bool:
    """Whether a bare word behind a number (and a space, if `spaced`) is more likely a unit than variables."""
    if len(word) == 1:
        return spaced and word in _SINGLE_LETTERS
    known = any(spelled in table for spelled in (word, word.lower(), _singular(word)) for table in (_UNITS, _COMPOUNDS))
    return known or len(word) > 3 or word == "sq" or (spaced and len(word) == 3 and not set(word) <= _VARIABLES)


def _temperature_or_angle(text: str) -> Unit | None:
    found = re.fullmatch(r"(?:°|deg(?:ree)?s?)?\s*([A-Za-z]*)", text)
    if found is None:
        return None
    name = found[1]
    marked = len(found[1]) < len(text)
    if not name:
        return _DEGREE if marked else None
    letter = _TEMPERATURE_WORDS.get(name.lower(), name if marked or name == "K" else "")
    return _TEMPERATURES.get(letter)


def _words_of(text: str) -> list[tuple[str, int]] | None:
    """Words with their powers; None if the text has anything but words, powers, `/` and `*`."""
    words: list[tuple[str, int]] = []
    position, sign, power = 0, 1, 1
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return None
        position = piece.end()
        word = piece["word"]
        raised = 0 if word is None else _raising(word)
        follows = bool(piece["power"]) or (bool(raised) and word.lower() in ("squared", "cubed"))
        if piece["sign"]:
            sign = -1 if piece["sign"] == "/" else sign
        elif follows:
            if not words:
                return None
            words[-1] = (words[-1][0], words[-1][1] * (raised or int(piece["power"])))
        elif word.rstrip(".").lower() in ("per", "every"):
            sign = -1
        elif raised:
            power = raised
        elif word.lower() not in _JOINING:
            words.append((word.rstrip("."), sign * power))
            power = 1
    return words or None


def _raising(word: str) -> int:
    return {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}.get(word.rstrip(".").lower(), 0)


def _from_words(words: list[tuple[str, int]]) -> Unit:
    scale = Fraction(1)
    dimensions: dict[str, int] = {}
    for word, power in words:
        unit = _simple(word)
        scale *= unit.scale**power
        for name, exponent in unit.dimensions:
            dimensions[name] = dimensions.get(name, 0) + exponent * power
    return Unit(scale, frozenset((name, exponent) for name, exponent in dimensions.items() if exponent))


def _simple(word: str) -> Unit:
    spellings = (word, word.lower() if len(word) > 1 else word, _singular(word))
    for spelled in spellings:
        if spelled in _COMPOUNDS:
            return _from_words(_words_of(_COMPOUNDS[spelled]) or [])
    for spelled in spellings:
        if spelled in _UNITS:
            scale, dimension, power = _UNITS[spelled]
            return Unit(scale, frozenset({(dimension, power)}))
    return Unit(Fraction(1), frozenset({(f"word {_singular(word)}", 1)}))


def _singular(word: str) -> str:
    """Lower case, without the ending of a plural: the same for both numbers, not always the dictionary's form."""
    word = word.lower()
    irregular = {"people": "person", "children": "child", "men": "man", "women": "woman", "feet": "foot",
                 "mice": "mouse", "geese": "goose", "teeth": "tooth", "pence": "penny", "inches": "inch",
                 "boxes": "box", "halves": "half", "loaves": "loaf", "knives": "knife", "lives": "life"}  # fmt: skip
    if word in irregular:
        return irregular[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes", "zes", "oes")):
        return word[:-2]
    if len(word) > 2 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word
