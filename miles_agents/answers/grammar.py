r"""Reads one expression in the spelling of `normalise` into a tree.

What it does not understand completely it refuses: nothing is read in part. `2\frac{1}{2}` and `2 1/2` are mixed
numbers, `2^10` is 1024, `1/2x` is read from the left, `-x^2` is −(x²), `\sin^{-1}` is the inverse, `1011_2` is eleven.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from miles_agents.answers import patience
from miles_agents.answers.normalise import FUNCTIONS
from miles_agents.answers.syntax import (
    MINUS_ONE,
    Add,
    Call,
    Foreign,
    Mul,
    Node,
    Num,
    Pow,
    Sym,
    TooComplexError,
    UnreadableError,
    substituted,
)
from miles_agents.answers.syntax import negative as negated
from miles_agents.answers.syntax import quotient as divided

_MAX_DEPTH = 80
_MAX_TOKENS = 20_000
_MAX_DIGITS = 4_000  # of one number; Python converts no more by default
_MAX_REPEATED = 1_000  # terms of a sum that is written out
_MAX_EXPONENT = 10_000  # of `1e…`; a larger one stays a power

_BASED = re.compile(r"\s*([0-9A-F]+(?:\.[0-9A-F]+)?)\s*_\s*(?:\{\s*\(?([0-9]{1,2})\)?\s*\}|([0-9]{1,2})(?![0-9]))")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:\s*\\(?:overline|bar)\s*\{[0-9]+\})?(?:[eE][-+]?[0-9]+(?![.0-9]))?)
    | \\(?P<command>[A-Za-z]+)
    | (?P<word>[A-Za-z]+)
    | (?P<letter>[α-ωΑ-Ω∞ℓ])
    | (?P<sign>[-+*/^_!%°()\[\]{}|,√⌊⌋⌈⌉'=])
    )""",
    re.VERBOSE,
)
_STOP_WORDS = frozenset(
    """the is of and or if yes no not for all any to in on at by as it we he be do go so up us my an a non one two
    six ten red few men day cat dog sun mon tue wed thu fri sat jan feb mar apr may jun jul aug sep oct nov dec am
    pm""".split()
)
_FOREIGN = frozenset({"int", "iint", "oint", "sum", "prod", "lim"})
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log10"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉", "|": "|"}


def parse_expression(text: str) -> Node:
    """The tree of the whole text.

    Raises:
        UnreadableError: it is no expression.
        TooComplexError: it is too long or too deep.
    """
    try:
        parser = _Parser(_tokens(text))
        node = parser.expression()
        parser.expect_end()
    except UnreadableError:
        if any(f"\\{name}" in text for name in _FOREIGN):
            return _foreign(text)
        raise
    return node


def _foreign(text: str) -> Foreign:
    commands = set(re.findall(r"\\([A-Za-z]+)", text))
    if not commands & _FOREIGN or text.count("{") != text.count("}") or "«" in text:
        raise UnreadableError(text)
    if "%" in text:  # that library reads it in one way or another, by the version of its parser
        raise TooComplexError("a percentage in a sum, an integral or a limit")
    return Foreign(re.sub(r"\s+", " ", text))


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        if (based := _BASED.match(text, position)) is not None and (value := _value_in_base(based)) is not None:
            found.append(("value", value))
            position = based.end()
            continue
        token = _TOKEN.match(text, position)
        if len(found) >= _MAX_TOKENS:
            raise TooComplexError("too many signs")
        if token is None:
            raise UnreadableError(text[position : position + 20])
        kind = str(token.lastgroup)
        found.extend(_split_word(token[kind]) if kind == "word" else [(kind, token[kind])])
        position = token.end()
    return found


