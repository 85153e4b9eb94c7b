"""`ToolEnv`: an environment for "answer with tools".

A subclass gives `tools`, `tasks(split)` and `reward(episode)`; this class runs the tools, answers malformed calls,
keeps the limits and scores the end.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from miles_agents.contracts.env import Env, ResetResult, StepResult
from miles_agents.contracts.sandbox import Sandbox
from miles_agents.contracts.tool import Tool, ToolContext, ToolOutput, as_tool, marked_methods
from miles_agents.errors import (
    EpisodeError,
    FailureCause,
    GraderError,
    SandboxError,
    ToolError,
    UsageError,
    did_you_mean,
)
from miles_agents.types import Episode, Message, Reply, Task, ToolCall, ToolEvent

Scores = float | Mapping[str, float]


class ToolEnv(Env):
    """An episode: the task's prompt, then turns of calls and tool messages, until a reply without calls.

    A reply without calls terminates the episode. A reply cut by a token limit, or the last allowed turn still
    calling tools, truncates it; it is scored as it stands.
    """

    tools: ClassVar[Sequence[Tool | Callable[..., Any]]] = ()
    max_turns: int = 8
    tool_timeout_s: float = 30.0
    reward_timeout_s: float = 30.0
    reward_weights: Mapping[str, float] = {}  # by reward name; a name left out weighs 1

    _episode: Episode | None = None
    _tools: Mapping[str, Tool] | None = None
    _sandbox: Sandbox | None = None

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, always the same and in the same order."""

    @abstractmethod
    def reward(self, episode: Episode) -> Any:
        """Score a finished episode: a float, or floats by name. May be async. Plain functions run in a thread."""

    def all_tools(self) -> tuple[Tool, ...]:
        """The entries of `tools`, then the methods marked with `@tool`."""
        return (*(as_tool(entry) for entry in type(self).tools), *marked_methods(self))

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin an episode of `options["task"]`.

        Raises:
            UsageError: no task was given.
            SandboxError: a tool needs a sandbox and none could be opened.
        """
        await self.close()
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError("reset() needs options={'task': Task(…)}")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        tools = {tool.name: tool for tool in self.all_tools()}
        self._tools = tools
        if any(tool.needs_sandbox for tool in tools.values()):
            self._sandbox = await self._open_sandbox()
        self._episode = Episode(task=task, messages=list(task.prompt), sandbox=self._sandbox)
        await self.begin(task)
        return ResetResult(task.prompt, {"tools": [tool.schema() for tool in tools.values()]})

    async def begin(self, task: Task) -> None:
        """Hook: set up the episode's own state (files in the sandbox, counters)."""

    async def step(self, action: Reply) -> StepResult:
        """Run the reply's calls, or end the episode and score it."""
        episode = self._current()
        episode.replies.append(action)
        episode.messages.append(action.message())
        if action.truncated:
            return await self._finish(truncated_by="max_new_tokens")
        if not action.calls:
            return await self._finish(truncated_by="")
        if len(episode.replies) >= self.max_turns:
            return await self._finish(truncated_by="max_turns")
        events = await self._run_calls(action.calls)
        observation = tuple(Message.tool(event.result, call=event.call) for event in events)
        episode.tool_events.extend(events)
        episode.messages.extend(observation)
        return StepResult(observation, 0.0, False, False, {"tool_events": tuple(events)})

    async def truncate(self, reason: str) -> StepResult:
        """Score the episode as it stands."""
        self._current()
        return await self._finish(truncated_by=reason)

    async def call_tool(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolOutput:
        """Hook around every well-formed call; draw from `np_random` before the first await to stay reproducible."""
        return await tool.call(call.arguments or {}, context)

    async def close(self) -> None:
        """End the episode and its sandbox."""
        sandbox, self._sandbox, self._episode = self._sandbox, None, None
        if sandbox is not None:
            await sandbox.close()

    def _current(self) -> Episode:
        if self._episode is None:
            raise UsageError("step() before reset(), or after the episode ended: call reset() first")
        return self._episode

    async def _open_sandbox(self) -> Sandbox:
        provider = self.resources.sandboxes
        if provider is None:
            raise SandboxError(f"{type(self).__name__} has a tool that needs a sandbox, but none was lent to it")
        return await provider.open()

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[ToolEvent]:
        async with _episode_errors_only(), asyncio.TaskGroup() as group:
            running = [group.create_task(self._run_call(call)) for call in calls]
        return [task.result() for task in running]

    async def _run_call(self, call: ToolCall) -> ToolEvent:
        started = time.perf_counter()
        try:
            output = await self._dispatch(call)
        except ToolError as error:
            output = ToolOutput(f"Error: {error}", ok=False)
        except EpisodeError:
            raise
        except Exception as error:  # seam: a bug in a tool loses this episode, not the run
            message = f"tool '{call.name}' raised {type(error).__name__}: {error}"
            raise EpisodeError(message, cause=FailureCause.TOOL) from error
        return ToolEvent(
            call=call,
            result=output.text,
            ok=output.ok,
            duration_s=time.perf_counter() - started,
            info=output.info,
        )

    async def _dispatch(self, call: ToolCall) -> ToolOutput:
        tools = self._tools or {}
        if call.error is not None:
            raise ToolError(call.error)
        if call.name not in tools:
            raise ToolError(f"unknown tool '{call.name}'. {did_you_mean(call.name, tools)}")
        context = ToolContext(sandbox=self._sandbox, np_random=self.np_random)
        try:
            async with asyncio.timeout(self.tool_timeout_s):
                return await self.call_tool(tools[call.name], call, context)
        except TimeoutError as error:
            raise ToolError(f"'{call.name}' timed out after {self.tool_timeout_s:g} s") from error

    async def _finish(self, *, truncated_by: str) -> StepResult:
        episode = self._current()
        episode.truncated = bool(truncated_by)
        rewards = await self._score(episode)
        total = sum(self.reward_weights.get(name, 1.0) * value for name, value in rewards.items())
        info = {"rewards": rewards, "truncated_by": truncated_by, "tool_events": ()}
        await self.close()
        return StepResult((), total, not truncated_by, bool(truncated_by), info)

    async def _score(self, episode: Episode) -> dict[str, float]:
        task_id = episode.task.id
        try:
            async with asyncio.timeout(self.reward_timeout_s):
                if inspect.iscoroutinefunction(self.reward):
                    scored = await self.reward(episode)
                else:
                    scored = await asyncio.to_thread(self.reward, episode)
        except EpisodeError:
            raise
        except TimeoutError as error:
            raise GraderError(f"task {task_id}: reward took more than {self.reward_timeout_s:g} s") from error
        except Exception as error:  # seam: a bug in a reward is a grader error, never a plain 0
            raise GraderError(f"task {task_id}: reward raised {type(error).__name__}: {error}") from error
        return checked_scores(scored, task_id)


def checked_scores(scored: Any, task_id: str) -> dict[str, float]:
    """A reward's return value as finite floats by name (`{"reward": x}` for a plain number).

    Raises:
        GraderError: None, NaN, an empty dict, or anything that is no number; the task is named.
    """
    named = cast(Mapping[str, Any], scored if isinstance(scored, Mapping) else {"reward": scored})
    if not named:
        raise GraderError(f"task {task_id}: reward gave an empty dict")
    checked: dict[str, float] = {}
    for name, value in named.items():
        if isinstance(value, (bool, int, float, np.number, np.bool_)) and math.isfinite(float(value)):
            checked[str(name)] = float(value)
        else:
            raise GraderError(f"task {task_id}: reward '{name}' is {value!r}, not a finite number")
    return checked


class _episode_errors_only:  # noqa: N801 — used like a keyword
    """Re-raise the one EpisodeError inside a TaskGroup's ExceptionGroup by itself."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                if isinstance(inner, EpisodeError):
                    raise inner
