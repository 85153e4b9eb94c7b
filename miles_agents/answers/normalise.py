r"""One spelling for what can be written in many ways: Unicode, LaTeX commands, separators, wrapping.

What comes out has single characters for the common commands: `*` products, `≤ ≥ ≠ ∈ ∪ ∩ ∖` relations and sets, `π ∞ ∅
± ∓ °`, Greek letters, `⟅ ⟆` for the braces of sets, `%` for percent, `$` for dollars only, and `«…»` around what was
`\text{…}`.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_DASHES = re.compile("[\u2010-\u2015\u2212\ufe63\uff0d\u207b]")
_QUOTES = str.maketrans("‘’‚“”„′", "'''\"\"\"'")
_KEPT_LETTERS = {"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℚ": r"\mathbb{Q}", "ℕ": r"\mathbb{N}", "ℂ": r"\mathbb{C}"}

_GREEK = dict(
    zip(
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
        "omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split(),
        "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ",
        strict=True,
    )
) | {"varepsilon": "ε", "vartheta": "θ", "varphi": "φ", "varrho": "ρ", "varsigma": "ς"}
_SIGNS = {
    **dict.fromkeys(("cdot", "times", "ast", "cdotp", "bullet"), "*"),
    **dict.fromkeys(("div", "slash"), "/"),
    **dict.fromkeys(("le", "leq", "leqslant", "leqq"), "≤"),
    **dict.fromkeys(("ge", "geq", "geqslant", "geqq"), "≥"),
    **dict.fromkeys(("ne", "neq"), "≠"),
    **dict.fromkeys(("emptyset", "varnothing"), "∅"),
    **dict.fromkeys(("setminus", "smallsetminus", "backslash"), "∖"),
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("quad", "qquad", "enspace", "enskip", "thinspace", "space"), " "),
    **dict.fromkeys(("lbrack",), "["),
    **dict.fromkeys(("rbrack",), "]"),
    **dict.fromkeys(("lbrace",), "⟅"),
    **dict.fromkeys(("rbrace",), "⟆"),
    "langle": "(", "rangle": ")", "lt": "<", "gt": ">", "in": "∈", "cup": "∪", "cap": "∩", "infty": "∞",
    "infin": "∞", "pm": "±", "mp": "∓",
    "degree": "°", "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "colon": ":", "percent": "%",
    "lparen": "(", "rparen": ")", "euro": "€", "pounds": "£", "yen": "¥", "cent": "¢", "prime": "'",
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac"),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom"),
    **dict.fromkeys(("ldots", "dots", "cdots"), "…"),
}  # fmt: skip
_DROPPED = frozenset(
    """left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle textstyle
    scriptstyle limits nolimits mathopen mathclose mathord mathstrut strut rm bf it sf tt boldmath normalsize""".split()
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_CHARACTERS = str.maketrans(
    {"·": "*", "⋅": "*", "×": "*", "∗": "*", "∙": "*", "•": "*", "÷": "/", "∕": "/", "⁄": "/", "⩽": "≤", "⩾": "≥",
     "∆": "Δ", "µ": "μ", "º": "°", "˚": "°", "∖": "∖", "，": ",", "；": ";", "：": ":", "∶": ":", "\u2061": None,
     "\u2062": "*", "ϕ": "φ", "ϵ": "ε"}
)  # fmt: skip
_WORDS = r"text|textrm|textbf|textit|textsf|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname\*?|mathop|bm"
_WORD_GROUP = re.compile(rf"\\(?:{_WORDS})\s*\{{([^{{}}]*)\}}")
_INNER_DOLLARS = re.compile(r"\$([^$«»]*)\$")
_SEPARATING = re.compile(r"\s*(?:,\s*)?(?:and|or|und|,)\s*")
FUNCTIONS = frozenset(
    """sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth asin acos atan ln log lg
    exp sqrt max min gcd lcm""".split()
)
_PERCENT_WORDS = re.compile(r"(?<![A-Za-z])per[ -]?cent(?![A-Za-z])", re.IGNORECASE)
_DEGREES = re.compile(r"\^\s*(?:\{\s*(?:\\circ|∘|°)\s*\}|\\circ(?![A-Za-z])|∘|°)")
_COLOURED = re.compile(r"\\(?:textcolor|color)\s*\{[^{}]*\}|\\hspace\*?\{[^{}]*\}|\\phantom\{[^{}]*\}")
_MATH_DOLLARS = re.compile(r"(?<!\\)\$(?=\S)([^$]*?[^\s$\\])\$(?![0-9])")
_ALL = r"[0-9]{1,3}"
_GROUPS_TIGHT = re.compile(rf"(?<![0-9.,]){_ALL}(?:(?:\{{,\}}\s?|,?\\[,; ]|~|[ ])[0-9]{{3}})+(?![0-9])")
_THIN_SPACES = re.compile(r"\\[,;:! >]|~")
_ESCAPED_TWICE = re.compile(r"\\\\(?=[A-Za-z{}%$,!])")
_DOUBLE_BACKSLASH = re.compile(r"\\\\")
_COMMAS = re.compile(r"(?<![0-9.,])[0-9]+(?:,[0-9]+)+(?![0-9])(?!,[0-9])")
_COMMA_GROUPS = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+")


def unicode_spelling(text: str) -> str:
    """NFKC, after superscripts, subscripts and fractions were spelled out, which NFKC would turn into plain digits."""
    for sign, latex in _KEPT_LETTERS.items():
        text = text.replace(sign, latex)
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + "".join(_SUPERSCRIPTS[each] for each in run[0]) + "}", text)
        text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + "".join(_SUBSCRIPTS[each] for each in run[0]) + "}", text)
        text = _VULGAR.sub(_spelled_fraction, text)
        text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).translate(_CHARACTERS)
        text = _DASHES.sub("-", text).translate(_QUOTES)
        text = "".join(each for each in text if unicodedata.category(each) != "Cf")
    return text


def _spelled_fraction(sign: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", sign[0]).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom or 1}}}"


def unwrapped(text: str) -> str:
    r"""Without what only surrounds an answer: spaces, `$…$`, boxes, `####`, emphasis, quotes, a final full stop."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if text.startswith("####"):
            text = text.strip("#").strip()
        text = _without_stop(text)
        for opening, closing in _PAIRS:
            if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                text = _inside(text, opening, closing)
    return text


