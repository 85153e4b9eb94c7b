"""Answer checking against known faults of other checkers: percentages, false equals, missing boxes, letters."""

from __future__ import annotations

import pytest

from miles_agents.answers import AnswerPolicy, Verdict, answer_reward, equivalent, extract
from miles_agents.errors import FailureCause, GraderError

# --- A01: percentages -------------------------------------------------------------------------------------------------

PERCENTAGES = [
    (r"35\%", "35", False),  # by default nobody asked for a percentage
    (r"35\%", "0.35", True),
    (r"35\%", "7/20", True),
    (r"35\%", "35 percent", True),
    (r"35\%", r"\boxed{35\%}", True),
    ("0.35", r"\boxed{35\%}", True),
    ("35", r"\boxed{35\%}", False),
    ("0.35", "35", False),
]
BARE_AND_PERCENT = {"35", r"35\%", r"\boxed{35\%}"}


@pytest.mark.parametrize(("gold", "answer", "equal"), PERCENTAGES)
def test_A01_a_percentage_is_its_hundredth_in_both_directions(gold: str, answer: str, equal: bool) -> None:
    assert equivalent(gold, answer).correct is equal
    assert equivalent(answer, gold).correct is equal


@pytest.mark.parametrize(("gold", "answer", "equal"), PERCENTAGES)
def test_A01_where_the_question_asks_for_a_percentage_the_bare_number_is_right_too(
    gold: str, answer: str, equal: bool
) -> None:
    asked = AnswerPolicy(percent_asked=True)
    expected = equal or {gold, answer} <= BARE_AND_PERCENT
    assert equivalent(gold, answer, policy=asked).correct is expected
    assert equivalent(answer, gold, policy=asked).correct is expected


# --- A05: different answers are never equal ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1/1501!", "1/1503!"),  # their quotient is 1502 · 1503
        ("2^{-120}", "2^{-119}"),  # 2
        ("0.0000003", "0.0000004"),  # 4/3
        (r"1-\frac{1}{\mathrm{e}}", r"1+\frac{1}{\mathrm{e}}"),  # 0.632 and 1.368
        ("5x-2y+9=0", "7x+3y+9=0"),  # slopes 5/2 and −7/3
        (r"\pm 17", "17"),
        ("k=3,5,7", "k=3,5,8"),
        ("S=(0,2)", "S=(0,2.5)"),
        ("1011_2", "1011_3"),  # 11 and 31
        ("10^{-40}", "10^{-41}"),
        (r"\pi", "3.14159265358979323846264338327950288"),
        (r"\sqrt{2}", "1.41421356237309504880168872420969807"),
        (r"\sin 1", "0.84147098480789650665"),
        ("3x+1=0", "y+1=0"),
        ("x^2 + 1", "x^2 - 1"),
        (r"\frac{1}{2}, 3", r"\frac{1}{3}, 3"),
    ],
)
def test_A05_different_answers_are_never_equal(first: str, second: str) -> None:
    assert equivalent(first, second).correct is False
    assert equivalent(second, first).correct is False


# --- A06: only a given answer counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("I considered 9 and rejected it. I do not know.", 0.0),
        (r"First \boxed{9}. Actually it is \boxed{", 0.0),
        (r"<think> maybe \boxed{9}, try again: 3 plus", 0.0),
        (r"<think>\boxed{9}</think> The answer is \boxed{8}", 0.0),
        (r"\boxed{9}", 1.0),
        (" ".join(map(str, range(21))), 0.0),
        ("The answer is 9.", 0.0),
        (r"maybe \boxed{9}</think> I give up.", 0.0),
        (r"maybe \boxed{8}</think> It is \boxed{9}.", 1.0),
        ("Three times three.\n#### 9", 1.0),
        ("#### 9\nNo, wait.\n#### 8", 0.0),
        (r"#### 9" + "\n" + r"\boxed{", 0.0),
        ("<think>\n#### 9\n</think>\nI do not know.", 0.0),
        ("", 0.0),
    ],
)
async def test_A06_mentioning_the_answer_earns_nothing(text: str, reward: float) -> None:
    assert await answer_reward(text, "9") == reward


# --- A07: letters and wrapping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (r"\boxed{\text{E}}", 1.0),
        (r"\boxed{E: it costs less}", 1.0),
        (r"first \boxed{C}, then again \boxed{D}, finally \boxed{E}", 1.0),
        (r"\boxed{C or E}", 0.0),
        (r"\boxed{(E)}", 1.0),
        (r"\boxed{\textbf{(E)}}", 1.0),
        (r"\boxed{\text{E. } 12}", 1.0),
        (r"\fbox{E}", 1.0),
        (r"\boxed{C}", 0.0),
        ("The answer is (E).", 1.0),
        ("So the correct option is **E**.", 1.0),
        ("Because it costs less:\nE", 1.0),
        ("The answer is C. On second thoughts, the answer is E.", 1.0),
        ("The answer is C or E.", 0.0),
        ("The answer is not E.", 0.0),
        ("Is the answer E?", 0.0),
        ("E costs less than C.", 0.0),
    ],
)
async def test_A07_a_boxed_letter_counts_with_its_wrapping_and_its_text(text: str, reward: float) -> None:
    assert await answer_reward(text, "E", choices=True) == reward


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        (r"\fbox{42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        ("#### 42", "42"),
    ],
)
async def test_A07_boxes_are_stripped_once_and_completely(text: str, gold: str) -> None:
    assert await answer_reward(text, gold) == 1.0


@pytest.mark.parametrize("answer", ["42", r"\fbox{42}", r"\boxed{\boxed{42}}", "#### 42", r"\frac{1}{2}", r"\text{E}"])
def test_A07_comparing_is_idempotent_on_what_was_extracted(answer: str) -> None:
    once = extract(rf"\boxed{{{answer}}}")
    assert once is not None
    assert equivalent(answer, once).correct is True
    assert equivalent("42", once).correct is ("42" in answer)


def test_A07_a_box_takes_what_is_between_its_own_braces() -> None:
    assert extract(r"\boxed{\text{E}}") == r"\text{E}"
    assert extract(r"\boxed {\frac{1}{2}} and more {}") == r"\frac{1}{2}"
    assert extract(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert extract(r"The answer is E.") is None  # no choice task


async def test_an_undecided_answer_is_a_grader_error_and_not_a_wrong_answer() -> None:
    with pytest.raises(GraderError, match="neither proved nor disproved") as caught:
        await answer_reward(r"\boxed{(x+1)^{10^{10}}}", r"\sin x")
    assert caught.value.cause is FailureCause.GRADER
    assert equivalent("x", r"(x+1)^{10^{10}}") == Verdict(None, "equality was neither proved nor disproved")
