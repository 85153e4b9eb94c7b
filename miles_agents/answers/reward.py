"""The reward for the final answer of a reply."""

from __future__ import annotations

from dataclasses import replace

from miles_agents.answers.extraction import extract
from miles_agents.answers.grader import Grader, default_grader
from miles_agents.answers.verdicts import AnswerPolicy
from miles_agents.errors import GraderError


async def answer_reward(
    text: str,
    gold: str,
    *,
    choices: bool = False,
    policy: AnswerPolicy | None = None,
    grader: Grader | None = None,
) -> float:
    r"""1.0 if the final answer of a reply equals the gold one, else 0.0; 0.0 if it gives none.

    Args:
        text: the reply as it was written. An answer already extracted from one is for `equivalent`: here a bare `42`
            is a reply that gives no answer.
        gold: the right answer.
        choices: the answers are letters of options.
        policy: what the question leaves open.
        grader: whose workers to use; the process's own by default.

    Raises:
        GraderError: equality could not be decided. The episode is lost under the cause `grader`, not scored 0.
    """
    answer = extract(text, choices=choices)
    if answer is None:
        return 0.0
    asked = replace(policy or AnswerPolicy(), choices=choices or (policy or AnswerPolicy()).choices)
    verdict = await (grader or default_grader()).grade_async(gold, answer, asked)
    if verdict.correct is None:
        raise GraderError(f"the answer {answer[:80]!r} against {gold[:80]!r}: {verdict.reason}")
    return float(verdict.correct)
