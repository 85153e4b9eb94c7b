"""Reading an answer out of a reply and comparing it with the gold one; see docs/answers.md."""

from miles_agents.answers.extraction import extract, extract_boxed
from miles_agents.answers.grader import Grader, default_grader, equivalent, equivalent_async
from miles_agents.answers.numeric import numbers_equal, parse_number
from miles_agents.answers.reward import answer_reward
from miles_agents.answers.verdicts import AnswerPolicy, GraderLimits, Verdict

__all__ = [
    "AnswerPolicy",
    "Grader",
    "GraderLimits",
    "Verdict",
    "answer_reward",
    "default_grader",
    "equivalent",
    "equivalent_async",
    "extract",
    "extract_boxed",
    "numbers_equal",
    "parse_number",
]
