"""What a policy is told about its tool and about the form of its answer."""

from __future__ import annotations

from enum import StrEnum

from miles_agents.envs.data_problems import AnswerKind, Reading
from miles_agents.envs.replies import AnswerForm


class ToolChoice(StrEnum):
    """What the policy may call."""

    PYTHON = "python"  # a sandboxed interpreter
    NONE = "none"  # nothing: it answers at once


_OPENINGS = {
    ToolChoice.PYTHON: "Solve the problem. Compute with the python tool; print what you want to see.",
    ToolChoice.NONE: "Solve the problem step by step.",
}
_CLOSINGS = {
    AnswerForm.BOX: "Give the final answer{what} in \\boxed{{}}.",
    AnswerForm.LINE: "Give the final answer{what} in a last line of its own: Answer: …",
}


def instruction(tool: ToolChoice, form: AnswerForm, reading: Reading) -> str:
    """The system prompt that explains the tool and the form of the answer."""
    return f"{_OPENINGS[tool]} {_CLOSINGS[form].format(what=_what(reading))}"


def _what(reading: Reading) -> str:
    if reading.kind == AnswerKind.ANY:
        return ""
    if reading.kind == AnswerKind.NUMBER:
        return " as a number"
    bounds = reading.smallest, reading.largest
    return " as an integer" if None in bounds else f" as an integer from {bounds[0]} to {bounds[1]}"
