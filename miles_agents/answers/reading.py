"""What an answer is: a value, several, a tuple or interval, an equation, a ratio, a matrix, or text.

Works on the spelling of `normalise`, from the outside in: lists, relations, unions, brackets, and last one expression
with its unit. What cannot be read completely is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from miles_agents.answers.grammar import parse_expression
from miles_agents.answers.normalise import FUNCTIONS, normalised, unicode_spelling, unwrapped
from miles_agents.answers.syntax import Call, Mul, Node, Num, Sym, TooComplexError, UnreadableError, negative
from miles_agents.answers.units import CURRENCIES, MULTIPLES, Unit, currency, may_be_unit, read_unit


@dataclass(frozen=True, slots=True)
class Value:
    """One expression, with its unit."""

    node: Node
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """No mathematics; or letters that may be a product of variables (`ab`), which `product` then is."""

    key: str
    product: Node | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """Several values without order."""

    items: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Values in order, with their brackets: a point, an interval, a vector."""

    opening: str
    items: tuple[Reading, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Combination:
    """Sets joined by one of `∪ ∩ ∖`."""

    sign: str
    parts: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """`left sign right`; a chain `a < x < b` is a collection of them."""

    left: Reading
    sign: str
    right: Reading
    name: str = ""  # what is assigned, for `x = 5`, `f(x) = …`, `S = (0, 2)`


@dataclass(frozen=True, slots=True)
class Chain:
    """Relations that hold together."""

    relations: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`a : b : …`."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Entries row by row."""

    rows: tuple[tuple[Reading, ...], ...]


Reading = Value | Text | Collection | Sequence | Combination | Relation | Chain | Ratio | Matrix

_MAX_ITEMS = 2_000
_MAX_NESTING = 20
_OPENING, _CLOSING = "([{⟅«", ")]}⟆»"
_LIST_SIGN = re.compile(r"[,;]|(?<![A-Za-z«])(?:and|or)(?![A-Za-z»])|[([{⟅«)\]}⟆»]")
_RELATION_SIGN = re.compile(r"[=<>≤≥≠∈]|[([{⟅«)\]}⟆»]")
_SET_SIGN = re.compile(r"[∪∩∖]|[([{⟅«)\]}⟆»]")
_RATIO_SIGN = re.compile(r":|[([{⟅«)\]}⟆»]")
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?\s*[«(]?[ap]\.?\s?m\b|^[0-9]{1,2}:0[0-9]$", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*[A-Za-z]|«[^«»]*[A-Za-z]{2}[^«»]*»(?:\s*«[^«»]*»)*")
_MATHEMATICAL_WORDS = FUNCTIONS | {"pi", "inf", "infty", "infinity"}
_VARIABLE_PRODUCT = re.compile(r"[abcdmnpqxyz]{2,3}")
_ENGLISH = frozenset(
    "am an and bad by cab dab dad mad man map my nap pan pay day bay any may cap can nay yam cam damn".split()
)
_NAME = re.compile(r"[A-Za-zα-ωΑ-Ω](?:_(?:\{[^{}]*\}|[A-Za-z0-9]))?'*(?:\s*\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))?")
_NAMES = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\)")
_MATRIX = re.compile(r"\\begin\s*\{([pbB]?)matrix\}(.*)\\end\s*\{[pbB]?matrix\}", re.DOTALL)
_PREFIX = re.compile(rf"([-+]?)\s*(?:US|USD|A|C|HK)?\s*([{CURRENCIES}])\s*([-+]?)\s*(?=[0-9.\\√(])")
_UNIT_START = re.compile(rf"[A-Za-zΩ]+\.?|«|°|[{CURRENCIES}]|\\[A-Za-z]+")
_ANGULAR = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)")
_COMPOUND = re.compile(r"\s*(?:and\b)?\s*([0-9][0-9./ ]*)\s*((?:«[^«»]*»|[A-Za-z]+\.?)\s*)")


@lru_cache(maxsize=4_096)
def read(text: str) -> Reading:
    """What the text is.

    Raises:
        TooComplexError: it may be mathematics, but is too long or nested too deep.
    """
    spelled = normalised(text)
    try:
        if not spelled or _TIME.search(spelled) or _DATE.fullmatch(spelled):
            return Text(text_key(text))
        return _listed(spelled, 0)
    except UnreadableError:
        return Text(text_key(text))


