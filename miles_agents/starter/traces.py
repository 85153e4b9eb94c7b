"""Generated agent traces for the starter model's warm start: first clean ones, then ones with bad habits.

The questions come from the train split of `python_math` alone; what the tool says is what the environment's tool
says. No model is involved.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from miles_agents.envs.python_math.env import BUSY
from miles_agents.envs.python_math.problems import Problem
from miles_agents.types import Message, ToolCall

_OPERATOR = re.compile(r"[+\-*]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often a trace does what. The first four are shares of traces that call the tool; they sum to 1."""

    right: float = 1.0  # the right expression
    wrong_operator: float = 0.0  # another operator, and its result believed
    partial: float = 0.0  # only the first of two steps (a one-step problem gets a wrong operator)
    silent: float = 0.0  # the result is assigned, not shown; then a guess
    direct: float = 0.0  # no call at all: the answer from nowhere
    retry: float = 1.0  # tries again when the tool is busy; else a guess
    box: float = 1.0  # puts the answer into a box


CLEAN = Habits()
BAD = Habits(right=0.5, wrong_operator=0.25, partial=0.15, silent=0.1, direct=0.4, retry=0.3, box=0.9)


def make_trace(rng: random.Random, problem: Problem, habits: Habits, *, busy_probability: float) -> list[Message]:
    """One conversation: the question, calls and tool messages, the answer.

    Args:
        rng: decides what is done.
        problem: its question and expression.
        habits: how often what is done.
        busy_probability: how likely a call is answered "busy" (the call after a busy one is not).
    """
    question = Message.user(problem.question)
    if rng.random() < habits.direct:
        return [question, Message.assistant(_final(rng, str(problem.answer), habits))]
    kinds = ("right", "wrong_operator", "partial", "silent")
    kind = rng.choices(kinds, [getattr(habits, name) for name in kinds])[0]
    expression = _expression(rng, problem.expression, kind)
    code = f"x={expression}" if kind == "silent" else f"print({expression})"
    # The expression is made here from digits, operators and brackets alone.
    shown = "" if kind == "silent" else str(eval(expression, {"__builtins__": {}}))  # noqa: S307
    messages = [question]
    if rng.random() < busy_probability:
        messages += _call_and_result(code, BUSY, number=0)
        if rng.random() >= habits.retry:
            return [*messages, Message.assistant(_final(rng, _guess(rng, str(problem.answer)), habits))]
    messages += _call_and_result(code, shown or NO_OUTPUT, number=1)
    answer = shown or _guess(rng, str(problem.answer))
    return [*messages, Message.assistant(_final(rng, answer, habits))]


def _call_and_result(code: str, result: str, *, number: int) -> list[Message]:
    arguments = {"code": code}
    raw = json.dumps({"name": "python", "arguments": arguments})
    call = ToolCall(id=f"call_{number}", name="python", arguments=arguments, raw=raw)
    return [Message.assistant("", tool_calls=(call,)), Message.tool(result, call=call)]


def _expression(rng: random.Random, expression: str, kind: str) -> str:
    if kind == "partial":
        first_step = re.match(r"\d+[+\-*]\d+", expression.replace("(", "").replace(")", ""))
        if first_step is not None and first_step[0] != expression:
            return first_step[0]
        kind = "wrong_operator"
    if kind == "wrong_operator":
        changed = expression
        while changed == expression:
            changed = _OPERATOR.sub(lambda _: rng.choice("+-*"), expression)
        return changed
    return expression


def _final(rng: random.Random, answer: str, habits: Habits) -> str:
    return f"\\boxed{{{answer}}}" if rng.random() < habits.box else f"The answer is {answer}."


def _guess(rng: random.Random, answer: str) -> str:
    digits = max(1, len(answer) + rng.choice((-1, 0, 0, 1)))
    return rng.choice("123456789") + "".join(rng.choice("0123456789") for _ in range(digits - 1))


def corpus_texts(rng: random.Random, problems: Iterator[Problem]) -> Iterator[str]:
    """Texts the tokenizer is trained on: questions, calls, results, answers, and what errors look like."""
    for number, problem in enumerate(problems):
        yield problem.question
        raw = json.dumps({"name": "python", "arguments": {"code": f"print({problem.expression})"}})
        yield f"\n{raw}\n"
        yield str(problem.answer)
        yield _final(rng, str(problem.answer), CLEAN)
        if number % 8 == 0:
            silent = json.dumps({"name": "python", "arguments": {"code": f"x={problem.expression}"}})
            yield from (BUSY, NO_OUTPUT, f"The answer is {problem.answer}.", f"\n{silent}\n", *_ERRORS)


NO_OUTPUT = "(no output)"
_ERRORS = (
    "Error: ",
    "Error: timed out after 5 s",
    "SyntaxError: invalid syntax",
    "NameError: name 'x' is not defined",
    "Traceback (most recent call last):\n",
)
