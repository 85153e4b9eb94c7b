"""Environment instances: made on demand, used by one episode at a time, used again."""

from __future__ import annotations

import asyncio
import copy
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from miles_agents.contracts import Env, EnvResources, ResetResult, StepResult
from miles_agents.contracts.tools import Tool
from miles_agents.errors import DataError, EpisodeError, ToolErrorKind, UsageError, did_you_mean
from miles_agents.rollout.source import refuse_equal_ids
from miles_agents.types import Reply, Task, ToolEvent, Trajectory

_CLOSE_S = 30.0
_log = logging.getLogger(__name__)

TOOLS_REFUSED = "tool calls are refused; answer without tools"


async def close_environment(env: Env) -> bool:
    """Close an environment after its episode, which stays as it is; False if that failed or took too long."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await env.close()
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 — seam: a bug in `close` loses what it held, not the run
        why = f"it took more than {_CLOSE_S:g} s" if isinstance(error, TimeoutError) else repr(error)
        _log.warning("%s could not be closed and is not used again: %s", type(env).__name__, why)
        return False
    return True


class EnvironmentPool:
    """Lends environments to episodes.

    Args:
        make: a new instance.
        resources: lent to each.
        refuse_tools: answer every tool call with a refusal (what can the policy do without tools?).
    """

    def __init__(self, make: Callable[[], Env], resources: EnvResources, *, refuse_tools: bool = False) -> None:
        self._make = make
        self._resources = resources
        self._refuse_tools = refuse_tools
        self._idle: list[Env] = []
        self._catalogue = make()
        self._made = weakref.WeakSet([self._catalogue])  # each may have opened something of its own

    @property
    def catalogue(self) -> Env:
        """An instance that plays no episode: its tasks, tools and reward range are those of all."""
        return self._catalogue

    def tools(self) -> tuple[Tool, ...]:
        """What an episode offers."""
        return self._catalogue.all_tools()

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split.

        Raises:
            DataError: no such split, it is empty, or two of its tasks have one id.
        """
        splits = self._catalogue.splits
        if split not in splits:
            raise DataError(f"the environment has no split {split!r}. {did_you_mean(split, splits)}")
        tasks = list(self._catalogue.tasks(split))
        if not tasks:
            raise DataError(f"the environment's split {split!r} is empty")
        refuse_equal_ids(tasks)
        return tasks

    def refusing_tools(self) -> EnvironmentPool:
        """A pool of the same environments in which every tool call is refused."""
        pool = copy.copy(self)  # with the same catalogue: what that has opened is open
        pool._refuse_tools = True
        pool._idle = []
        return pool

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Inside, what the environments share (connections and indexes of tools) is ready; it is freed at the end.

        Raises:
            UsageError: something cannot be made ready.
        """
        try:
            try:
                await self._catalogue.open_shared()
            except EpisodeError as error:  # no episode is to blame yet: the operator is told
                raise UsageError(str(error)) from error
            yield
        finally:
            for env in list(self._made):
                await env.close_shared()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Env]:
        """An environment for one episode; closed and taken back at the end."""
        env = self._idle.pop() if self._idle else self._new()
        try:
            yield env
        finally:
            closed = await close_environment(env)
        if closed and env.reusable:  # and only if nothing was raised here: then it may be in any state
            self._idle.append(env)

    def _new(self) -> Env:
        env = self._make()
        env.bind(self._resources)
        self._made.add(env)
        return RefusingTools(env) if self._refuse_tools else env


class RefusingTools(Env):
    """The same environment, but each tool call is answered by a refusal and never runs."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.seats = env.seats

    @property
    def reusable(self) -> bool:  # type: ignore[override]
        """As the wrapped environment."""
        return self._env.reusable

    def tasks(self, split: str) -> Iterable[Task]:
        """As the wrapped environment."""
        return self._env.tasks(split)

    def all_tools(self) -> tuple[Tool, ...]:
        """As the wrapped environment: the policy still sees them."""
        return self._env.all_tools()

    async def open_shared(self) -> None:
        """As the wrapped environment."""
        await self._env.open_shared()

    async def close_shared(self) -> None:
        """As the wrapped environment."""
        await self._env.close_shared()

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """As the wrapped environment."""
        return await self._env.reset(seed=seed, options=options)

    async def step(self, action: Reply) -> StepResult:
        """Hand on the reply with every call marked as refused."""
        refused = tuple(replace(call, arguments=None, error=call.error or TOOLS_REFUSED) for call in action.calls)
        result = await self._env.step(replace(action, calls=refused))
        events = tuple(_as_refused(event) for event in result.info.get("tool_events", ()))
        return result._replace(info={**result.info, "tool_events": events})

    async def truncate(self, reason: str) -> StepResult:
        """As the wrapped environment."""
        return await self._env.truncate(reason)

    async def group_rewards(self, group: Sequence[Trajectory]) -> Sequence[Mapping[str, float]] | None:
        """As the wrapped environment."""
        return await self._env.group_rewards(group)

    async def close(self) -> None:
        """As the wrapped environment."""
        await self._env.close()


def _as_refused(event: ToolEvent) -> ToolEvent:
    """To the environment a refused call looks like one that could not be read."""
    return replace(event, error_kind=ToolErrorKind.NOT_EXECUTED) if event.call.error == TOOLS_REFUSED else event
