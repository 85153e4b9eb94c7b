"""The private thread in which asynchronous environments run while synchronous code waits.

One per process: what environments share (sandbox launchers, connections) lives in one event loop. A process that was
forked gets its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 — it has to say what it does at the end before we say what we do
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from miles_agents.errors import UsageError

T = TypeVar("T")

_CANCEL_S = 10.0  # for what was interrupted to end
_log = logging.getLogger(__name__)


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="miles_agents.gym", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine to end in the loop.

        An interrupt (Ctrl-C) of the waiting thread cancels it, and is raised when it has ended.

        Raises:
            UsageError: called from the loop's own thread, where waiting would be for ever.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise UsageError("a Gymnasium environment cannot be used from inside an asynchronous one: await that one")
        ended = threading.Event()

        async def until_end() -> T:
            try:
                return await coroutine
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(until_end(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait(_CANCEL_S)
            raise

    def stop(self) -> None:
        """End the thread; what still runs in it is abandoned."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CANCEL_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


_current: LoopThread | None = None
_making = threading.Lock()
_at_exit: list[Callable[[], Coroutine[Any, Any, None]]] = []


def loop_thread() -> LoopThread:
    """This process's thread, started by the first call."""
    global _current
    with _making:
        if _current is None or _current.process_id != os.getpid():
            _current = LoopThread()
            # Closing a launcher needs threads, which are refused by the time atexit's functions run. There is no
            # public way to come before (CPython gh-86128); until there is, this is the one concurrent.futures has.
            threading._register_atexit(_end, _current)  # type: ignore[attr-defined]
        return _current


def close_at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have `close` run in the loop when the process ends."""
    _at_exit.append(close)


def _end(thread: LoopThread) -> None:
    if thread.process_id != os.getpid():  # a fork of the process that owns it
        return
    for close in _at_exit:
        try:
            thread.run(close())
        except Exception as error:  # noqa: BLE001 — seam: the process ends anyway, and what launchers hold with it
            _log.warning("what Gymnasium environments shared could not be closed: %r", error)
    thread.stop()
