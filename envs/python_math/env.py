"""`python_math-v0`: a word problem, a Python tool, the answer in a box."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any

from miles_agents.answers import equivalent_async, extract
from miles_agents.contracts import Observation, Tool, ToolContext, ToolEnv, ToolOutput
from miles_agents.envs.asked import policy_of
from miles_agents.envs.data_files import Cutting, DataSet, files_of
from miles_agents.envs.data_problems import AnswerKind, DataColumns, Reading, SkippedRow
from miles_agents.envs.data_sets import KnownSet, known_set, locate
from miles_agents.envs.python_math.instructions import ToolChoice, instruction
from miles_agents.envs.python_math.problems import LEVELS, generate_problems
from miles_agents.envs.replies import AnswerForm, as_reply, final_answer
from miles_agents.errors import ConfigError, GraderError, choose, did_you_mean
from miles_agents.registry import environments
from miles_agents.tools.python import PythonTool
from miles_agents.types import Episode, Message, Reply, Role, Task, ToolCall

INSTRUCTION = instruction(ToolChoice.PYTHON, AnswerForm.BOX, Reading())  # of numeric data files, with the tool
BUSY = "Error: busy, try again"

_SIZES = {"train": 8192, "validation": 256, "test": 512}  # of the generated splits
_PROBLEM_SEED = 0  # the tasks of a split are always the same
_KILL_GRACE_S = 5.0  # for the sandbox to stop what its own time limit did not


@environments.register("python_math-v0")
class PythonMath(ToolEnv):
    r"""Word problems and other questions with exact answers: generated, from a known data set or from a data file.

    The answer is what the last `\boxed{}` of the final reply holds (to questions from data, without any box, what the
    last line that begins with `####` does), compared exactly (`docs/answers.md`). Rewards: `answer`, 1 if it equals the
    gold one; `format`, 1 if the reply has a closed, filled box. The episode's reward is their weighted sum.

    Args:
        level: 1, one step; 2, two steps; 3, two steps with a tool that sometimes answers "busy, try again". Only for
            generated problems.
        data: a data file, a folder of them, a pattern with `{split}` or `hf://OWNER/NAME` on the Hugging Face hub (see
            `envs/data_files.py`); None generates the problems, or looks for `dataset` in the usual places (see
            `envs/data_sets.py`).
        dataset: a known set: gsm8k, svamp, mawps, dapo_math or aime. It knows its columns and kind of answers.
        question_column: the column of the question, or a list of columns joined by a space. A dot goes into nested
            columns. Messages (`[{"role": …, "content": …}]`) become the prompt as they are. None is the set's own, or
            `question`.
        answer_column: the column of the answer: a number, or text that ends in `#### number`. None is the set's own, or
            `answer`.
        answer_kind: what gold answers may be: number, integer or any (expressions, text); None is the set's own, or
            number.
        answer_form: where the final reply gives its answer: box, or line (the last line `Answer: …`).
        skip_unparsable: leave out rows whose answer cannot be read (`skipped` lists them); else they are an error.
        near_duplicates: where rows are divided into splits, keep questions that differ in numbers and names only (and
            the like, see `envs/near_duplicates.py`) on one side.
        split_seed: of the hash that divides rows into splits.
        tool: python, a sandboxed interpreter; or none.
        system_prompt: None gives problems from files a short instruction and generated ones nothing (what a general
            model needs, and what the starter model was taught); "" gives none; any other text is used as it is.
        max_turns: replies of the policy in one episode, the answer included.
        busy_probability: at level 3, how likely a call is answered "busy"; the call after a busy one is not.
        train_size: tasks of the train split; None is 8192, or all rows of `data`. A smaller number takes the first.
        validation_size: tasks of the validation split; None is 256, or all rows of `data`.
        test_size: tasks of the test split; None is 512, or all rows of `data`.
        tool_timeout_s: seconds one tool call may take.
        max_output_chars: characters of one tool answer that the policy is shown.
        answer_weight: weight of the reward `answer`.
        format_weight: weight of the reward `format`; 0 records it without training on it, because a wrong answer in a
            box is not worth more than an honest one without.

    Raises:
        ConfigError: a value out of its range, or a `question_column` that is no name or list of names.
        UsageError: no such data set, tool, kind or form.
    """

    def __init__(
        self,
        *,
        level: int = 3,
        data: str | None = None,
        dataset: str | None = None,
        question_column: Any = None,  # str or list[str]: a union that configuration schemas cannot express
        answer_column: str | None = None,
        answer_kind: str | None = None,
        answer_form: str = "box",
        skip_unparsable: bool = False,
        near_duplicates: bool = True,
        split_seed: int = 0,
        tool: str = "python",
        system_prompt: str | None = None,
        max_turns: int = 4,
        busy_probability: float = 0.3,
        train_size: int | None = None,
        validation_size: int | None = None,
        test_size: int | None = None,
        tool_timeout_s: float = 5.0,
        max_output_chars: int = 2000,
        answer_weight: float = 1.0,
        format_weight: float = 0.0,
    ) -> None:
        self.level = level
        self.data = data
        self.known = None if dataset is None else known_set(dataset)
        if self.known is not None:
            self.splits = self.known.splits  # type: ignore[misc]  # a set for evaluation has no train split
        self.tool = choose(ToolChoice, tool, key="env.tool")
        self.form = choose(AnswerForm, answer_form, key="env.answer_form")
        kind = None if answer_kind is None else choose(AnswerKind, answer_kind, key="env.answer_kind")
        columns = _given_columns(question_column, answer_column)
        self.reading = replace(_reading(self.known, columns, kind), skip_unparsable=skip_unparsable)
        self._cutting = Cutting(seed=split_seed, near_duplicates=near_duplicates)
        self._data_set: DataSet | None = None
        self.system_prompt = system_prompt
        self.max_turns = max_turns
        self.busy_probability = busy_probability
        self.tool_timeout_s = tool_timeout_s + _KILL_GRACE_S
        self.reward_weights = {"answer": answer_weight, "format": format_weight}
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        self._check_ranges(tool_timeout_s, max_output_chars)
        weights = self.reward_weights.values()
        self.reward_range = (sum(min(weight, 0.0) for weight in weights), sum(max(weight, 0.0) for weight in weights))
        self._python = PythonTool(timeout_s=tool_timeout_s, max_output_chars=max_output_chars)
        self.max_output_chars = 3 * max_output_chars + 1000  # the tool cuts its own; this is never reached
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._was_busy = False

    def all_tools(self) -> tuple[Tool, ...]:
        """The Python interpreter, or nothing."""
        return (self._python,) if self.tool == ToolChoice.PYTHON else ()

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split, always the same and in the same order.

        Raises:
            ConfigError: no such split.
            DataError: a missing or broken data file.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = tuple(self._generated(split) if self._generates else self._loaded(split))
        return self._tasks[split]

    def skipped(self, split: str) -> tuple[SkippedRow, ...]:
        """The rows of the files behind a split that were left out because their answer cannot be read, and why.

        Raises:
            DataError: a missing or broken data file.
        """
        return () if self._generates else self._files().skipped(split)

    async def begin(self, task: Task) -> None:
        """Forget the last episode's busy answer."""
        self._was_busy = False

    async def call_tool(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolOutput:
        """Run the call, or answer "busy"."""
        if self._is_busy():
            return ToolOutput(BUSY, ok=False, info={"status": "busy"})
        return await super().call_tool(tool, call, context)

    async def reward(self, episode: Episode) -> dict[str, float]:
        """`answer` and `format` of the final reply.

        Raises:
            GraderError: whether the answers are equal could not be decided within the limits.
        """
        content, policy = episode.final.content, None
        answer = final_answer(content, self.form)
        form = float(bool(answer))
        if not self._generates:
            policy = policy_of(episode.task.prompt[-1].text)
            answer = extract(content) if self.form == AnswerForm.BOX else answer
        if not answer:
            return {"answer": 0.0, "format": form}
        verdict = await equivalent_async(episode.task.answer, answer, policy=policy)
        if verdict.correct is None:
            raise GraderError(f"the answer {answer[:80]!r} against {episode.task.answer[:80]!r}: {verdict.reason}")
        return {"answer": float(verdict.correct), "format": form}

    def oracle(self, task: Task) -> Generator[Reply, Observation, None]:
        """Replies that score full: compute, try again when the tool is busy, answer."""
        expression = task.metadata.get("expression")
        if expression is not None and self.tool == ToolChoice.PYTHON:
            for _ in range(self.max_turns - 1):
                observation = yield _python_call(f"print({expression})")
                if observation[0].text != BUSY:
                    break
        yield Reply.of(as_reply(task.answer, self.form))

    @property
    def _generates(self) -> bool:
        return self.data is None and self.known is None

    def _files(self) -> DataSet:
        if self._data_set is None:
            files = files_of(str(self.data)) if self.known is None else locate(self.known, self.data)
            name = self.data or (self.known.name if self.known else "")
            self._data_set = DataSet(files, self.reading, cutting=self._cutting, name=name)
        return self._data_set

    def _is_busy(self) -> bool:
        if not self._generates or self.level < 3 or self._was_busy:
            self._was_busy = False
        else:
            self._was_busy = bool(self.np_random.random() < self.busy_probability)
        return self._was_busy

    def _generated(self, split: str) -> Iterable[Task]:
        size = self._sizes[split]
        problems = generate_problems(self.level, split, _SIZES[split] if size is None else size, _PROBLEM_SEED)
        for number, problem in enumerate(problems):
            yield Task(
                id=f"level{self.level}/{split}/{number}",
                prompt=(*self._system(""), Message.user(problem.question)),
                answer=str(problem.answer),
                metadata={"level": self.level, "kind": problem.kind, "expression": problem.expression},
                split=split,
            )

    def _loaded(self, split: str) -> Iterable[Task]:
        told = self._system(instruction(self.tool, self.form, self.reading))
        for problem in self._files().problems(split)[: self._sizes[split]]:
            instructed = problem.prompt[0].role is Role.SYSTEM or (problem.instructed and self.system_prompt is None)
            yield Task(
                id=f"{split}/{problem.id}",
                prompt=problem.prompt if instructed else (*told, *problem.prompt),
                answer=problem.answer,
                metadata={"kind": "data", "source": problem.id},
                split=split,
            )

    def _system(self, default: str) -> tuple[Message, ...]:
        text = default if self.system_prompt is None else self.system_prompt
        return (Message.system(text),) if text else ()

    def _check_ranges(self, tool_timeout_s: float, max_output_chars: int) -> None:
        sizes = [
            (f"{split}_size", size, size is None or size >= 1, "at least 1") for split, size in self._sizes.items()
        ]
        weights = [
            (f"{name}_weight", weight, math.isfinite(weight), "a finite number")
            for name, weight in self.reward_weights.items()
        ]
        checks = [
            ("level", self.level, self.level in LEVELS, "1, 2 or 3"),
            ("max_turns", self.max_turns, self.max_turns >= 1, "at least 1"),
            ("busy_probability", self.busy_probability, 0 <= self.busy_probability <= 1, "between 0 and 1"),
            ("tool_timeout_s", tool_timeout_s, 0 < tool_timeout_s < math.inf, "above 0"),
            ("max_output_chars", max_output_chars, max_output_chars >= 100, "at least 100"),
            *sizes,
            *weights,
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))


def _reading(known: KnownSet | None, columns: DataColumns | None, kind: AnswerKind | None) -> Reading:
    """How rows are read: as the known set says, but for what was given."""
    reading = Reading() if known is None else known.reading
    if columns is not None:
        reading = replace(reading, layouts=(columns,))
    return reading if kind is None else replace(reading, kind=kind)


def _given_columns(question: Any, answer: str | None) -> DataColumns | None:
    if question is None and answer is None:
        return None
    return DataColumns(
        question=("question",) if question is None else _column_names(question),
        answer="answer" if answer is None else answer,
    )


def _column_names(given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"env.question_column is {given!r}; give a name, or a list of names: [Body,Question]")
    return names


def _python_call(code: str) -> Reply:
    raw = json.dumps({"name": "python", "arguments": {"code": code}})
    call = ToolCall(id="call_0", name="python", arguments={"code": code}, raw=raw)
    return Reply(text=f"<tool_call>\n{raw}\n</tool_call>", calls=(call,))
