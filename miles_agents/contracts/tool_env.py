"""`ToolEnv`: an environment for "answer with tools".

A subclass gives `tools`, `tasks(split)` and `reward(episode)`; this class runs the tools, answers malformed calls,
keeps the limits and scores the end.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, cast

import numpy as np

from miles_agents.contracts.env import Env, ResetResult, StepResult
from miles_agents.contracts.sandbox import OnDemandSandbox, Sandbox, SandboxProvider
from miles_agents.contracts.threads import run_in_thread
from miles_agents.contracts.tools import Tool, ToolContext, ToolOutput, as_tool, marked_methods
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

_MAX_ERROR_CHARS = 1000  # of one error shown to the model
_MAX_NAME_CHARS = 80  # of a tool name the model made up


class ToolEnv(Env):
    """An episode: the task's prompt, then turns of calls and tool messages, until a reply without calls.

    A reply without calls terminates the episode. A reply cut by a token limit, or the last allowed turn still
    calling tools, truncates it; it is scored as it stands. The calls of one reply run at the same time, but those of
    tools that need the sandbox one after another, in the order written.

    What tool code raises: `ToolError` is shown to the model; `EpisodeError` ends the episode; `UsageError` stops the
    run; anything else is a bug of the tool and ends the episode as `EpisodeError` of cause `tool`. The same holds for
    `reward`, where a bug is a `GraderError`.
    """

    configurable: ClassVar[tuple[str, ...]] = ("max_turns", "tool_timeout_s", "max_calls_per_turn")

    tools: Sequence[Tool | Callable[..., Any]] = ()
    max_turns: int = 8
    max_calls_per_turn: int = 16  # further calls of one reply are answered with an error
    max_output_chars: int = 16_000  # of one tool's answer; the middle is left out
    tool_timeout_s: float = 30.0
    reward_timeout_s: float = 30.0
    reward_weights: Mapping[str, float] = {}  # by reward name; a name left out weighs 1

    _episode: Episode | None = None
    _toolbox: Mapping[str, Tool] | None = None  # made at the first reset; the same for every episode
    _schemas: Sequence[dict[str, Any]] = ()
    _sandbox: OnDemandSandbox | None = None

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, always the same and in the same order."""

    @abstractmethod
    def reward(self, episode: Episode) -> Any:
        """Score a finished episode: a float, or floats by name. May be async. Plain functions run in a thread."""

    @property
    def sandbox(self) -> Sandbox:
        """The episode's sandbox, for `begin` and for tools of the environment itself; opened by its first use.

        Raises:
            SandboxError: no tool of the environment needs one.
        """
        if self._sandbox is None:
            raise SandboxError(f"{type(self).__name__} has no sandbox: none of its tools needs one, or no episode runs")
        return self._sandbox

    def all_tools(self) -> tuple[Tool, ...]:
        """The entries of `tools`, then the methods marked with `@tool`."""
        return (*(as_tool(entry) for entry in self.tools), *marked_methods(self))

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin an episode of `options["task"]`.

        Raises:
            UsageError: no task was given, or two tools have one name.
            SandboxError: a tool needs a sandbox and none was lent. It is opened by its first use.
        """
        await self.close()
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError("reset() needs options={'task': Task(…)}")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        toolbox = self._named_tools()
        try:
            if any(tool.needs_sandbox for tool in toolbox.values()):
                self._sandbox = OnDemandSandbox(self._lent_sandboxes())
            self._episode = Episode(task=task, messages=list(task.prompt), sandbox=self._sandbox)
            await self.begin(task)
        except BaseException:
            await self.close()
            raise
        return ResetResult(task.prompt, {"tools": copy.deepcopy(list(self._schemas))})

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
        self._episode = None
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None  # not before: a close that was cancelled is tried again by the next one

    def _current(self) -> Episode:
        if self._episode is None:
            raise UsageError("step() before reset(), or after the episode ended: call reset() first")
        return self._episode

    def _named_tools(self) -> Mapping[str, Tool]:
        if self._toolbox is None:
            toolbox: dict[str, Tool] = {}
            for tool in self.all_tools():
                if tool.name in toolbox:
                    raise UsageError(f"{type(self).__name__} has two tools named '{tool.name}'; rename one of them")
                toolbox[tool.name] = tool
            self._schemas = [tool.schema() for tool in toolbox.values()]
            self._toolbox = toolbox
        return self._toolbox

    def _lent_sandboxes(self) -> SandboxProvider:
        provider = self.resources.sandboxes
        if provider is None:
            raise SandboxError(f"{type(self).__name__} has a tool that needs a sandbox, but none was lent to it")
        return provider

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[ToolEvent]:
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._run_call(call, place)) for place, call in enumerate(calls)]
                # Waiting here, not in the group's exit: there Python 3.11 leaves this task marked as being cancelled
                # after a child failed (python/cpython#116720), and deadlines around it go wrong. Can go with 3.13.
                await asyncio.wait(running)
        except BaseExceptionGroup as failures:
            if _is_cancelled():  # a child that failed while it was cancelled hides the cancellation
                raise asyncio.CancelledError from failures
            own = _own_error_in(failures)
            if own is None:
                raise
            raise own from own.__cause__
        return [task.result() for task in running]

    async def _run_call(self, call: ToolCall, place: int) -> ToolEvent:
        started = time.perf_counter()
        try:
            output = _checked_output(await self._dispatch(call, place))
        except ToolError as error:
            output = ToolOutput(_shortened(f"Error: {error}", _MAX_ERROR_CHARS), ok=False)
        except (EpisodeError, UsageError):
            raise
        except asyncio.CancelledError as error:
            self.reusable = False
            if _is_cancelled():
                raise
            raise _tool_bug(call, error) from error
        except Exception as error:  # noqa: BLE001 — seam: a bug in a tool loses this episode, not the run
            own = _own_error_in(error)
            raise (own or _tool_bug(call, error)) from (own.__cause__ if own else error)
        return ToolEvent(
            call=call,
            result=_shortened(output.text, self.max_output_chars),
            ok=output.ok,
            duration_s=time.perf_counter() - started,
            info=output.info,
        )

    async def _dispatch(self, call: ToolCall, place: int) -> ToolOutput:
        tools = self._named_tools()
        if place >= self.max_calls_per_turn:
            raise ToolError(f"not executed: at most {self.max_calls_per_turn} calls in one turn")
        if call.error is not None:
            raise ToolError(call.error)
        if call.name not in tools:
            name = _shortened(call.name, _MAX_NAME_CHARS)
            raise ToolError(f"unknown tool '{name}'. {did_you_mean(name, tools)}")
        tool, sandbox = tools[call.name], self._sandbox
        context = ToolContext(sandbox=sandbox, np_random=self.np_random)
        # A session runs one call at a time; waiting for it to start or for another call is no fault of this one.
        async with sandbox.turn() if sandbox and tool.needs_sandbox else nullcontext():
            deadline = asyncio.timeout(self.tool_timeout_s)
            try:
                async with deadline:
                    return await self.call_tool(tool, call, context)
            except TimeoutError as error:
                if not deadline.expired():
                    raise  # the tool's own, a bug
                self.reusable = False
                raise ToolError(f"'{call.name}' timed out after {self.tool_timeout_s:g} s") from error

    async def _finish(self, *, truncated_by: str) -> StepResult:
        episode = self._current()
        episode.truncated = bool(truncated_by)
        try:
            rewards = await self._score(episode)
        finally:
            await self.close()
        total = sum(self.reward_weights.get(name, 1.0) * value for name, value in rewards.items())
        info = {"rewards": rewards, "truncated_by": truncated_by, "tool_events": ()}
        return StepResult((), total, not truncated_by, bool(truncated_by), info)

    async def _score(self, episode: Episode) -> dict[str, float]:
        task_id = episode.task.id
        deadline = asyncio.timeout(self.reward_timeout_s)
        try:
            async with deadline:
                if inspect.iscoroutinefunction(self.reward):
                    scored = await self.reward(episode)
                else:
                    scored = await run_in_thread(self.reward, episode)
                    if inspect.isawaitable(scored):  # a plain function that returns a coroutine
                        scored = await scored
        except (EpisodeError, UsageError):
            raise
        except asyncio.CancelledError as error:
            self.reusable = False
            if _is_cancelled():
                raise
            raise GraderError(f"task {task_id}: reward was cancelled from inside") from error
        except Exception as error:  # seam: a bug in a reward is a grader error, never a plain 0
            if deadline.expired():
                self.reusable = False
                raise GraderError(f"task {task_id}: reward took more than {self.reward_timeout_s:g} s") from error
            reason = f"reward raised {type(error).__name__}: {error}"
            own = _own_error_in(error)
            raise (own or GraderError(f"task {task_id}: {reason}")) from (own.__cause__ if own else error)
        return checked_scores(scored, task_id)


def checked_scores(scored: Any, task_id: str) -> dict[str, float]:
    """A reward's return value as finite floats by name (`{"reward": x}` for a plain number).

    Raises:
        GraderError: None, NaN, an empty dict, or anything that is no number; the task is named.
    """
    named = cast(Mapping[str, Any], scored if isinstance(scored, Mapping) else {"reward": scored})
    if not named:
        raise GraderError(f"task {task_id}: reward gave an empty dict")
    return {str(name): _finite(value, name, task_id) for name, value in named.items()}


def _finite(value: Any, name: Any, task_id: str) -> float:
    if isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    shown = _shortened(repr(value), _MAX_NAME_CHARS)
    raise GraderError(f"task {task_id}: reward '{name}' is {shown}, not a finite number")


def _checked_output(output: Any) -> ToolOutput:
    if not isinstance(output, ToolOutput):
        raise TypeError(f"it gave {type(output).__name__}, not ToolOutput")
    return output


def _is_cancelled() -> bool:
    """True if someone asked the running task to stop, not if its code merely raised CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _own_error_in(error: BaseException) -> EpisodeError | UsageError | None:
    """The first EpisodeError or UsageError inside an exception group, however deep."""
    if isinstance(error, (EpisodeError, UsageError)):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for each in inner if (found := _own_error_in(each))), None)


def _tool_bug(call: ToolCall, error: BaseException) -> EpisodeError:
    return EpisodeError(f"tool '{call.name}' raised {type(error).__name__}: {error}", cause=FailureCause.TOOL)


def _shortened(text: str, limit: int) -> str:
    """At most `limit` characters: head and tail, with the size of what is left out between them."""
    if len(text) <= limit:
        return text
    gap = f" … {len(text) - limit} characters left out … "
    kept = max(limit - len(gap), 2)
    return text[: (kept + 1) // 2] + gap + text[len(text) - kept // 2 :]
