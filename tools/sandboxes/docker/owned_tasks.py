"""Background tasks with an owner: none is lost, none outlives the close, no failure goes unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class OwnedTasks:
    """Tasks that outlive the call that started them, until `finish` or `cancel`."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Result], *, quiet: bool = False) -> asyncio.Task[Result]:
        """Run it in the background.

        Args:
            work: what to run.
            quiet: somebody else looks at how it ends; otherwise a failure is logged.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(_see if quiet else _report)
        return task

    async def finish(self, within_s: float) -> bool:
        """Wait until all have ended; False if some have not by then."""
        deadline = asyncio.get_running_loop().time() + within_s
        while self._running:  # a task may start another one
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return False
            await asyncio.wait(set(self._running), timeout=left)
        return True

    async def cancel(self) -> None:
        """End them all, and wait until they have."""
        for task in set(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running))


def _see(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a background task of the Docker launcher failed", exc_info=error)
