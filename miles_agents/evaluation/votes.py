"""majority@k: what the samples of a task agree on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from miles_agents.answers import equivalent_async, extract
from miles_agents.types import Trajectory

_END = re.compile(
    r"(?:<[|｜][^<>]*[|｜]>|</s>|<eos>|<end_of_turn>)\s*$"
)  # a reply's text may show its end-of-turn token

Answers = Mapping[str, int]
"""Which answer a trajectory gave, by its id: equal numbers mean equal answers of one task. Without one it is absent."""


def answer_of(trajectory: Trajectory) -> str | None:
    """The answer that the last reply gives in the forms of `miles_agents.answers.extract`; None if it gives none."""
    if not trajectory.status.is_valid or not trajectory.turns:
        return None
    return extract(_END.sub("", trajectory.turns[-1].text)) or None


async def grouped_answers(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Number the answers of each task and seat; answers that `miles_agents.answers.equivalent` finds equal share one.

    Pairs that it cannot decide count as different. An answer joins the first of those before it that it equals.
    """
    known: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    numbers: dict[str, int] = {}
    for trajectory in trajectories:
        answer = answer_of(trajectory)
        if answer is not None:
            before = known[trajectory.task_id, trajectory.seat]
            numbers[trajectory.id] = await _number(" ".join(answer.split()), before)
    return numbers


async def _number(answer: str, before: list[str]) -> int:
    if answer in before:
        return before.index(answer)
    for number, other in enumerate(before):
        if (await equivalent_async(other, answer)).correct:
            return number
    before.append(answer)  # later ones are compared with it
    return len(before) - 1


def majority_score(votes: Sequence[tuple[int | None, bool]]) -> float:
    """How right the answer is that most samples of a task give, from 0 to 1.

    Samples without an answer do not vote; if none votes the task is not solved. Where several answers have the most
    votes each counts alike: the expected score of drawing one of them. An answer's own score is the share of its
    samples that solved the task: 0 or 1 unless its grader looks at more than the answer.

    Args:
        votes: of each sample, the number of its answer (None: it gave none) and whether it solved the task.
    """
    by_answer: defaultdict[int, list[bool]] = defaultdict(list)
    for answer, solved in votes:
        if answer is not None:
            by_answer[answer].append(solved)
    if not by_answer:
        return 0.0
    most = max(map(len, by_answer.values()))
    first = [sum(solved) / most for solved in by_answer.values() if len(solved) == most]
    return sum(first) / len(first)
