"""Sessions made ahead, so that nobody waits for a container to start.

take ──► ready? ──yes──► it
           │no
           ▼
         wait, first come first served ◄── launches: as many as are waited for and missing from the ready ones,
                                           so many at a time
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.docker.launch import Launched
from miles_agents.tools.sandboxes.docker.owned_tasks import OwnedTasks


class ContainerPool:
    """Keeps launches under way and sessions ready.

    A launch that fails while somebody waits is that one's error; one that fails ahead of need is kept for the next
    `take`, and none is started before that.

    Args:
        launch: makes a session; cleans up behind itself when it fails or is cancelled.
        discard: takes a session that nobody needs any more.
        size: sessions to keep ready.
        at_once: launches at a time.
    """

    def __init__(
        self,
        launch: Callable[[], Awaitable[Launched]],
        discard: Callable[[Launched], None],
        *,
        size: int,
        at_once: int,
    ) -> None:
        self._launch = launch
        self._discard = discard
        self._size = size
        self._turns = asyncio.Semaphore(at_once)
        self._ready: deque[Launched] = deque()
        self._waiting: deque[asyncio.Future[Launched]] = deque()
        self._launches: deque[asyncio.Task[None]] = deque()
        self._tasks = OwnedTasks()
        self._error: Exception | None = None
        self._closed = False

    @property
    def ready(self) -> int:
        """Sessions that can be had at once."""
        return len(self._ready)

    def put(self, launched: Launched) -> None:
        """Add a session that was made elsewhere."""
        self._deliver(launched)

    def fill(self) -> None:
        """Start what is missing, end what is too much; returns at once."""
        wanted = len(self._waiting)
        if not self._closed and self._error is None:
            wanted += max(0, self._size - len(self._ready))
        while len(self._launches) < wanted:
            self._launches.append(self._tasks.start(self._make_one()))
        while len(self._launches) > wanted:
            self._launches.pop().cancel()

    async def take(self) -> Launched:
        """A session: a ready one, or the next that is.

        Raises:
            SandboxError: it could not be set up, or an earlier one made ahead could not.
        """
        if self._closed:
            raise SandboxError("the sandbox provider is not running: call start() first")
        if self._ready:
            launched = self._ready.popleft()
            self.fill()
            return launched
        if self._error is not None:
            error, self._error = self._error, None
            self.fill()
            raise error
        waiting: asyncio.Future[Launched] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self.fill()
        try:
            return await waiting
        except asyncio.CancelledError:
            self._leave(waiting)
            raise

    async def close(self) -> None:
        """End all launches, discard all ready sessions, refuse those who wait."""
        self._closed = True
        while self._waiting:
            self._refuse(self._waiting.popleft(), SandboxError("the sandbox provider was closed"))
        self._launches.clear()
        await self._tasks.cancel()
        while self._ready:
            self._discard(self._ready.popleft())

    async def _make_one(self) -> None:
        task = asyncio.current_task()
        try:
            async with self._turns:
                launched = await self._launch()
        except Exception as error:  # noqa: BLE001 — the seam to those who wait: whatever it is, it is theirs
            self._fail(error)
        else:
            self._deliver(launched)
        finally:
            self._launches = deque(each for each in self._launches if each is not task)
            self.fill()

    def _deliver(self, launched: Launched) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(launched)
                return
        if self._closed:
            self._discard(launched)
        else:
            self._ready.append(launched)

    def _fail(self, error: Exception) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._refuse(waiting, error)
                return
        self._error = error

    def _refuse(self, waiting: asyncio.Future[Launched], error: Exception) -> None:
        if not waiting.done():
            waiting.set_exception(error)
            waiting.exception()  # seen, should the one who waits be cancelled at this moment

    def _leave(self, waiting: asyncio.Future[Launched]) -> None:
        """The one who waited is gone; a session that had just been handed over goes to the next."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        elif waiting.done() and not waiting.cancelled() and waiting.exception() is None:
            self._deliver(waiting.result())
        self.fill()
