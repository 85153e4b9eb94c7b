"""`repo_fix-v0`: mend a broken repository; hidden tests decide."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from miles_agents.contracts import Tool, ToolEnv
from miles_agents.contracts.threads import run_in_thread
from miles_agents.envs.code.judge import Judge, JudgeLimits, Solution
from miles_agents.envs.repo_fix.collecting import collect_files
from miles_agents.envs.repo_fix.patches import apply_patch
from miles_agents.envs.repo_fix.problems import Problem, generated_problems, loaded_problems
from miles_agents.errors import ConfigError, DataError, SandboxError, did_you_mean
from miles_agents.registry import environments
from miles_agents.tools import EditTool, ReadFileTool, ShellTool, WriteFileTool
from miles_agents.types import Episode, Message, Reply, Task, ToolCall

INSTRUCTION = (
    "The working folder holds a Python repository with the fault that is described. Find it and mend it in the files, "
    "with as small a change as will do. Your change is judged by tests that you do not see: those that the fault makes "
    "fail, and those that pass now. When the files are as they should be, say in a word what was wrong; that ends the "
    "task."
)
_KILL_GRACE_S = 5.0  # for the sandbox to stop what its own time limit did not
_FOLDER = "repository"  # where the tests run, within the judging session
_MAX_LISTED = 100


@environments.register("repo_fix-v0")
class RepoFix(ToolEnv):
    """Mend a broken Python repository with a shell and file tools; hidden tests decide.

    What is judged are the files of the working folder as the episode leaves them, taken to a fresh sandbox session; the
    tests' own files are put there by the host, over whatever has their names. Rewards: `tests`, 1 if every test passes;
    `fraction`, the share of the failing tests that pass now, 0 if a test that passed fails; `kept`, the share of those
    that passed and still do.

    Args:
        data: JSON lines of problems, a folder of them or a pattern with `{split}` (see the README); None generates
            them from templates.
        allow_forgeable: take data whose tests have no assertion that is judged on the host (see the README).
        system_prompt: None is a short instruction; "" gives none; any other text is used as it is.
        max_turns: replies of the policy in one episode.
        train_size: tasks of the train split; None is all there are. A smaller number takes the first.
        validation_size: tasks of the validation split, likewise.
        test_size: tasks of the test split, likewise.
        tool_timeout_s: seconds one command of the shell may take.
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
        allow_forgeable: bool = False,
        system_prompt: str | None = None,
        max_turns: int = 16,
        train_size: int | None = None,
        validation_size: int | None = None,
        test_size: int | None = None,
        tool_timeout_s: float = 20.0,
        test_timeout_s: float = 10.0,
        total_timeout_s: float = 60.0,
        fraction_weight: float = 0.0,
    ) -> None:
        self.data = data
        self.allow_forgeable = allow_forgeable
        self.system_prompt = INSTRUCTION if system_prompt is None else system_prompt
        self.max_turns = max_turns
        self.limits = JudgeLimits(test_s=test_timeout_s, total_s=total_timeout_s)
        self.reward_timeout_s = self.limits.reward_s
        self.reward_weights = {"tests": 1.0, "fraction": fraction_weight, "kept": 0.0}
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        checks = [
            ("max_turns", max_turns, max_turns >= 1, "at least 1"),
            ("tool_timeout_s", tool_timeout_s, 0 < tool_timeout_s < math.inf, "above 0"),
            ("fraction_weight", fraction_weight, math.isfinite(fraction_weight), "a finite number"),
            *((f"{split}_size", size, size is None or size >= 1, "at least 1") for split, size in self._sizes.items()),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))
        self.tool_timeout_s = tool_timeout_s + _KILL_GRACE_S
        self.reward_range = (min(fraction_weight, 0.0), 1.0 + max(fraction_weight, 0.0))
        self._tools = (ShellTool(timeout_s=tool_timeout_s), ReadFileTool(), WriteFileTool(), EditTool())
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def all_tools(self) -> tuple[Tool, ...]:
        """The shell, and reading, writing and editing of files."""
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
                problems = generated_problems(split)
            else:
                problems = loaded_problems(self.data, split, allow_forgeable=self.allow_forgeable)
            self._tasks[split] = tuple(self._task(each, split) for each in problems[: self._sizes[split]])
        return self._tasks[split]

    async def begin(self, task: Task) -> None:
        """Put the repository into the working folder.

        Raises:
            SandboxError: it does not fit there.
        """
        for path, text in task.answer["files"].items():
            try:
                await self.sandbox.write_file(path, text.encode())
            except OSError as error:
                raise SandboxError(f"the repository cannot be put into the sandbox: {path}: {error}") from error

    async def reward(self, episode: Episode) -> dict[str, float]:
        """`tests`, `fraction` and `kept` of the files."""
        none = {"tests": 0.0, "fraction": 0.0, "kept": 0.0}
        if episode.sandbox is None or (files := await collect_files(episode.sandbox)) is None:
            return none
        problem = _problem_of(episode.task)
        checks = await run_in_thread(problem.judged)
        hidden = await run_in_thread(problem.hidden_files)
        judged = Solution(files={**_without_shadows(files, hidden), **hidden}, folder=_FOLDER)
        passed = await Judge(limits=self.limits).verdicts(episode.sandbox, judged, list(checks.values()))
        return _rewards(passed, to_mend=len(problem.fail_to_pass))

    def oracle(self, task: Task) -> Iterable[Reply]:
        """Write the files as the true fix leaves them.

        Raises:
            DataError: the row it came from has none.
        """
        problem = _problem_of(task)
        if not problem.patch:
            raise DataError(f"task {task.id} has no 'patch', so there is no oracle for it")
        calls: list[tuple[str, dict[str, str]]] = []
        for path, text in apply_patch(problem.files, problem.patch).items():
            calls.append(
                ("shell", {"command": f"rm -- '{path}'"})
                if text is None
                else ("write", {"path": path, "content": text})
            )
        yield calling(calls)
        yield Reply.of("The files are as they should be.")

    def _task(self, problem: Problem, split: str) -> Task:
        listed = "\n".join(sorted(problem.files)[:_MAX_LISTED])
        more = f"\n(and {len(problem.files) - _MAX_LISTED} more)" if len(problem.files) > _MAX_LISTED else ""
        system = (Message.system(self.system_prompt),) if self.system_prompt else ()
        return Task(
            id=f"{split}/{problem.id}",
            prompt=(*system, Message.user(f"{problem.problem_statement}\n\nFiles:\n{listed}{more}")),
            answer={
                "files": dict(problem.files),
                "tests": dict(problem.tests),
                "setup": problem.setup,
                "checks": {name: dict(each) for name, each in problem.checks.items()},
                "fail_to_pass": list(problem.fail_to_pass),
                "pass_to_pass": list(problem.pass_to_pass),
                "patch": problem.patch,
            },
            metadata=dict(problem.metadata),
            split=split,
        )


