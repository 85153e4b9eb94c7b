"""`code-v0`: write a function or a program that passes hidden tests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from miles_agents.contracts import Tool, ToolEnv
from miles_agents.envs.code.judge import Judge, JudgeLimits, Solution
from miles_agents.envs.code.problems import Problem, generated_problems, loaded_problems
from miles_agents.errors import ConfigError, DataError, did_you_mean
from miles_agents.registry import environments
from miles_agents.tools import PythonTool, SubmitTool
from miles_agents.types import Episode, Message, Reply, Task

INSTRUCTION = (
    "Solve the task in Python. Try your code with the python tool if you like. Hand in the whole solution, and nothing "
    "but code, in one ```python block at the end of your final reply, or with the submit tool. It is judged by tests "
    "that you do not see."
)
_SUBMIT = "Hand in the solution: the whole code. This ends the task; nothing can be done after it."
_MAX_CODE_CHARS = 100_000
_FENCE = re.compile(r"^[ ]{0,3}(`{3,})[ ]*([\w+-]*)[ \t]*$")
_LANGUAGES = ("", "python", "python3", "py")
_KILL_GRACE_S = 5.0  # for the sandbox to stop what its own time limit did not


@environments.register("code-v0")
class Code(ToolEnv):
    """Write a function or a program in Python; hidden tests decide.

    The solution is the last code block of the final reply, or what was submitted. It runs in a fresh sandbox session,
    each test in a process of its own, on inputs alone: what it gives is compared on the host with expected values that
    never enter the sandbox. Rewards: `tests`, 1 if all tests pass; `fraction`, the share that passes.

    Args:
        data: JSON lines of problems, a folder of them or a pattern with `{split}` (see the README); None generates
            them from templates.
        system_prompt: None is a short instruction; "" gives none; any other text is used as it is.
        max_turns: replies of the policy in one episode, the solution included.
        tests: hidden tests of each generated problem.
        examples: tests shown in the prompt of each generated problem.
        train_size: tasks of the train split; None is all there are. A smaller number takes the first.
        validation_size: tasks of the validation split, likewise.
        test_size: tasks of the test split, likewise.
        tool_timeout_s: seconds one call of the python tool may take.
        test_timeout_s: seconds one hidden test may take.
        total_timeout_s: seconds all hidden tests of an episode may take; what is left then has failed.
        fraction_weight: weight of the reward `fraction`; 0 records it without training on it.

    Raises:
        ConfigError: a value out of its range.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        system_prompt: str | None = None,
        max_turns: int = 6,
        tests: int = 10,
        examples: int = 2,
        train_size: int | None = None,
        validation_size: int | None = None,
        test_size: int | None = None,
        tool_timeout_s: float = 10.0,
        test_timeout_s: float = 5.0,
        total_timeout_s: float = 20.0,
        fraction_weight: float = 0.0,
    ) -> None:
        self.data = data
        self.system_prompt = INSTRUCTION if system_prompt is None else system_prompt
        self.max_turns = max_turns
        self.tests = tests
        self.examples = examples
        self.tool_timeout_s = tool_timeout_s + _KILL_GRACE_S
        self.limits = JudgeLimits(test_s=test_timeout_s, total_s=total_timeout_s)
        self.reward_timeout_s = self.limits.reward_s
        self.reward_weights = {"tests": 1.0, "fraction": fraction_weight}
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        self._check_ranges(tool_timeout_s, fraction_weight)
        self.reward_range = (min(fraction_weight, 0.0), 1.0 + max(fraction_weight, 0.0))
        self._tools = (PythonTool(timeout_s=tool_timeout_s), SubmitTool(description=_SUBMIT))
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def all_tools(self) -> tuple[Tool, ...]:
        """The Python interpreter, and the submission."""
        return self._tools

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split, always the same and in the same order.

        Raises:
            ConfigError: no such split.
            DataError: a missing or broken data file.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            if self.data is None:
                problems = generated_problems(split, tests=self.tests, examples=self.examples)
            else:
                problems = loaded_problems(self.data, split)
            self._tasks[split] = tuple(self._task(each, split) for each in problems[: self._sizes[split]])
        return self._tasks[split]

    async def reward(self, episode: Episode) -> dict[str, float]:
        """`tests` and `fraction` of the solution."""
        answer = episode.task.answer
        source = extract_code(episode.final.content) if episode.submitted is None else submitted_code(episode.submitted)
        if not source or len(source) > _MAX_CODE_CHARS or episode.sandbox is None:
            return {"tests": 0.0, "fraction": 0.0}
        problem = Problem(id=episode.task.id, prompt="", **answer)
        judge = Judge(limits=self.limits, float_tolerance=problem.float_tolerance)
        solution = Solution(source=source, entry_point=problem.entry_point)
        passed = await judge.verdicts(episode.sandbox, solution, problem.checks())
        return {"tests": float(all(passed)), "fraction": sum(passed) / len(passed)}

    def oracle(self, task: Task) -> Iterable[Reply]:
        """The reference solution.

        Raises:
            DataError: the row it came from has none.
        """
        if not task.answer["solution"]:
            raise DataError(f"task {task.id} has no 'solution', so there is no oracle for it")
        yield Reply.of(f"```python\n{task.answer['solution']}\n```")

    def _task(self, problem: Problem, split: str) -> Task:
        shown = "\n".join(_as_example(row, problem.entry_point) for row in problem.examples)
        text = problem.prompt + (f"\n\nExamples:\n\n{shown}" if shown else "")
        system = (Message.system(self.system_prompt),) if self.system_prompt else ()
        return Task(
            id=f"{split}/{problem.id}",
            prompt=(*system, Message.user(text)),
            answer={
                "entry_point": problem.entry_point,
                "tests": list(problem.tests),
                "examples": list(problem.examples),
                "solution": problem.solution,
                "float_tolerance": problem.float_tolerance,
            },
            metadata=dict(problem.metadata),
            split=split,
        )

    def _check_ranges(self, tool_timeout_s: float, fraction_weight: float) -> None:
        sizes = [
            (f"{split}_size", size, size is None or size >= 1, "at least 1") for split, size in self._sizes.items()
        ]
        checks = [
            ("max_turns", self.max_turns, self.max_turns >= 1, "at least 1"),
            ("tests", self.tests, 1 <= self.tests <= 200, "from 1 to 200"),
            ("examples", self.examples, 0 <= self.examples <= 20, "from 0 to 20"),
            ("tool_timeout_s", tool_timeout_s, 0 < tool_timeout_s < math.inf, "above 0"),
            ("fraction_weight", fraction_weight, math.isfinite(fraction_weight), "a finite number"),
            *sizes,
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))