def _split_word(word: str) -> list[tuple[str, str]]:
    """A run of letters: a function, a constant, or a short product of variables."""
    if word in FUNCTIONS:
        return [("command", word)]
    if word in ("pi", "inf", "infty", "infinity"):
        return [("letter", "π" if word == "pi" else "∞")]
    for function in ("sin", "cos", "tan", "log", "ln"):
        if word.startswith(function) and len(word) == len(function) + 1:
            return [("command", function), ("word", word[-1])]
    if len(word) > 3 or word.lower() in _STOP_WORDS - {"a"}:
        raise UnreadableError(word)
    return [("word", letter) for letter in word]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    # tokens

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self._position + ahead
        return self._tokens[place] if place < len(self._tokens) else ("end", "")

    def _sign(self) -> str:
        kind, text = self._peek()
        return text if kind == "sign" else ""

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        self._position += 1
        return token

    def _take(self, sign: str) -> bool:
        if self._sign() == sign:
            self._position += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise UnreadableError(f"{sign!r} is missing before {self._peek()[1]!r}")

    def expect_end(self) -> None:
        """Refuse anything left over."""
        if self._peek()[0] != "end":
            raise UnreadableError(f"{self._peek()[1]!r} is left over")

    # sums, products, powers

    def expression(self) -> Node:
        """A sum."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TooComplexError("nested too deep")
        terms = [self._signed_product()]
        while self._sign() in ("+", "-"):
            terms.append(self._signed_product(needs_sign=True))
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Add(tuple(terms))

    def _signed_product(self, *, needs_sign: bool = False) -> Node:
        minus = False
        if needs_sign or self._sign() in ("+", "-"):
            minus = self._next()[1] == "-"
            if self._sign() in ("+", "-") and self._peek(1)[1] in ("+", "-"):
                raise UnreadableError("three signs")
            if self._sign() == "-":
                self._next()
                minus = not minus
        product = self._product()
        return negated(product) if minus else product

    def _product(self) -> Node:
        factors = [self._power()]
        while True:
            if self._take("*"):
                factors.append(self._signed_power())
            elif self._take("/"):
                factors.append(Pow(self._signed_power(), MINUS_ONE))
            elif self._begins_factor():
                factors.append(self._power())
            else:
                return factors[0] if len(factors) == 1 else Mul(tuple(factors))

    def _begins_factor(self) -> bool:
        """Whether a factor follows without a sign; a number only behind `!`: `3!4!` is a product, `x2` is none."""
        kind, text = self._peek()
        if kind == "number":
            return self._position > 0 and self._tokens[self._position - 1] == ("sign", "!")
        if kind == "sign":
            return text in "([{√⌊⌈" or (text == "|" and not self._bars)
        return kind in ("command", "word", "letter")

    _bars = 0  # of `|…|` that are open

    def _signed_power(self) -> Node:
        if self._take("-"):
            return negated(self._power())
        self._take("+")
        return self._power()

    def _power(self) -> Node:
        return self._raised(self._postfixed(self._atom()))

    def _raised(self, base: Node) -> Node:
        if not self._take("^"):
            return base
        return self._postfixed(Pow(base, self._script()))

    def _script(self) -> Node:
        """An exponent: a group, or one signed atom; `a^b^c` is `a^(b^c)`."""
        if self._take("-"):
            return negated(self._script())
        self._take("+")
        atom = self._number(self._next()[1]) if self._peek()[0] == "number" else self._atom()
        return self._raised(atom)

    def _postfixed(self, node: Node) -> Node:
        names = {"!": "factorial", "%": "percent", "°": "degree"}
        while self._sign() in names:
            node = Call(names[self._next()[1]], (node,))
        return node

    # atoms

    def _atom(self) -> Node:
        kind, text = self._next()
        match kind:
            case "number":
                return self._mixed(text)
            case "value":
                return Num(Fraction(text))
            case "command":
                return self._command(text)
            case "word" | "letter":
                return self._named(text)
            case "sign" if text in _CLOSING:
                return self._bracketed(text)
            case "sign" if text == "√":
                return Call("sqrt", (self._root_operand(),))
        raise UnreadableError(f"{text!r} begins no expression")

    def _bracketed(self, opening: str) -> Node:
        outer, self._bars = self._bars, int(opening == "|")
        inner = self.expression()
        self._expect(_CLOSING[opening])
        self._bars = outer
        match opening:
            case "|":
                return Call("abs", (inner,))
            case "⌊":
                return Call("floor", (inner,))
            case "⌈":
                return Call("ceiling", (inner,))
        return inner

    def _root_operand(self) -> Node:
        return self._number(self._next()[1]) if self._peek()[0] == "number" else self._atom()

    def _named(self, name: str) -> Node:
        if self._sign() == "_":
            self._next()
            name += "_" + self._index()
        while self._take("'"):
            name += "'"
        return Sym(name)

    def _index(self) -> str:
        if not self._take("{"):
            kind, text = self._next()
            if kind not in ("number", "word", "letter"):
                raise UnreadableError("no index")
            return text
        parts = []
        while not self._take("}"):
            kind, text = self._next()
            if kind == "end":
                raise UnreadableError("an open index")
            parts.append(text)
        return "".join(parts)

    def _mixed(self, text: str) -> Node:
        """A number, with the proper fraction behind it if there is one."""
        whole = self._number(text)
        if not text.isdigit():
            return whole
        start = self._position
        fraction = self._plain_fraction()
        if fraction is not None and 0 < fraction < 1:
            return Num(whole.value + fraction) if isinstance(whole, Num) else whole
        self._position = start
        return whole

    def _plain_fraction(self) -> Fraction | None:
        r"""`\frac{1}{2}` or `1/2` of bare digits, which makes a mixed number of the integer before it."""
        kind, text = self._peek()
        if kind == "command" and text == "frac":
            self._next()
            try:
                top, bottom = self._argument(), self._argument()
            except UnreadableError:
                return None
            plain = isinstance(top, Num) and isinstance(bottom, Num) and bottom.value != 0
            return top.value / bottom.value if plain else None  # type: ignore[union-attr]
        if kind == "number" and text.isdigit() and self._peek(1) == ("sign", "/"):
            bottom_kind, bottom_text = self._peek(2)
            if bottom_kind == "number" and bottom_text.isdigit() and int(bottom_text) != 0:
                self._position += 3
                return Fraction(int(text), int(bottom_text))
        return None

    def _number(self, text: str) -> Node:
        repeating = re.fullmatch(r"([0-9]*)\.([0-9]*)\s*\\(?:overline|bar)\s*\{([0-9]+)\}", text)
        if len(text) > _MAX_DIGITS:
            raise TooComplexError("too many digits")
        if repeating is not None:
            whole, fixed, period = repeating.groups()
            start = Fraction(int((whole + fixed) or "0"), 10 ** len(fixed))
            return Num(start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)))
        if "\\" in text:
            raise UnreadableError("digits under a bar")
        mantissa, _, exponent = text.lower().partition("e")
        if exponent and abs(int(exponent)) > _MAX_EXPONENT:
            return Mul((Num(Fraction(mantissa)), Pow(Num(Fraction(10)), Num(Fraction(int(exponent))))))
        return Num(Fraction(text))

    # commands

    def _command(self, name: str) -> Node:
        name = _ALIASES.get(name, name)
        special: dict[str, Callable[[], Node]] = {
            "frac": lambda: divided(self._argument(), self._argument()),
            "binom": lambda: Call("binomial", (self._argument(), self._argument())),
            "sqrt": self._square_root,
            "mathbb": lambda: Sym("ℝℤℚℕℂ"["RZQNC".index(self._letter_argument("RZQNC"))]),
            "log": self._logarithm,
            "sum": lambda: self._repeated(Add),
            "prod": lambda: self._repeated(Mul),
            "overline": lambda: Sym(f"overline {self._letters_argument()}"),
            "vec": lambda: Sym(f"vec {self._letters_argument()}"),
        }
        if name in special:
            return special[name]()
        if name in ("max", "min", "gcd", "lcm"):
            return Call(name, tuple(self._listed_arguments()))
        if name in FUNCTIONS or name in ("log10",):
            return self._function(name)
        raise UnreadableError(f"\\{name}")

    def _argument(self) -> Node:
        r"""`{…}`, or what LaTeX takes without braces: one digit or one letter."""
        kind, text = self._peek()
        if kind == "number" and text.isdigit():
            if len(text) > 1:
                self._tokens[self._position] = ("number", text[1:])
            else:
                self._position += 1
            return Num(Fraction(int(text[0])))
        return self._atom()

    def _square_root(self) -> Node:
        if self._take("["):
            degree = self.expression()
            self._expect("]")
            return Call("root", (self._root_operand(), degree))
        return Call("sqrt", (self._root_operand(),))

    def _repeated(self, joined: type[Add] | type[Mul]) -> Node:
        r"""`\sum_{k=1}^{4} …` between two integers, written out; of the factors that follow."""
        self._expect("_")
        self._expect("{")
        kind, name = self._next()
        self._expect("=")
        low = self.expression()
        self._expect("}")
        self._expect("^")
        high, body = self._script(), self._product()
        if kind not in ("word", "letter") or not isinstance(low, Num) or not isinstance(high, Num):
            raise UnreadableError("no bounds")
        count = high.value - low.value + 1
        if low.value.denominator != 1 or count.denominator != 1 or not 1 <= count <= _MAX_REPEATED:
            raise UnreadableError("not a few terms")
        terms = []
        for step in range(int(count)):
            patience.check()
            terms.append(substituted(body, name, Num(low.value + step)))
        return joined(tuple(terms))

    def _letters_argument(self) -> str:
        self._expect("{")
        letters = ""
        while self._peek()[0] in ("word", "letter"):
            letters += self._next()[1]
        self._expect("}")
        return letters

    def _letter_argument(self, allowed: str) -> str:
        letter = self._letters_argument()
        if len(letter) != 1 or letter not in allowed:
            raise UnreadableError(letter)
        return letter

    def _listed_arguments(self) -> list[Node]:
        self._expect("(")
        arguments = [self.expression()]
        while self._take(","):
            arguments.append(self.expression())
        self._expect(")")
        return arguments

    def _logarithm(self) -> Node:
        if self._take("_"):
            base = self._argument() if self._sign() != "(" else self._atom()
            return self._with_power(lambda argument: Call("log", (argument, base)))
        return self._with_power(lambda argument: Call("log", (argument,)))

    def _function(self, name: str) -> Node:
        if name in _INVERSE and self._inverse_follows():
            name = _INVERSE[name]
        return self._with_power(lambda argument: Call(name, (argument,)))

    def _inverse_follows(self) -> bool:
        written = [self._peek(ahead)[1] for ahead in range(5)]
        length = 5 if written == ["^", "{", "-", "1", "}"] else 3 if written[:3] == ["^", "-", "1"] else 0
        self._position += length
        return length > 0

    def _with_power(self, function: Callable[[Node], Node]) -> Node:
        power = self._script() if self._take("^") else None
        node = function(self._function_argument())
        return node if power is None else Pow(node, power)

    def _function_argument(self) -> Node:
        r"""A bracket, or the factors that follow: `\sin 2x` is sin(2x), `\sin x \cos x` a product."""
        if self._sign() in ("(", "[", "{"):
            return self._postfixed(self._bracketed(self._next()[1]))
        minus = self._take("-")
        factors = [self._power()]
        while self._begins_factor() and not (self._peek()[0] == "command" and self._peek()[1] in FUNCTIONS):
            factors.append(self._power())
        product = factors[0] if len(factors) == 1 else Mul(tuple(factors))
        return negated(product) if minus else product


def _value_in_base(found: re.Match[str]) -> str | None:
    """The value of digits with a base, as a quotient; None where the subscript is the index of a variable."""
    digits, base = found[1], int(found[2] or found[3])
    whole, _, rest = digits.partition(".")
    named = not digits[0].isdigit() and (base <= 10 or len(digits) < 2)
    if named or not 2 <= base <= 36 or len(digits) > _MAX_DIGITS:
        return None
    try:
        return str(Fraction(int(whole + rest, base), base ** len(rest)))
    except ValueError:
        return None
