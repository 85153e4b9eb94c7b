"""What counts as the answer of a reply to a question from data, and which answers are then equal."""

import json
from pathlib import Path

import pytest

from miles_agents import Episode, Reply
from miles_agents.answers import AnswerPolicy
from miles_agents.envs.asked import policy_of
from miles_agents.envs.python_math.env import PythonMath

OWN = Path(__file__).parent / "data" / "gsm8k"


@pytest.mark.parametrize(
    ("content", "rewards"),
    [
        ("So \\boxed{1,234} in all", (1.0, 1.0)),
        ("So many.\n#### 1234", (1.0, 0.0)),
        ("#### 1234\nNo: \\boxed{1235}", (0.0, 1.0)),
        ("#### 1234\nNo: \\boxed{1235", (0.0, 0.0)),
        ("<think>#### 1234</think>It is 1234.", (0.0, 0.0)),
        ("\\boxed{}", (0.0, 0.0)),
    ],
)
async def test_a_box_is_read_first_and_then_the_line_of_the_published_answers(content, rewards):
    env = PythonMath(dataset="gsm8k", data=str(OWN))
    (task,) = [task for task in env.tasks("test") if task.answer == "1,234"]
    found = await env.reward(Episode(task=task, replies=[Reply.of(content)]))
    assert (found["answer"], found["format"]) == rewards


async def test_generated_problems_are_answered_in_a_box_only():
    env = PythonMath(level=1, train_size=1)
    (task,) = env.tasks("train")
    found = await env.reward(Episode(task=task, replies=[Reply.of(f"#### {task.answer}")]))
    assert found == {"answer": 0.0, "format": 0.0}


@pytest.mark.parametrize(
    ("question", "percent", "base"),
    [
        ("What percent of her spools are blue?", True, False),
        ("Half are red. What percentage are not? Explain.", True, False),
        ("How many percentage points is that?", True, False),
        ("Write the share as a percentage.", True, False),
        ("What percent are red? There are two. How many are blue?", False, False),
        ("If 20 percent of 50 are red, how many are blue?", False, False),
        ("What is 40% of 20?", False, False),
        ("What is the sum of $101_2$ and $11_2$ in base 2?", False, True),
        ("Is it so? Give your answer in binary.", False, True),
        ("The base is 5 wide. How long is the base?", False, False),
        ("", False, False),
    ],
)
def test_a_percentage_or_a_base_is_asked_for_by_the_sentence_that_asks(question, percent, base):
    assert policy_of(question) == AnswerPolicy(percent_asked=percent, base_asked=base)


@pytest.mark.parametrize(("question", "reward"), [("What percent is red?", 1.0), ("How many are red?", 0.0)])
async def test_a_percent_sign_is_no_other_answer_where_a_percentage_is_asked_for(tmp_path, question, reward):
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": question, "answer": "#### 35"}) + "\n")
    env = PythonMath(dataset="gsm8k", data=str(tmp_path))
    for answer in ("35\\%", "35%"):
        found = await env.reward(Episode(task=env.tasks("test")[0], replies=[Reply.of(f"\\boxed{{{answer}}}")]))
        assert found["answer"] == reward
