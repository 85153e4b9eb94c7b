"""Who removes which container, and that it is removed, whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from miles_agents.contracts import SandboxCounters
from miles_agents.tools.sandboxes.docker.backend import ContainerBackend, ContainerError, Removal
from miles_agents.tools.sandboxes.docker.owned_tasks import OwnedTasks

_log = logging.getLogger(__name__)

_AT_ONCE = 8
_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.2  # before the second attempt; doubles with each
_LOOK_AGAIN_S = 0.1  # while the daemon itself is removing it
_IN_PROGRESS_S = 30.0
_UNCERTAIN_S = 2.0  # a creation without an answer may still happen for so long


class Removals:
    """Every container of a run, from before it is made until it is gone.

    A container is owned first (`own`), then made; from then on there is one way out, `start`, which may be called at
    any time, also while the daemon is still making it, and which nobody can cancel.

    Args:
        backend: removes.
        counters: where attempts that had to be repeated are counted.
    """

    def __init__(self, backend: ContainerBackend, counters: SandboxCounters) -> None:
        self._backend = backend
        self._counters = counters
        self._creations: dict[str, asyncio.Task[None] | None] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._given_up: set[str] = set()
        self._tasks = OwnedTasks()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @property
    def owned(self) -> set[str]:
        """Names of all containers that are or may be there."""
        return {*self._creations, *self._leaving, *self._given_up}

    def own(self, name: str) -> None:
        """Take responsibility for a container that will be made or that somebody left."""
        self._creations.setdefault(name, None)

    async def create(self, name: str, creation: Coroutine[Any, Any, None]) -> None:
        """Make an owned container. A caller that is cancelled leaves; the creation goes on to its end.

        Raises:
            ContainerError: it was not made, as far as is known.
        """
        task = self._creations[name] = self._tasks.start(creation, quiet=True)
        await asyncio.shield(task)

    def start(self, name: str) -> None:
        """Remove an owned container; returns at once, and does nothing if it is being removed already."""
        if name in self._creations:
            creation = self._creations.pop(name)
            self._leaving[name] = self._tasks.start(self._remove(name, creation))

    async def finish(self, within_s: float) -> set[str]:
        """Remove whatever is still owned, wait for all removals, and try once more what was given up.

        Returns:
            The names of containers that may still be there.
        """
        for name in list(self._creations):
            self.start(name)
        await self._tasks.finish(within_s)
        for name in self._given_up.copy():
            self._given_up.discard(name)
            self._leaving[name] = self._tasks.start(self._remove(name, None))
        await self._tasks.finish(within_s)
        return self.owned

    async def cancel(self) -> None:
        """Give up."""
        await self._tasks.cancel()

    async def _remove(self, name: str, creation: asyncio.Task[None] | None) -> None:
        certain = await self._creation_is_over(creation)
        gone = await self._try_often(name)
        if gone and not certain:
            await asyncio.sleep(_UNCERTAIN_S)
            gone = await self._try_often(name)
        self._leaving.pop(name, None)
        if not gone:
            self._given_up.add(name)

    async def _creation_is_over(self, creation: asyncio.Task[None] | None) -> bool:
        """Wait for the daemon's answer; False if there was none."""
        if creation is None:
            return True
        await asyncio.wait([creation])
        error = None if creation.cancelled() else creation.exception()
        return not creation.cancelled() and not (isinstance(error, ContainerError) and error.status == 0)

    async def _try_often(self, name: str) -> bool:
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                await self._until_gone(name)
            except ContainerError as error:
                self._counters.failed_removals += 1
                _log.warning("container %s could not be removed (attempt %d): %s", name, attempt + 1, error)
            else:
                return True
        return False

    async def _until_gone(self, name: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_IN_PROGRESS_S):
                while True:
                    if await self._attempt(name) is not Removal.IN_PROGRESS:
                        return
                    await asyncio.sleep(_LOOK_AGAIN_S)
        raise ContainerError(f"its removal has been in progress for {_IN_PROGRESS_S:g} s")

    async def _attempt(self, name: str) -> Removal:
        async with self._turns:
            return await self._backend.remove(name)
