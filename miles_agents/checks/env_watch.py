"""Finding code that holds up the event loop: it is interrupted, so that the checks can go on and say where it stood."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNAL = getattr(signal, "SIGVTALRM", None)  # of a timer that nobody here sets; not on Windows
_BEAT_S = 0.2


class LoopBlockedError(BaseException):
    """Raised inside the code that did not let the event loop go on; no `except Exception` of that code stops it."""


class LoopWatch:
    """Interrupts whatever keeps the event loop of the main thread from going on for too long.

    Args:
        patience_s: how long the loop may stand still.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._paused = 0
        self._last = 0.0
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the running loop; outside the main thread, where no signal arrives, nothing is watched."""
        if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        former = signal.signal(_SIGNAL, self._interrupt)
        self._beat()
        thread = threading.Thread(target=self._watch, args=(loop, threading.get_ident()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            signal.signal(_SIGNAL, former)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What may rightly take long, such as reading data, is not interrupted."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._beat()

    def _beat(self) -> None:
        self._last = time.monotonic()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        assert _SIGNAL is not None
        while not self._ended.wait(_BEAT_S):
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(self._beat)
            if not self._paused and time.monotonic() - self._last > self.patience_s:
                self._beat()
                signal.pthread_kill(thread_id, _SIGNAL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}" if frame else "?"
        raise LoopBlockedError(f"the event loop stood still for {self.patience_s:g} s in {where}")