_PAIRS = (
    ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("*", "*"), ("`", "`"),
    ('"', '"'), ("'", "'"), (r"\boxed{", "}"), (r"\fbox{", "}"), ("{", "}"), (r"\text{", "}"), (r"\mathrm{", "}"),
    (r"\textbf{", "}"), (r"\mathbf{", "}"), (r"\mbox{", "}"), (r"\textrm{", "}"), (r"\textit{", "}"), (r"\emph{", "}"),
)  # fmt: skip


def _without_stop(text: str) -> str:
    if text.endswith(".") and not text.endswith(("..", r"\.")):
        return text[:-1].rstrip()
    for spaced in (r"\,", r"\;", r"\ ", r"\!"):
        if text.endswith(spaced):
            return text[: -len(spaced)].rstrip()
    return text


def _inside(text: str, opening: str, closing: str) -> str:
    """What is between the two, if they belong together."""
    inner = text[len(opening) : len(text) - len(closing)]
    if closing == "}":
        depth = 0
        for brace in re.finditer(r"\\.|[{}]", inner, re.DOTALL):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth < 0:
                return text
        plain_set = opening == "{" and ("," in inner or not inner)  # {3,5}: a set written without backslashes
        return text if depth or inner.endswith("\\") or plain_set else inner
    return text if opening in inner or closing in inner or not inner.strip() else inner


