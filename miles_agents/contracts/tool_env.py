"""`ToolEnv`: an environment for "answer with tools".

A subclass gives `tools`, `tasks(split)` and `reward(episode)`; this class runs the tools (see `tool_calls`), answers
malformed calls, keeps the limits and scores the end.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from miles_agents.contracts.env import Env, Observation, ResetResult, StepResult
from miles_agents.contracts.rewards import Reward, Scorer, Scoring, as_reward, marked_rewards
from miles_agents.contracts.sandbox import OnDemandSandbox, Sandbox, SandboxProvider
from miles_agents.contracts.tool_calls import ToolCalls, call_with_retries
from miles_agents.contracts.tools import (
    Shared,
    Tool,
    ToolContext,
    ToolOutput,
    ToolSource,
    as_tool,
    marked_methods,
)
from miles_agents.errors import SandboxError, UsageError
from miles_agents.types import Episode, Message, Reply, Task, ToolCall, ToolEvent


class ToolEnv(Env):
    """An episode: the task's prompt, then turns of calls and tool messages, until it ends.

    A reply without calls terminates the episode, and so does a call that submits an answer
    (`ToolOutput(submitted=…)`, e.g. of `SubmitTool`); the answer is then in `Episode.submitted`. A reply cut by a token
    limit, or the last allowed turn still calling tools, truncates it; it is scored as it stands, and the calls do not
    run, except in a last turn that may submit an answer.

    The calls of one reply run at the same time and are answered in the order written; those of tools that need the
    sandbox run one after another, and a call that may end the episode alone, in its place in that order. Calls written
    behind the one that ended it are answered and do not run.

    What tool code raises: `ToolError` is shown to the model; `InfrastructureError` is tried again as the tool's limits
    allow, then ends the episode; `EpisodeError` ends the episode; `UsageError` stops the run; anything else is a bug of
    the tool and ends the episode as `EpisodeError` of cause `tool`. The same holds for `reward`, where a bug is a
    `GraderError`.
    """

    configurable: ClassVar[tuple[str, ...]] = (
        "max_turns",
        "tool_timeout_s",
        "max_calls_per_turn",
        "reward_weights",
        "shaping",
    )

    tools: Sequence[Tool | ToolSource | Callable[..., Any]] = ()
    max_turns: int = 8
    max_calls_per_turn: int = 16  # further calls of one reply are answered with an error
    max_output_chars: int = 16_000  # of one tool's answer; the middle is left out
    tool_timeout_s: float = 30.0  # of one call; a tool's own `limits.timeout_s` goes first
    reward_timeout_s: float = 30.0
    rewards: Sequence[Reward | Callable[..., Any]] = ()  # components besides those of `reward`
    reward_weights: Mapping[str, float] = {}  # by reward name; a name left out weighs 1, or its `Reward.weight`
    shaping: Mapping[str, float] = {}  # weights of counts, e.g. {"per_tool_error": -0.1}; see rewards.SHAPING

    _episode: Episode | None = None
    _toolbox: Mapping[str, Tool] | None = None  # made at the first reset; the same for every episode
    _shared: tuple[Shared, ...] | None = None  # what `open_shared` made ready; None: it was not called yet
    _schemas: Sequence[dict[str, Any]] = ()
    _sandbox: OnDemandSandbox | None = None
    _scorer: Scorer | None = None  # of the running episode

    @abstractmethod
    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, always the same and in the same order."""

    def reward(self, episode: Episode) -> Any:
        """Score a finished episode: a float, or floats by name. May be async. Plain functions run in a thread.

        Not needed where `rewards` or methods marked with `@reward` say it all.
        """
        raise NotImplementedError

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
        """The entries of `tools`, then the methods marked with `@tool`.

        Raises:
            UsageError: an entry is no tool, or a server's tools are not known yet: `open_shared` comes before.
        """
        found: list[Tool] = []
        for entry in self.tools:
            found.extend(entry.tools() if isinstance(entry, ToolSource) else [as_tool(entry)])
        return (*found, *marked_methods(self))

    async def open_shared(self) -> None:
        """Make the connections and indexes of the tools ready; check how episodes are scored."""
        self._scoring()
        sources = [entry for entry in self.tools if isinstance(entry, ToolSource)]
        for source in sources:  # before all_tools(): only then their tools are known
            await source.open()
        tools = [tool for tool in self.all_tools() if isinstance(tool, Shared)]
        for tool in tools:
            await tool.open()
        self._shared = (*sources, *tools)

    async def close_shared(self) -> None:
        """Free the connections and indexes of the tools."""
        for each in self._shared or ():
            await each.close()
        self._shared = None

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin an episode of `options["task"]`.

        Raises:
            UsageError: no task was given, or two tools have one name.
            SandboxError: a tool needs a sandbox and none was lent. It is opened by its first use.
            InfrastructureError: a connection or index of a tool cannot be made ready now.
        """
        await self.close()
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError("reset() needs options={'task': Task(…)}")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        toolbox = await self._named_tools()
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
        last = len(episode.replies) >= self.max_turns
        calls = self._tool_calls()
        if last and not calls.may_end_episode(action.calls):
            return await self._finish(truncated_by="max_turns")
        try:
            events = tuple(await calls.run(action.calls))
        finally:
            if calls.left_running:
                self.reusable = False
        observation = tuple(Message.tool(event.result, call=event.call) for event in events)
        episode.tool_events.extend(events)
        episode.messages.extend(observation)
        episode.submitted = calls.submitted
        if last or calls.submitted is not None:
            truncated_by = "max_turns" if calls.submitted is None else ""
            return await self._finish(truncated_by=truncated_by, observation=observation, events=events)
        return StepResult(observation, await self._turn_reward(), False, False, {"tool_events": events})

    async def truncate(self, reason: str) -> StepResult:
        """Score the episode as it stands."""
        self._current()
        return await self._finish(truncated_by=reason)

    async def call_tool(self, tool: Tool, call: ToolCall, context: ToolContext) -> ToolOutput:
        """Hook around every well-formed call, its retries included.

        Draw from `np_random` before the first await to stay reproducible.
        """
        return await call_with_retries(tool, call.arguments or {}, context)

    async def close(self) -> None:
        """End the episode and its sandbox."""
        self._episode = None
        self._scorer = None
        if self._sandbox is not None:
            await self._sandbox.close()
            self._sandbox = None  # not before: a close that was cancelled is tried again by the next one

    def _current(self) -> Episode:
        if self._episode is None:
            raise UsageError("step() before reset(), or after the episode ended: call reset() first")
        return self._episode

    async def _named_tools(self) -> Mapping[str, Tool]:
        if self._shared is None:
            await self.open_shared()
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

    def _tool_calls(self) -> ToolCalls:
        return ToolCalls(
            tools=self._toolbox or {},
            call_tool=self.call_tool,
            context=ToolContext(sandbox=self._sandbox, np_random=self.np_random),
            sandbox=self._sandbox,
            timeout_s=self.tool_timeout_s,
            max_calls=self.max_calls_per_turn,
            max_output_chars=self.max_output_chars,
        )

    async def _finish(
        self, *, truncated_by: str, observation: Observation = (), events: tuple[ToolEvent, ...] = ()
    ) -> StepResult:
        episode = self._current()
        episode.truncated = bool(truncated_by)
        try:
            total = await self._turn_reward()
            final, rewards = await self._scorer_now().at_end()
        finally:
            self._note_left_running()
            await self.close()
        info = {"rewards": rewards, "truncated_by": truncated_by, "tool_events": events}
        return StepResult(observation, total + final, not truncated_by, bool(truncated_by), info)

    async def _turn_reward(self) -> float:
        try:
            return await self._scorer_now().after_turn()
        finally:
            self._note_left_running()

    def _note_left_running(self) -> None:
        if self._scorer is not None and self._scorer.left_running:
            self.reusable = False

    def _scorer_now(self) -> Scorer:
        if self._scorer is None:  # the episode's settings hold from its first score on
            self._scorer = Scorer(self._scoring(), self._current())
        return self._scorer

    def _scoring(self) -> Scoring:
        """How episodes are scored now; made anew, since settings are attributes anybody may set."""
        return Scoring(
            owner=type(self).__name__,
            whole=None if type(self).reward is ToolEnv.reward else self.reward,
            rewards=(*map(as_reward, self.rewards), *marked_rewards(self)),
            weights=self.reward_weights,
            shaping=self.shaping,
            timeout_s=self.reward_timeout_s,
        )