def text_key(text: str) -> str:
    r"""What text is compared by: no case, no spacing, no wrapping; LaTeX keeps its case.

    A space between two digits stays, so that `1 23` is not `12 3`.
    """
    key = unwrapped(unicode_spelling(text))
    key = re.sub(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox|textrm|emph)\s*\{([^{}]*)\}", r" \1 ", key)
    key = re.sub(r"\\[,;:! ]|\\(?:left|right|displaystyle|quad)(?![A-Za-z])|\*\*|[$~]", " ", key)
    key = re.sub(r"\s+", " ", unwrapped(key))
    key = re.sub(r"(?<![0-9]) | (?![0-9])", "", key)
    return key if "\\" in key or "^" in key else key.casefold()


# Lists


def _split(text: str, signs: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The parts between signs outside brackets, and the signs."""
    parts: list[str] = []
    found: list[str] = []
    depth = start = 0
    for sign in signs.finditer(text):
        if sign[0] in _OPENING:
            depth += 1
        elif sign[0] in _CLOSING:
            depth -= 1
        elif depth == 0:
            parts.append(text[start : sign.start()].strip())
            found.append(sign[0])
            start = sign.end()
    if depth != 0:
        raise UnreadableError("brackets do not match")
    if len(parts) > _MAX_ITEMS:
        raise TooComplexError("too many items")
    return [*parts, text[start:].strip()], found


def _listed(text: str, nesting: int) -> Reading:
    if nesting > _MAX_NESTING:
        raise TooComplexError("nested too deep")
    parts, signs = _split(text, _LIST_SIGN)
    if not parts[0] and len(parts) > 1 and signs[0] in ("and", "or"):
        raise UnreadableError("begins with a conjunction")
    parts = [part for place, part in enumerate(parts) if part or not _is_oxford(signs, place)]
    if len(parts) > 1 and "and" in signs and (quantity := _compound(text)) is not None:
        return quantity
    items = [reading for part in parts for reading in _both_signs(part, nesting)]
    return _collected(_assigned(items))


def _is_oxford(signs: list[str], place: int) -> bool:
    """Whether the empty part is the one between `,` and `and`."""
    return 0 < place < len(signs) and signs[place - 1] == "," and signs[place] in ("and", "or")


def _both_signs(part: str, nesting: int) -> Iterator[Reading]:
    """The item; two of them for `±`."""
    if "±" in part or "∓" in part:
        yield _item(part.replace("±", "+").replace("∓", "-"), nesting)
        yield _item(part.replace("±", "-").replace("∓", "+"), nesting)
    else:
        yield _item(part, nesting)


def _assigned(items: list[Reading]) -> list[Reading]:
    """`k = 3, 5, 7` and `x = 2 or x = 3` are one name with several values."""
    first = items[0]
    if len(items) < 2 or not isinstance(first, Relation) or not first.name:
        return items
    values = [first.right]
    for item in items[1:]:
        if isinstance(item, Relation):
            if item.name != first.name:
                return items
            values.append(item.right)
        else:
            values.append(item)
    return [Relation(first.left, "=", _collected(values), first.name)]


def _collected(items: list[Reading]) -> Reading:
    flat = [each for item in items for each in (item.items if isinstance(item, Collection) else (item,))]
    unique = tuple(dict.fromkeys(flat))
    return unique[0] if len(unique) == 1 else Collection(unique)


# One item


def _item(text: str, nesting: int) -> Reading:
    if not text:
        raise UnreadableError("an empty item")
    if (matrix := _MATRIX.fullmatch(text)) is not None:
        return _matrix(matrix[2], nesting)
    parts, signs = _split(text, _RELATION_SIGN)
    if signs:
        return _related(parts, signs, nesting)
    parts, signs = _split(text, _SET_SIGN)
    if signs and len(set(signs)) == 1:
        return Combination(signs[0], tuple(_item(part, nesting + 1) for part in parts))
    parts, signs = _split(text, _RATIO_SIGN)
    if signs:
        return _ratio(parts)
    bracketed = _bracketed(text, nesting)
    if bracketed is not None:
        return bracketed
    try:
        return _words(text) or _value(text)
    except UnreadableError:
        if text[0] != "(" or text[-1] != ")" or nesting >= _MAX_NESTING or not _one_bracket(text):
            raise
        return _item(text[1:-1].strip(), nesting + 1)  # `(5 cm)`


def _matrix(inside: str, nesting: int) -> Reading:
    rows = [row for row in inside.split("⏎") if row.strip()]
    entries = tuple(tuple(_item(cell.strip(), nesting + 1) for cell in row.split("&")) for row in rows)
    if not entries or len({len(row) for row in entries}) != 1:
        raise UnreadableError("rows of different lengths")
    return Matrix(entries)


def _related(parts: list[str], signs: list[str], nesting: int) -> Reading:
    if signs == ["="] and not parts[0]:
        return _item(parts[1], nesting + 1)  # `= 5`
    if len(signs) == 1 and signs[0] in "=∈":
        for left, right in ((parts[0], parts[1]), (parts[1], parts[0])):
            if name := _name(left):
                return _assignment(name, left, right, nesting)
    if "∈" in signs or len(signs) > 3:
        raise UnreadableError("no relation of this kind")
    sides = [_item(part, nesting + 1) for part in parts]
    if not all(isinstance(side, Value) for side in sides):
        raise UnreadableError("a relation of something else than expressions")
    relations = tuple(Relation(sides[k], sign, sides[k + 1]) for k, sign in enumerate(signs))
    return relations[0] if len(relations) == 1 else Chain(relations)


def _name(text: str) -> str:
    if _NAME.fullmatch(text) or _NAMES.fullmatch(text):
        return re.sub(r"\s", "", text)
    words = text.strip("«» ")
    return words.casefold() if re.fullmatch(r"[A-Za-z][A-Za-z -]{2,40}", words) else ""


def _assignment(name: str, left: str, right: str, nesting: int) -> Relation:
    values = list(_both_signs(right, nesting + 1))
    try:
        target: Reading = Value(parse_expression(left))
    except UnreadableError:
        target = Text(name)
    return Relation(target, "=", _collected(values), name)


def _ratio(parts: list[str]) -> Reading:
    if any(re.match(r"0[0-9]", part) for part in parts):
        raise UnreadableError("a time")
    return Ratio(tuple(parse_expression(part) for part in parts))


def _bracketed(text: str, nesting: int) -> Reading | None:
    """A tuple, an interval or a set; None for anything else, `(5)` included."""
    if text == "∅" or re.fullmatch(r"⟅\s*⟆|\{\s*\}", text):
        return Collection(())
    opening, closing = text[0], text[-1]
    if opening not in "([{⟅" or closing not in ")]}⟆" or not _one_bracket(text):
        return None
    inside = text[1:-1]
    parts, signs = _split(inside, _LIST_SIGN)
    if opening == "⟅" and closing == "⟆":
        if "|" in inside or ":" in inside:
            raise UnreadableError("a set described by a condition")
        return _as_collection(_listed(inside, nesting + 1))
    if not signs:
        return None if opening in "([" else _item(inside.strip(), nesting + 1)
    if opening == "{" and closing == "}":
        return _as_collection(_listed(inside, nesting + 1))
    if opening not in "([" or closing not in ")]" or not set(signs) <= {",", ";"}:
        raise UnreadableError("brackets that do not match")
    return Sequence(opening, tuple(_item(part, nesting + 1) for part in parts), closing)


def _as_collection(reading: Reading) -> Reading:
    if isinstance(reading, (Relation, Chain)):
        raise UnreadableError("a set of relations")
    return reading


def _one_bracket(text: str) -> bool:
    """Whether the last bracket closes the first."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth == 0:
            return place == len(text) - 1
    return False


def _words(text: str) -> Text | None:
    if not _WORDS.fullmatch(text) or _MATHEMATICAL_WORDS & set(re.findall(r"[A-Za-z]+", text)):
        return None
    bare = text.strip("«» ")
    product = None
    if bare == text and _VARIABLE_PRODUCT.fullmatch(bare) and bare not in _ENGLISH:
        product = Mul(tuple(Sym(letter) for letter in bare))
    elif bare == text and re.fullmatch(r"[A-Za-z]{2,3}", bare):
        return Text(text_key(text), Mul(tuple(Sym(letter) for letter in bare)))
    return Text(text_key(text), product) if len(bare) > 1 else None


def surely_product(text: Text) -> bool:
    """Whether letters are a product of variables even beside other letters: `ab` is `ba`, but `no` is not `on`."""
    return bool(_VARIABLE_PRODUCT.fullmatch(text.key)) and text.key not in _ENGLISH


# One expression and its unit


def _value(text: str) -> Reading:
    prefix = _PREFIX.match(text)
    if prefix is not None:
        value = _value(text[prefix.end() :])
        if not isinstance(value, Value):
            raise UnreadableError("no amount of money")
        node = negative(value.node) if "-" in (prefix[1], prefix[3]) else value.node
        if value.unit is not None and value.unit != currency(prefix[2]):
            raise UnreadableError("two units")
        return Value(node, currency(prefix[2]))
    if (multiple := re.fullmatch(rf"(.*[0-9}}])\s*«?\s*({'|'.join(MULTIPLES)})\s*»?(.*)", text)) is not None:
        number = Num(Fraction(MULTIPLES[multiple[2]]))
        rest = read_unit(multiple[3]) if multiple[3].strip() else None
        return Value(Mul((parse_expression(multiple[1]), number)), rest)
    for start in _unit_starts(text):
        unit = read_unit(text[start:])
        if unit is None:
            continue
        try:
            return Value(_without_degrees(parse_expression(text[:start]), unit), unit)
        except UnreadableError:
            continue
    return _compound(text) or Value(parse_expression(text))


def _unit_starts(text: str) -> Iterator[int]:
    """Where a unit may begin, from the left."""
    depth = 0
    for found in _UNIT_START.finditer(text):
        start, word = found.start(), found[0].rstrip(".")
        before = text[:start]
        depth = before.count("{") - before.count("}")
        if not start or depth or word.startswith("\\") or not re.search(r"[0-9πe∞}]", before):
            continue
        if word == "°" and _ANGULAR.search(before):
            continue
        bare = word not in ("«", "°") and word not in CURRENCIES
        if bare and not _bare_unit(before, word):
            continue
        yield start


def _bare_unit(before: str, word: str) -> bool:
    if (word in _MATHEMATICAL_WORDS and word != "min") or not before.rstrip()[-1:].strip("+-*/^_=("):
        return False
    numeric = not re.search(r"(?<!\\)(?<![A-Za-z\\])[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", before))
    return may_be_unit(word, spaced=before.endswith(" ")) and (numeric or len(word) > 1)


