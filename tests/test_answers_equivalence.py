"""When two answers are equal: tables of pairs fixed by hand, and properties that hold for all answers."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from answers_pairs import Pair, families, pairs
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_agents.answers import AnswerPolicy, equivalent, extract
from miles_agents.answers.compare import NoProver, compare

FAMILIES = families()


@pytest.mark.parametrize("pair", pairs(), ids=str)
def test_pairs_fixed_by_hand_get_their_verdict_in_both_directions(pair: Pair) -> None:
    assert equivalent(pair.gold, pair.answer, policy=pair.policy).correct is pair.equal
    assert equivalent(pair.answer, pair.gold, policy=pair.policy).correct is pair.equal


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (r"\int_0^1 x^2 dx", "1/3", True),  # [x³/3] from 0 to 1
        (r"\int_0^1 x^2 dx", "0.333", False),
        (r"\int_0^{0.5} 2x dx", "0.25", True),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", True),
        (r"\lim_{x \to 0} \frac{\sin x}{x}", "1", True),
        (r"\sqrt{x^2}", "x", False),  # at −1: 1 and −1
        (r"\sqrt{x^2}", "|x|", True),
        (r"\ln(x^2)", r"2\ln x", True),  # wherever both are real
        (r"\log 100", "2", True),  # a base that is not written may be 10 …
        (r"\log e", "1", True),  # … or e,
        (r"\log 100 + \log e", "3", False),  # but the same one everywhere
        (r"\sin x + 10^{-40}", r"\sin x", False),
        (r"\cos(\pi/7)-\cos(2\pi/7)+\cos(3\pi/7)", "1/2", True),
        (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1", True),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", True),  # (1 + √2)² = 3 + 2√2
        (r"\sqrt[3]{-8}", "-2", True),
        ("10^{10^{10}} + 1", "10^{10^{10}}", False),
        ("2^{4^{8^{16}}}", "2^{2^{2 \\cdot 8^{16}}}", True),
        ("(10^9)!", "(10^9 + 1)!", False),
        ("x^2 + 1", "10^{10^{10}}", False),  # one varies, one does not
        ("x^2 + 1 - x^2", "10^{10^{10}}", False),
        ("2 hours and 30 minutes", "150 min", True),
        ("5 feet 3 inches", "63 inches", True),
        (r"20^\circ C", r"68^\circ\text{F}", True),  # 20 · 9/5 + 32
        (r"0.\overline{3}", "1/3", True),
        (r"0.1\overline{6}", "1/6", True),
        ("5 million", "5000000", True),
        ("5 million", "5", False),
        ("no", "on", False),  # words are no products
        ("ab", "ba", True),
        ("(1,234)", "(1, 234)", True),  # in brackets a comma separates
        ("1/0", "1/0.0", False),  # no value
        ("1/0", "1/0", True),  # the same text
        ("x = 1, y = 2", "y = 2, x = 1", True),
        ("x = 1, y = 2", "2, 1", False),
    ],
)
def test_what_the_tables_leave_out_is_decided_exactly(first: str, second: str, equal: bool) -> None:
    assert equivalent(first, second).correct is equal
    assert equivalent(second, first).correct is equal


@pytest.mark.parametrize(
    ("policy", "first", "second", "equal"),
    [
        (AnswerPolicy(percent_asked=True), r"35\%", "35", True),
        (AnswerPolicy(percent_asked=True), r"35\%", "0.35", True),
        (AnswerPolicy(percent_asked=True), r"-5\%", "-5", True),
        (AnswerPolicy(percent_asked=True), r"35\%", "36", False),
        (AnswerPolicy(percent_asked=True), "0.35", "35", False),
        (AnswerPolicy(base_asked=True), "1011_2", "1011", True),
        (AnswerPolicy(base_asked=True), "1011_2", "1011_3", False),
        (AnswerPolicy(base_asked=True), "1011_2", "1010", False),
        (AnswerPolicy(choices=True), "E", "(E)", True),
        (AnswerPolicy(choices=True), "E", "e.", True),
        (AnswerPolicy(choices=True), "E", r"\text{E}", True),
        (AnswerPolicy(choices=True), "E", "E: it costs less", True),
        (AnswerPolicy(choices=True), "(A)", "A) a dog", True),
        (AnswerPolicy(choices=True), "E", "C or E", False),
        (AnswerPolicy(choices=True), "C", "C or E", False),
        (AnswerPolicy(choices=True), "C", "(C)(E)", False),
        (AnswerPolicy(choices=True), "C", "(C), (E)", False),
        (AnswerPolicy(choices=True), "E", "Everything", False),
        (AnswerPolicy(choices=True), "A", "A dog", False),
    ],
)
def test_options_of_the_policy_work_in_both_directions(
    policy: AnswerPolicy, first: str, second: str, equal: bool
) -> None:
    assert equivalent(first, second, policy=policy).correct is equal
    assert equivalent(second, first, policy=policy).correct is equal


@pytest.mark.parametrize(
    "answer", [None, "", " ", "17 +", r"\frac{1}{", "{", "$", r"\boxed{", "(", "1,,2", "= ", "5 +"]
)
def test_nothing_and_unfinished_text_are_wrong_and_not_undecided(answer: str | None) -> None:
    for gold in ("17", "0", "x", "Evelyn", "5"):
        assert equivalent(gold, answer).correct is False
        assert equivalent(answer, gold).correct is False


numbers = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**4)


@settings(deadline=None, max_examples=300)  # a busy machine is no failure
@given(numbers, st.sampled_from(sorted(FAMILIES)), st.sampled_from(sorted(FAMILIES)), st.integers(0, 10**6))
def test_a_number_rewritten_in_two_ways_stays_equal_and_near_misses_are_never(
    value: Fraction, one: str, other: str, seed: int
) -> None:
    value = Fraction(round(value * 10**4), 10**4)  # a finite decimal, as the families write them
    first, second = FAMILIES[one][0](value, Random(seed)), FAMILIES[other][0](value, Random(seed + 1))
    missed = FAMILIES[other][1](value, Random(seed + 2))
    plain = f"{value.numerator}/{value.denominator}"
    assert equivalent(plain, first).correct is True
    assert equivalent(plain, second).correct is True
    assert equivalent(plain, missed).correct is False


@settings(deadline=None)
@given(numbers, numbers)
def test_different_rationals_are_never_equal(first: Fraction, second: Fraction) -> None:
    left, right = rf"\frac{{{first.numerator}}}{{{first.denominator}}}", f"{second.numerator}/{second.denominator}"
    assert equivalent(left, right).correct is (first == second)
    assert equivalent(left, f"{first.numerator}/{first.denominator}").correct is True


PIECES = ["1", "2", "35", "0.5", "x", "y", "n", "+", "-", "*", "/", "^", "(", ")", "{", "}", "[", "]", ",", " ", "=",
          "<", r"\frac{1}{2}", r"\sqrt{2}", r"\pi", "%", "$", r"\pm ", r"\text{ cm}", " m", "!", "_2", ":", "and", "or",
          r"\boxed{", "Evelyn", ".", "½", "√", "|", r"\{", r"\}", "°", "∞", "10^{10^{10}}"]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=12)


@settings(deadline=None, max_examples=500)
@given(texts, texts, st.sampled_from([AnswerPolicy(), AnswerPolicy(percent_asked=True, base_asked=True, choices=True)]))
def test_comparison_is_symmetric_and_never_raises(first: str, second: str, policy: AnswerPolicy) -> None:
    forth, back = (compare(*each, policy, NoProver()) for each in ((first, second), (second, first)))
    assert forth.correct is back.correct


@settings(deadline=None, max_examples=300)
@given(texts)
def test_every_text_equals_itself_and_what_extract_gives_is_compared_as_it_is(text: str) -> None:
    assert equivalent(text, text).correct is True
    answer = extract(rf"So \boxed{{{text}}}")
    assert answer is None or equivalent(answer, answer).correct is True


WRAPPINGS = (r"\boxed{{{}}}", r"\fbox{{{}}}", r"\left({}\right)", r"\displaystyle {}", " {} ", "{{{}}}")
DELIMITERS = ("{}", "${}$", "$${}$$", r"\({}\)", r"\[{}\]")  # mathematics begins once
LINES = ("{}", "{}.", "**{}**", "**{}.**", "#### {}")
ANSWERS = (
    "17",
    "-0.5",
    r"\frac{3}{4}",
    r"35\%",
    r"\sqrt{2}",
    "x^2+1",
    "1{,}234",
    "2 1/2",
    r"5\text{ cm}",
    "10^{10^{10}}",
)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(ANSWERS),
    st.sampled_from(ANSWERS),
    st.lists(st.sampled_from(WRAPPINGS), max_size=3),
    st.sampled_from(DELIMITERS),
    st.sampled_from(LINES),
)
def test_wrapping_changes_no_verdict_however_often_it_is_done(
    gold: str, answer: str, wrappings: list[str], delimiter: str, line: str
) -> None:
    wrapped = answer
    for wrapping in [*wrappings, delimiter, line]:
        wrapped = wrapping.format(wrapped)
    assert equivalent(gold, wrapped).correct is (gold == answer)
    assert equivalent(wrapped, wrapped + " ").correct is True
    assert equivalent(extract(rf"\boxed{{{wrapped}}}"), answer).correct is True
