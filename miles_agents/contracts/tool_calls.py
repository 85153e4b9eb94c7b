"""Running the tool calls of one reply: answered in call order, under deadlines and limits.

```
call ─► known, readable, not one too many? ─► sandbox's turn ─► free place ─► deadline [ try ─► try again ] ─► event
                  no: answered by an error    └───────── wait_s ─────────┘    └───────── duration_s ──────┘
```
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from miles_agents.contracts.sandbox import OnDemandSandbox
from miles_agents.contracts.tools import Tool, ToolContext, ToolOutput, limits_of, may_end_episode
from miles_agents.errors import (
    EpisodeError,
    FailureCause,
    InfrastructureError,
    ToolError,
    ToolErrorKind,
    UsageError,
    did_you_mean,
)
from miles_agents.types import ToolCall, ToolEvent

MAX_NAME_CHARS = 80  # of a name the model made up

_MAX_ERROR_CHARS = 1000  # of one error shown to the model
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0

CallTool = Callable[[Tool, ToolCall, ToolContext], Awaitable[ToolOutput]]


@dataclass(slots=True)
class _Clock:
    """When a call was asked for and when its tool began."""

    asked: float = field(default_factory=time.perf_counter)
    began: float | None = None
    retries: int = 0

    def times(self) -> dict[str, float]:
        now = time.perf_counter()
        began = now if self.began is None else self.began
        return {"duration_s": now - began, "wait_s": began - self.asked}


class _Numbered(NamedTuple):
    place: int  # in its turn
    call: ToolCall


@dataclass(slots=True, kw_only=True)
class ToolCalls:
    """Runs the calls of one reply.

    Calls run at the same time, those of tools that need the sandbox one after another in the order written, and a call
    that may end the episode alone: after the calls before it and before the calls behind it. Once one has ended it, the
    calls behind it are answered and never run.
    """

    tools: Mapping[str, Tool]
    call_tool: CallTool  # runs one well-formed call
    context: ToolContext
    sandbox: OnDemandSandbox | None
    timeout_s: float  # of a call of a tool that has no limit of its own
    max_calls: int  # further ones are answered with an error
    max_output_chars: int

    submitted: str | None = None  # the final answer, once a call has ended the episode
    left_running: bool = False  # a call was given up while its tool may still be at work

    async def run(self, calls: Sequence[ToolCall]) -> list[ToolEvent]:
        """One event per call, in call order.

        Raises:
            EpisodeError: of a tool, as it is; a tool's bug; or an infrastructure fault that stayed.
            UsageError: of a tool, as it is.
        """
        events: list[ToolEvent] = []
        for together in self._stretches(calls):
            if self.submitted is not None:
                events.extend(_not_executed(call, "the episode has ended") for _, call in together)
            else:
                events.extend(await self._run_together(together))
        return events

    def _stretches(self, calls: Sequence[ToolCall]) -> Iterator[list[_Numbered]]:
        """The calls in order, cut into what runs at the same time."""
        numbered = [_Numbered(place, call) for place, call in enumerate(calls)]
        for alone, stretch in groupby(numbered, lambda each: self._may_end_episode(each.call)):
            together = list(stretch)
            yield from ([each] for each in together) if alone else [together]

    def _may_end_episode(self, call: ToolCall) -> bool:
        return call.error is None and call.name in self.tools and may_end_episode(self.tools[call.name])

    def may_end_episode(self, calls: Sequence[ToolCall]) -> bool:
        """True if one of these calls may end the episode."""
        return any(self._may_end_episode(call) for call in calls[: self.max_calls])

    async def _run_together(self, calls: Sequence[_Numbered]) -> list[ToolEvent]:
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._run_call(each.call, each.place)) for each in calls]
                # Waiting here, not in the group's exit: there Python 3.11 leaves this task marked as being cancelled
                # after a child failed (python/cpython#116720), and deadlines around it go wrong. Can go with 3.13.
                await asyncio.wait(running)
        except BaseExceptionGroup as failures:
            if is_cancelled():  # a child that failed while it was cancelled hides the cancellation
                raise asyncio.CancelledError from failures
            own = own_error_in(failures)
            if own is None:
                raise
            raise own from own.__cause__
        return [task.result() for task in running]

    async def _run_call(self, call: ToolCall, place: int) -> ToolEvent:
        clock = _Clock()
        try:
            output = self._checked(call, await self._dispatch(call, place, clock))
        except ToolError as error:
            output = ToolOutput(shortened(f"Error: {error}", _MAX_ERROR_CHARS), ok=False, error_kind=error.kind)
        except (EpisodeError, UsageError):
            raise
        except asyncio.CancelledError as error:
            self.left_running = True
            if is_cancelled():
                raise
            raise _tool_bug(call, error) from error
        except Exception as error:  # noqa: BLE001 — seam: a bug in a tool loses this episode, not the run
            own = own_error_in(error)
            raise (own or _tool_bug(call, error)) from (own.__cause__ if own else error)
        return ToolEvent(
            call=call,
            result=shortened(output.text, self.max_output_chars),
            ok=output.ok,
            error_kind=output.error_kind,
            info={**output.info, "retries": clock.retries} if clock.retries else output.info,
            **clock.times(),
        )

    def _checked(self, call: ToolCall, output: Any) -> ToolOutput:
        if not isinstance(output, ToolOutput):
            raise TypeError(f"it gave {type(output).__name__}, not ToolOutput")
        if output.submitted is not None:
            if not may_end_episode(self.tools[call.name]):
                raise TypeError("it gave ToolOutput(submitted=…), but its ends_episode is not True")
            self.submitted = output.submitted
        return output

    async def _dispatch(self, call: ToolCall, place: int, clock: _Clock) -> ToolOutput:
        if place >= self.max_calls:
            kind = ToolErrorKind.NOT_EXECUTED
            raise ToolError(f"not executed: at most {self.max_calls} calls in one turn", kind=kind)
        if call.error is not None:
            raise ToolError(call.error, kind=ToolErrorKind.MALFORMED_CALL)
        if call.name not in self.tools:
            name = shortened(call.name, MAX_NAME_CHARS)
            hint = did_you_mean(name, self.tools)
            raise ToolError(f"unknown tool '{name}'. {hint}", kind=ToolErrorKind.UNKNOWN_TOOL)
        tool = self.tools[call.name]
        # A session runs one call at a time; waiting for it to start or for another call is no fault of this one. The
        # place is taken last: a call that waits for its session must not hold it.
        async with self.sandbox.turn() if self.sandbox and tool.needs_sandbox else nullcontext(), _place(tool):
            clock.began = time.perf_counter()
            return await self._within_deadline(tool, call, clock)

    async def _within_deadline(self, tool: Tool, call: ToolCall, clock: _Clock) -> ToolOutput:
        timeout_s = limits_of(tool).timeout_s or self.timeout_s
        context = replace(self.context, faults=[])
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await self.call_tool(tool, call, context)
        except TimeoutError as error:
            if not deadline.expired():
                raise  # the tool's own, a bug
            self.left_running = True
            if context.faults:  # the time went into faults that are none of the model's
                raise _gave_up(tool, context.faults) from context.faults[-1]
            message = f"'{call.name}' timed out after {timeout_s:g} s"
            raise ToolError(message, kind=ToolErrorKind.TIMEOUT) from error
        finally:
            clock.retries = len(context.faults)


async def call_with_retries(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    """Call a tool, and again after an `InfrastructureError` as often as its limits allow, waiting longer each time.

    Raises:
        InfrastructureError: the fault stayed.
        ToolError: as the tool raised it.
    """
    retries = limits_of(tool).retries
    for attempt in range(retries + 1):
        try:
            return await tool.call(arguments, context)
        except InfrastructureError as error:
            context.faults.append(error)
            if attempt == retries:
                raise _gave_up(tool, context.faults) from error
        await asyncio.sleep(_backoff_s(attempt))
    raise AssertionError("unreachable")


def _backoff_s(attempt: int) -> float:
    # Spread, so that many episodes do not come back to a server at the same moment.
    return min(_FIRST_BACKOFF_S * 2.0**attempt, _MAX_BACKOFF_S) * _spread.uniform(0.5, 1.5)


_spread = random.Random()  # decides nothing that is recorded


def _gave_up(tool: Tool, faults: Sequence[InfrastructureError]) -> InfrastructureError:
    tries = "" if len(faults) == 1 else f" {len(faults)} times"
    return InfrastructureError(f"tool '{tool.name}' failed{tries}: {faults[-1]}", cause=faults[-1].cause)


class _Places(NamedTuple):
    free: asyncio.Semaphore
    tool: Tool  # kept, so that its id is not given to another one


_places: dict[asyncio.AbstractEventLoop, dict[Hashable, _Places]] = {}


def _place(tool: Tool) -> AbstractAsyncContextManager[None]:
    """One of the places that all episodes of the process share; free at once for a tool without a limit."""
    limit = limits_of(tool).max_concurrency
    if limit is None:
        return nullcontext()
    loop = asyncio.get_running_loop()
    if loop not in _places:
        for closed in [each for each in _places if each.is_closed()]:
            del _places[closed]
    definition = getattr(tool, "definition", None)
    key: Hashable = (id(tool) if definition is None else definition, limit)
    return _places.setdefault(loop, {}).setdefault(key, _Places(asyncio.Semaphore(limit), tool)).free


def _not_executed(call: ToolCall, why: str) -> ToolEvent:
    return ToolEvent(call=call, result=f"Error: not executed: {why}", ok=False, error_kind=ToolErrorKind.NOT_EXECUTED)


def is_cancelled() -> bool:
    """True if someone asked the running task to stop, not if its code merely raised CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def own_error_in(error: BaseException) -> EpisodeError | UsageError | None:
    """The first EpisodeError or UsageError inside an exception group, however deep."""
    if isinstance(error, (EpisodeError, UsageError)):
        return error
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for each in inner if (found := own_error_in(each))), None)


def _tool_bug(call: ToolCall, error: BaseException) -> EpisodeError:
    return EpisodeError(f"tool '{call.name}' raised {type(error).__name__}: {error}", cause=FailureCause.TOOL)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters: head and tail, with the size of what is left out between them."""
    if len(text) <= limit:
        return text
    gap = f" … {len(text) - limit} characters left out … "
    kept = max(limit - len(gap), 2)
    return text[: (kept + 1) // 2] + gap + text[len(text) - kept // 2 :]
