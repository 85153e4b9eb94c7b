"""Answer checking against known faults of other checkers: percentages, false equals, missing boxes, letters."""

from __future__ import annotations

import pytest
from answers_cases import BARE_AND_PERCENT, BOXED, DIFFERENT, LETTERS, MENTIONED, PERCENTAGES

from miles_agents.answers import AnswerPolicy, Verdict, answer_reward, equivalent, extract
from miles_agents.errors import FailureCause, GraderError

# --- A01: percentages -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_A05_different_answers_are_never_equal(first: str, second: str) -> None:
    assert equivalent(first, second).correct is False
    assert equivalent(second, first).correct is False


# --- A06: only a given answer counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "reward"), MENTIONED)
async def test_A06_mentioning_the_answer_earns_nothing(text: str, reward: float) -> None:
    assert await answer_reward(text, "9") == reward


# --- A07: letters and wrapping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "reward"), LETTERS)
async def test_A07_a_boxed_letter_counts_with_its_wrapping_and_its_text(text: str, reward: float) -> None:
    assert await answer_reward(text, "E", choices=True) == reward


@pytest.mark.parametrize(("text", "gold"), BOXED)
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