def extract_code(text: str) -> str | None:
    """The last fenced block of a reply, without its fences; None if there is none.

    A block whose fence is never closed is no answer, whatever stands before it; nor is one of another language.
    """
    found: str | None = None
    fence, language, start = "", "", 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        match = _FENCE.match(line.rstrip())
        if match is None:
            continue
        if not fence:
            fence, language, start = match[1], match[2].lower(), number + 1
        elif not match[2] and len(match[1]) >= len(fence):
            found = "\n".join(lines[start:number]) if language in _LANGUAGES else None
            fence = ""
    return None if fence else found


def submitted_code(text: str) -> str:
    """What was handed in by the tool: a fenced block in it, or all of it."""
    return extract_code(text) or text


def _as_example(row: Any, entry_point: str) -> str:
    if isinstance(row, str):
        return row.strip().removeprefix("assert ")
    if "stdin" in row:
        return f"Input:\n```\n{row['stdin'].rstrip()}\n```\nOutput:\n```\n{row['stdout'].rstrip()}\n```"
    given = [repr(each) for each in row.get("args", ())]
    given += [f"{name}={value!r}" for name, value in row.get("kwargs", {}).items()]
    call = f"{entry_point}({', '.join(given)})"
    if "raises" in row:
        return f"{call} raises {row['raises']}"
    printed = f" prints {json.dumps(row['stdout'])}" if "stdout" in row else ""
    return f"{call} == {row['expected']!r}{printed}" if "expected" in row else f"{call}{printed}"
