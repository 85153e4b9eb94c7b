"""Answer extraction and exact numeric comparison. Values worked out by hand."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_agents.answers import extract_boxed, numbers_equal, parse_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{9}", "9"),
        (r"\fbox{42}", "42"),
        (r"First \boxed{9}, no: \boxed{8}.", "8"),
        (r"\fbox{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \fbox{2}", "2"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces count for nothing
        (r"\boxed{a\\}", r"a\\"),  # an escaped backslash, then the end
        ("\\boxed{1\n2}", "1\n2"),
    ],
)
def test_the_last_closed_box_is_the_answer(text, expected):
    assert extract_boxed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I considered 9 and rejected it. I do not know.",
        " ".join(map(str, range(21))),
        r"First \boxed{9}. Actually it is \boxed{",  # never an earlier one
        r"First \boxed{9}. Actually it is \boxed{8",
        r"First \boxed{9}. Actually it is \fbox{8",
        r"\boxed{9\}",
        r"\boxed{{9}",
        r"\boxed 9",
        r"boxed{9}",
    ],
)
def test_no_box_or_an_unclosed_last_box_is_no_answer(text):
    assert extract_boxed(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"<think> maybe \boxed{9}, try again: 3 plus", None),
        (r"<think>\boxed{9}</think> The answer is \boxed{8}", "8"),
        (r"<think>\boxed{9}</think> I do not know.", None),
        (r"\boxed{8} <think>or \boxed{9}</think>", "8"),
        (r"\boxed{8} <think>or \boxed{9}", "8"),
        (r"so \boxed{9}</think> then", None),  # the prompt had opened the thinking
        (r"so \boxed{9}</think> then \boxed{8}", "8"),
        (r"<think>a<think>b</think>\boxed{9}</think> \boxed{8}", "8"),
        (r"\bo<think></think>xed{9}", None),
        (r"\boxed{<think>1</think>", None),
    ],
)
def test_boxes_inside_thinking_do_not_count(text, expected):
    assert extract_boxed(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 200_000,
        "\\boxed{" + "{" * 500_000 + "}" * 499_999,
        "\\boxed{" + "\\" * 1_000_001,
        "<think>" * 100_000 + "</think>" * 100_000,
        "\\boxed{1}" + "</think>" * 200_000,
    ],
)
def test_extraction_takes_linear_time_on_hostile_text(text):
    started = time.perf_counter()
    assert extract_boxed(text) is None
    assert time.perf_counter() - started < 2.0  # ~0.1 s; a quadratic scan takes minutes


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(alphabet="\\boxedf{}thnk</> 12", max_size=60))
def test_extraction_never_raises(text):
    assert extract_boxed(text) is None or isinstance(extract_boxed(text), str)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("7.0", Fraction(7)),
        ("007", Fraction(7)),
        ("5.", Fraction(5)),
        (".5", Fraction(1, 2)),
        ("+5", Fraction(5)),
        ("-5", Fraction(-5)),
        ("−5", Fraction(-5)),
        ("1,234", Fraction(1234)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("1{,}234", Fraction(1234)),
        (r"1\,234", Fraction(1234)),
        ("1e3", Fraction(1000)),
        ("2.5E-4", Fraction(1, 4000)),
        ("3/4", Fraction(3, 4)),
        ("-6/8", Fraction(-3, 4)),
        ("3 / -4", Fraction(-3, 4)),
        ("0.5/0.25", Fraction(2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{1}{2}", Fraction(-1, 2)),
        (r"\tfrac{-1}{-2}", Fraction(1, 2)),
        (r"35\%", Fraction(7, 20)),
        ("35%", Fraction(7, 20)),
        ("$18", Fraction(18)),
        (r"\$1,800.50", Fraction(3601, 2)),
        ("-$5", Fraction(-5)),
        ("$18$", Fraction(18)),
        (" 18 ", Fraction(18)),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "$", "$$", "$1$2$", ".", "1,23", "1234,567", ",123", "--5", "- 5", "2 1/2", r"2\frac{1}{2}",
        "18 dollars", "5 %%", "x = 18", "17+1", "2^3", "inf", "nan", "Infinity", "1/0", r"\frac{1}{0}", "1/2/3",
        "0x10", "1_000", "1e", "1e3.5", "1e999999999", "1e-999999999", "1e1001", "٣", "１２", "1 2", "True",
        "__import__('os')",
    ],
)  # fmt: skip
def test_anything_else_is_no_number_and_equals_nothing(text):
    assert parse_number(text) is None
    assert not numbers_equal(text, text)


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("145.0", "145", True),
        ("1,000", "1e3", True),
        ("0.1", "1/10", True),
        ("35%", "0.35", True),
        ("35%", "35", False),
        ("0.35", "35", False),
        ("0.3", "0.30000000000000004", False),  # 0.1 + 0.2 in floats
        ("0.0000003", "0.0000004", False),
        ("1/3", "0.3333333333333333", False),
        ("9007199254740993", "9007199254740992", False),  # 2^53 + 1: equal as floats
        ("1e1000", "1e999", False),
        ("-0", "0", True),
        ("5", "-5", False),
    ],
)
def test_comparison_is_exact_in_both_directions(first, second, equal):
    assert numbers_equal(first, second) is equal
    assert numbers_equal(second, first) is equal


def test_huge_numbers_cost_nothing():
    started = time.perf_counter()
    for text in ("9" * 1_000_000, "1," + "234," * 250_000, "1e" + "9" * 500_000, "1/" * 500_000, "1e1000/1e-1000"):
        parse_number(text)
    assert time.perf_counter() - started < 0.5


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(), st.integers(min_value=1, max_value=10**12))
def test_quotients_equal_themselves_in_every_spelling(top, bottom):
    assert numbers_equal(f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}")
    assert parse_number(f"{top}/{bottom}") == Fraction(top, bottom)
    assert not numbers_equal(f"{top}/{bottom}", f"{top + 1}/{bottom}")
