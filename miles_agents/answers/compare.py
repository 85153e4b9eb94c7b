"""Comparison of two answers, symmetric by construction: what is asked of one side is asked of the other."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Protocol

from miles_agents.answers import patience
from miles_agents.answers.decide import (
    BASES,
    all_of,
    any_of,
    expressions_equal,
    has_open_base,
    proportional,
    without_base,
)
from miles_agents.answers.normalise import normalised, unicode_spelling, unwrapped
from miles_agents.answers.reading import (
    Chain,
    Collection,
    Combination,
    Matrix,
    Ratio,
    Reading,
    Relation,
    Sequence,
    Text,
    Value,
    read,
    surely_product,
    text_key,
)
from miles_agents.answers.syntax import (
    ZERO,
    Add,
    Call,
    Mul,
    Node,
    Num,
    Pow,
    Sym,
    TooComplexError,
    difference,
    variables,
)
from miles_agents.answers.units import Unit
from miles_agents.answers.verdicts import AnswerPolicy, Verdict

_MAX_PAIRS = 10_000
_OPPOSITE = {"<": ">", "≤": "≥"}
_LETTER = re.compile(
    r"(?:the )?(?:answer|option|choice)?(?: is)?[\s:]*\(?\s*([A-Za-z])\s*(?:[).:,]|$|\s-+\s)+\s*(?P<rest>.*)",
    re.DOTALL | re.I,
)
_SECOND_LETTER = re.compile(r"^(?:or|and|,|/|&)\s|\([A-Z]\)|(?:^|[\s,/&(])[B-HJ-Z][).:,]?(?:$|\s|[)/&])|\b[A-Z][).:]")
_SUBSCRIPT = re.compile(r"^([-+]?[0-9A-Fa-f.]+)_\{?[0-9]+\}?$")


class Prover(Protocol):
    """Decides what exact arithmetic does not."""

    def equal(self, first: Node, second: Node) -> bool | None:
        """Whether two expressions are equal; None if it cannot tell."""
        ...

    def ratio_sign(self, first: Node, second: Node) -> int | None:
        """The sign of the constant c with `first = c · second`; 0 if there is none, None if it cannot tell."""
        ...


class NoProver:
    """Leaves everything open."""

    def equal(self, first: Node, second: Node) -> bool | None:
        """None."""
        return None

    def ratio_sign(self, first: Node, second: Node) -> int | None:
        """None."""
        return None


def compare(gold: str | None, answer: str | None, policy: AnswerPolicy, prover: Prover) -> Verdict:
    """Whether two answers are equal under a policy; undecided (None) if the prover cannot tell either."""
    if gold is None or answer is None:
        return Verdict(False, "no answer")
    if gold == answer:
        return Verdict(True, "identical text")
    if policy.choices and (letters := _letters(gold, answer)) is not None:
        return letters
    try:
        result = _Comparison(policy, prover).texts(gold, answer)
    except TooComplexError as error:
        return Verdict(None, str(error))
    if result is None:
        return Verdict(None, "equality was neither proved nor disproved")
    return Verdict(result, "equal" if result else "not equal")


def _letters(gold: str, answer: str) -> Verdict | None:
    """Of a choice task; None if neither side is a letter, so that the gold answer is no option."""
    first, second = chosen_letter(gold), chosen_letter(answer)
    if first is None and second is None:
        return None
    return Verdict(first == second, "the same option" if first == second else "not the same option")


def chosen_letter(text: str) -> str | None:
    """The one option a text names, as a capital: of `E`, `(E)`, `E.`, `E: it costs less`; None if none or several."""
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|boxed|fbox)\s*\{([^{}]*)\}", r"\1", unicode_spelling(text))
    text = re.sub(r"\*\*|[${}]", "", unwrapped(text)).strip()
    found = _LETTER.fullmatch(text)
    if found is None or _SECOND_LETTER.search(found["rest"]):
        return None
    return found[1].upper()


class _Comparison:
    def __init__(self, policy: AnswerPolicy, prover: Prover) -> None:
        self._policy = policy
        self._prover = prover

    def texts(self, first: str, second: str) -> bool | None:
        if self._policy.base_asked:
            bare = [_SUBSCRIPT.sub(r"\1", normalised(text)) for text in (first, second)]
            kept = [normalised(text) for text in (first, second)]
            if (bare[0] == kept[0]) != (bare[1] == kept[1]) and self.readings(read(bare[0]), read(bare[1])):
                return True
        if not text_key(first) or not text_key(second):
            return text_key(first) == text_key(second)
        return self.readings(read(first), read(second))

    def readings(self, first: Reading, second: Reading) -> bool | None:
        patience.check()
        if isinstance(first, Relation) != isinstance(second, Relation):
            return self._assigned(first, second)
        match first, second:
            case Value(), Value():
                return self._values(first, second)
            case Text(), Text():
                return self._words(first, second)
            case (Text(), Value()) | (Value(), Text()):
                return self._word_and_value(first, second)
        return self._structures(first, second)

    def _structures(self, first: Reading, second: Reading) -> bool | None:
        match first, second:
            case Collection(), Collection():
                return self._unordered(first.items, second.items)
            case Sequence(), Sequence():
                same = (first.opening, first.closing) == (second.opening, second.closing)
                return same and self._ordered(first.items, second.items)
            case Combination(), Combination():
                return self._combinations(first, second)
            case Relation(), Relation():
                return self._relations(first, second)
            case Chain(), Chain():
                return self._unordered(first.relations, second.relations)
            case Ratio(), Ratio():
                return self._ratios(first.parts, second.parts)
            case Matrix(), Matrix():
                rows = [self._ordered(*pair) for pair in zip(first.rows, second.rows, strict=False)]
                return len(first.rows) == len(second.rows) and all_of(rows)
        return False

    # containers

    def _ordered(self, first: tuple[Reading, ...], second: tuple[Reading, ...]) -> bool | None:
        if len(first) != len(second):
            return False
        return all_of(self.readings(*pair) for pair in zip(first, second, strict=True))

    def _unordered(self, first: tuple[Reading, ...], second: tuple[Reading, ...]) -> bool | None:
        """Each of one side is on the other, both ways."""
        if not first or not second:
            return not first and not second
        if len(first) * len(second) > _MAX_PAIRS:
            return True if set(first) == set(second) else None
        table = [[self._members(mine, theirs) for theirs in second] for mine in first]
        return all_of([*map(any_of, table), *map(any_of, zip(*table, strict=True))])

    def _members(self, first: Reading, second: Reading) -> bool | None:
        if isinstance(first, Relation) != isinstance(second, Relation):
            return False  # `x = 1, y = 2` is no list of values
        return self.readings(first, second)

    def _combinations(self, first: Combination, second: Combination) -> bool | None:
        if first.sign != second.sign:
            return False
        if first.sign == "∖":
            return self._ordered(first.parts, second.parts)
        return self._unordered(first.parts, second.parts)

    # values

    def _values(self, first: Value, second: Value) -> bool | None:
        left, right = first.node, second.node
        if first.unit is not None and second.unit is not None:
            if first.unit.dimensions != second.unit.dimensions:
                return False
            if first.unit != second.unit:
                left, right = _converted(left, first.unit), _converted(right, second.unit)
        plain = self.nodes(left, right)
        if plain is False and self._policy.percent_asked and _is_percent(left) != _is_percent(right):
            return self.nodes(_without_percent(left), _without_percent(right))
        return plain

    def nodes(self, first: Node, second: Node) -> bool | None:
        r"""Whether two expressions are equal; a `\log` without a base has the base 10 or e, the same everywhere."""
        if not has_open_base(first) and not has_open_base(second):
            return self._proved(first, second)
        return any_of(self._proved(without_base(first, base), without_base(second, base)) for base in BASES)

    def _proved(self, first: Node, second: Node) -> bool | None:
        equal = expressions_equal(first, second)
        return self._prover.equal(first, second) if equal is None else equal

    def _words(self, first: Text, second: Text) -> bool | None:
        if (
            first.product is not None
            and second.product is not None
            and surely_product(first)
            and surely_product(second)
        ):
            return self.nodes(first.product, second.product)
        return first.key == second.key

    def _word_and_value(self, first: Reading, second: Reading) -> bool | None:
        text, value = (first, second) if isinstance(first, Text) else (second, first)
        if not isinstance(text, Text) or not isinstance(value, Value) or value.unit is not None or text.product is None:
            return False
        if not variables(value.node):
            return False
        return self.nodes(text.product, value.node)

    def _ratios(self, first: tuple[Node, ...], second: tuple[Node, ...]) -> bool | None:
        if len(first) != len(second):
            return False
        pairs = list(zip(first, second, strict=True))
        mine, theirs = pairs[0]
        zeros = [self.nodes(left, ZERO) == self.nodes(right, ZERO) for left, right in pairs]
        crossed = [self.nodes(Mul((left, theirs)), Mul((right, mine))) for left, right in pairs]
        return all_of([*zeros, *crossed])

    # relations

    def _assigned(self, first: Reading, second: Reading) -> bool | None:
        """`x = 5` against 5: the name is dropped if the other side does not use it."""
        relation, other = (first, second) if isinstance(first, Relation) else (second, first)
        if not isinstance(relation, Relation) or not relation.name or isinstance(other, Chain):
            return False
        if isinstance(other, Value) and relation.name in variables(other.node):
            return False
        return self.readings(relation.right, other)

    def _relations(self, first: Relation, second: Relation) -> bool | None:
        if first.name and first.name == second.name:
            same = self.readings(first.right, second.right)
            if same is not False:
                return same
        left, right = _moved_to_one_side(first), _moved_to_one_side(second)
        if left is None or right is None or left[1] != right[1]:
            return False
        sign = self._ratio_sign(left[0], right[0])
        if sign is None:
            return None
        return sign > 0 or (sign < 0 and left[1] in "=≠")

    def _ratio_sign(self, first: Node, second: Node) -> int | None:
        zeros = [expressions_equal(node, ZERO) for node in (first, second)]
        if True in zeros:
            return 1 if zeros == [True, True] else 0
        ratio = proportional(first, second)
        if ratio is None:
            return self._prover.ratio_sign(first, second)
        return 0 if ratio is False else 1 if Fraction(ratio) > 0 else -1


def _moved_to_one_side(relation: Relation) -> tuple[Node, str] | None:
    """`(d, sign)` with the relation being `d sign 0`, the sign one of `= ≠ > ≥`; None if its sides are no values."""
    left, right = relation.left, relation.right
    if not isinstance(left, Value) or not isinstance(right, Value):
        return None
    if relation.sign in _OPPOSITE:
        return difference(right.node, left.node), _OPPOSITE[relation.sign]
    return difference(left.node, right.node), relation.sign


def _converted(node: Node, unit: Unit) -> Node:
    shifted = Add((node, Num(unit.offset))) if unit.offset else node
    turns = (Pow(Sym("π"), Num(Fraction(unit.turns))),) if unit.turns else ()
    return Mul((shifted, Num(unit.scale), *turns))


def _is_percent(node: Node) -> bool:
    match node:
        case Call("percent", _):
            return True
        case Mul((Num(), inner)):  # a sign in front
            return _is_percent(inner)
    return False


def _without_percent(node: Node) -> Node:
    match node:
        case Call("percent", (argument,)):
            return argument
        case Mul((Num() as sign, inner)):
            return Mul((sign, _without_percent(inner)))
    return node