def calling(calls: Sequence[tuple[str, dict[str, Any]]]) -> Reply:
    """A reply that calls tools.

    Args:
        calls: names and arguments.
    """
    made = [
        ToolCall(
            id=f"call_{number}",
            name=name,
            arguments=arguments,
            raw=json.dumps({"name": name, "arguments": arguments}),
        )
        for number, (name, arguments) in enumerate(calls)
    ]
    return Reply(text="\n".join(f"<tool_call>\n{each.raw}\n</tool_call>" for each in made), calls=tuple(made))


def _problem_of(task: Task) -> Problem:
    return Problem(id=task.id, problem_statement="", **task.answer)


def _without_shadows(files: dict[str, bytes], hidden: dict[str, bytes]) -> dict[str, bytes]:
    """The files less those that stand where a hidden file needs a folder, or below where it needs a file."""
    return {
        path: data
        for path, data in files.items()
        if not any(each.startswith(f"{path}/") or path.startswith(f"{each}/") for each in hidden)
    }


def _rewards(passed: Sequence[bool], *, to_mend: int) -> dict[str, float]:
    mended, kept = passed[:to_mend], passed[to_mend:]
    return {
        "tests": float(all(passed)),
        "fraction": sum(mended) / len(mended) if all(kept) else 0.0,
        "kept": sum(kept) / len(kept) if kept else 1.0,
    }