def _without_degrees(node: Node, unit: Unit) -> Node:
    """`30° + 60°`: the sign is the unit of the whole and leaves the terms."""
    if not unit.turns:
        return node
    match node:
        case Call("degree", (argument,)):
            return argument
        case Num() | Sym() | Call():
            return node
        case _:
            parts = {name: getattr(node, name) for name in node.__slots__}
            changed: dict[str, Any] = {
                name: tuple(_without_degrees(each, unit) for each in part) if isinstance(part, tuple) else part
                for name, part in parts.items()
            }
            return type(node)(**changed)


def _compound(text: str) -> Value | None:
    """`5 feet 3 inches`, `2 hours and 30 minutes`: quantities of one dimension, from large to small, are one."""
    total, position, scale = Fraction(0), 0, None
    first: Unit | None = None
    while position < len(text):
        piece = _COMPOUND.match(text, position)
        unit = read_unit(piece[2]) if piece else None
        if piece is None or unit is None or (first is not None and unit.dimensions != first.dimensions):
            return None
        if not may_be_unit(piece[2].strip("«» ."), spaced=True) or (scale is not None and unit.scale >= scale):
            return None
        amount = parse_expression(piece[1])
        if not isinstance(amount, Num):
            return None
        first = first or unit
        total += amount.value * unit.scale / first.scale
        scale, position = unit.scale, piece.end()
    return Value(Num(total), first) if first is not None and scale != first.scale else None
