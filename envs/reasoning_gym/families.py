"""What is known of the families of `reasoning-gym` (tried: 0.1.23) and matters for training on them.

A scorer of the package may give partial credit, and a few give some to anything. That is recorded here, family by
family, and tested; it is not changed.
"""

from __future__ import annotations

import re

NOT_OFFERED = {"composite": "it mixes other families; give them as a list: env.family=[…]"}

WITHOUT_ANSWER = {  # the package gives no solution of its own; its scorer is used all the same
    "boxnet": "a plan is simulated",
    "rush_hour": "moves are simulated",
}

ANSWER_IN_METADATA = {  # `answer` is None: there are many right ones, of which this key holds one
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}

JUNK_SCORES = {  # what text that answers nothing can score (in the tags, or empty), and why
    "arc_agi": (0.05, "any answer of any form"),
    "color_cube_rotation": (0.01, "any answer"),
    "advanced_geometry": (0.01, "any answer"),
    "countdown": (0.01, "any answer"),
    "cryptarithm": (0.1, "any answer"),
    "emoji_mystery": (0.01, "any answer"),
    "figlet_font": (0.1, "letters in the right place"),
    "fraction_simplification": (0.01, "any answer"),
    "game_of_life_halting": (1.0, "whatever does not say True counts as False"),
    "palindrome_generation": (0.02, "any answer"),
    "power_function": (0.01, "any answer"),
    "prime_factorization": (0.01, "an empty answer"),
    "propositional_logic": (0.25, "words are read as variables"),
    "puzzle24": (0.01, "any answer"),
    "rearc": (0.05, "any answer of any form"),
    "rubiks_cube": (0.01, "any answer"),
    "rush_hour": (0.01, "any answer"),
    "sentence_reordering": (0.05, "any answer"),
    "spell_backward": (0.25, "letters in the right place"),
    "tsumego": (0.01, "any answer"),
}
UNSOUND_FROM = 0.5  # families in which junk can score this much are not part of `env.family=all`

# Scorers that evaluate the answer as Python: what they are given may be data, and never code.
_LITERALS = re.compile(r"[\w\s,\[\]'\"-]*")  # without brackets, dots and operators nothing is called
_EXPRESSIONS = re.compile(r"[A-Za-z0-9\s+\-*/^().,=|]*")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")
_FUNCTIONS = frozenset(
    """
    exp log ln sqrt sin cos tan asin acos atan sinh cosh tanh sec csc cot pi Abs abs
    """.split()
)
_EVALUATED_AS_LITERALS = frozenset(["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"])
_EVALUATED_AS_EXPRESSIONS = frozenset(
    ["countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"]
)


def may_be_scored(family: str, answer: str) -> bool:
    """False if the family's scorer would evaluate the answer as Python and it is more than data or a formula.

    Formulas may name variables of one letter and the usual functions; sympy's parser would call any other name.
    """
    if family in _EVALUATED_AS_LITERALS:
        return _LITERALS.fullmatch(answer) is not None
    if family in _EVALUATED_AS_EXPRESSIONS:
        names = re.findall(r"[A-Za-z]+", answer)
        known = all(len(name) == 1 or name in _FUNCTIONS for name in names)
        return known and _EXPRESSIONS.fullmatch(answer) is not None and not _ATTRIBUTE.search(answer)
    return True