def normalised(text: str) -> str:
    """The text in the spelling of this module; equal answers may still differ, different ones stay different."""
    text = unicode_spelling(text)
    is_table = r"\begin" in text  # elsewhere a double backslash was escaped once too often
    text = _DOUBLE_BACKSLASH.sub(" ⏎ ", text) if is_table else _ESCAPED_TWICE.sub(r"\\", text)
    text = unwrapped(text)
    text = _COLOURED.sub("", text)
    text = _PERCENT_WORDS.sub("%", text).replace(r"\%", "%")
    text = _DEGREES.sub("°", text)
    text = _based_words(text)
    for _ in range(3):  # groups within groups
        text = _WORD_GROUP.sub(_word, text)
    text = _without_boxes(text)
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = _MATH_DOLLARS.sub(r" \1 ", text).replace(r"\$", "$")
    text = text.replace(r"\{", "⟅").replace(r"\}", "⟆")
    text = text.replace(r"\!", "").replace(r"\|", "|")
    text = _GROUPS_TIGHT.sub(lambda run: re.sub(r"[^0-9]", "", run[0]), text)
    text = _THIN_SPACES.sub(" ", text)
    text = _COMMAND.sub(_sign, text)
    text = text.replace("<=", "≤").replace(">=", "≥").replace("**", "^")
    text = re.sub(r"°\s*", "°", text)
    text = _joined_groups(text)
    return re.sub(r"\s+", " ", text).strip()


_LETTER_STYLES = ("mathbf", "mathit", "bm", "mathsf")


def _word(group: re.Match[str]) -> str:
    content = group[1].strip()
    if content in FUNCTIONS:
        return f"\\{content} "
    command = group[0][1:].partition("{")[0].strip()
    if len(content) == 1 and (content in "eixyzd" or command in _LETTER_STYLES) and "text" not in command:
        return f" {content} "
    if content[:1].isdigit():
        return f" {content} "
    if _SEPARATING.fullmatch(content) and content:
        return f" {content} "
    if re.fullmatch(r"[\s$%°.,;:+\-*/=^0-9]*", content):
        return f" {content} "
    if content.startswith("%"):
        return f"% «{content[1:].strip()}»" if content[1:].strip() else "%"
    return f" «{content}» "


def _sign(command: re.Match[str]) -> str:
    name = command[1]
    if name in _DROPPED:
        return " "
    if name in _SIGNS:
        return _SIGNS[name] + (" " if _SIGNS[name].startswith("\\") else "")
    if name in _GREEK:
        return f"{_GREEK[name]} "
    return command[0]


_BASES = dict(
    zip(
        "two three four five six seven eight nine ten eleven twelve sixteen".split(),
        (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16),
        strict=True,
    )
)
_BASE_WORD = re.compile(rf"_\s*\{{?\s*(?:\\(?:text|mathrm|textrm)\s*\{{)?\s*({'|'.join(_BASES)})\s*\}}{{0,2}}")


def _based_words(text: str) -> str:
    return _BASE_WORD.sub(lambda found: f"_{{{_BASES[found[1]]}}}", text)


def _without_boxes(text: str) -> str:
    return re.sub(r"\\(?:boxed|fbox)\s*\{", "{", text)


def _joined_groups(text: str) -> str:
    """Thousands separators go: `1,234` becomes 1234; within brackets only where another comma clearly separates."""
    inside: list[int] = []  # depth of brackets before each character, counted when first needed

    def joined(run: re.Match[str]) -> str:
        if not _COMMA_GROUPS.fullmatch(run[0]):
            return run[0]
        if not inside:
            inside.extend(accumulate((_BRACKETS.get(sign, 0) for sign in text), initial=0))
        if inside[run.start()] and ",0" not in run[0] and ", " not in text:
            return run[0]
        return run[0].replace(",", "")

    return _COMMAS.sub(joined, text)


_BRACKETS = {"(": 1, "[": 1, "⟅": 1, ")": -1, "]": -1, "⟆": -1}
