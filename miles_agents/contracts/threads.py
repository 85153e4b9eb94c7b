"""Plain (blocking) functions off the event loop, one daemon thread a call.

A shared pool would let a few functions that never return starve every later call, and its threads are joined when
the interpreter exits; a thread of its own does neither. A function that never returns keeps its thread: what must be
killable belongs in a process.
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def run_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in a thread of its own and wait for it; a cancelled wait leaves it running, unheard.

    Raises:
        RuntimeError: the function raised something that would end a thread or a coroutine quietly (`SystemExit`,
            `KeyboardInterrupt`, `StopIteration`); everything else is raised as it is.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        result: Any = None
        failure: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 — carried to the waiting coroutine, which raises it
            failure = _as_exception(error)
        try:
            loop.call_soon_threadsafe(_settle, future, result, failure)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            return

    # Thread.start() waits until the new thread has run; beside a busy thread that is several milliseconds a call, in
    # which the event loop stands still.
    _thread.start_new_thread(work, ())
    return await future


def _as_exception(error: BaseException) -> BaseException:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    replacement = RuntimeError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    replacement.__cause__ = error
    return replacement


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)
