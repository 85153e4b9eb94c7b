"""Ctrl-C and SIGTERM: both end a run in the same way, at the next safe point or, the second time, at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from types import TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def terminate_as_interrupt() -> None:
    """Let SIGTERM do what Ctrl-C does, so that what was opened is closed; in the main thread only."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


class StopOnSignals:
    """The first Ctrl-C (or SIGTERM) sets `stop`; the second interrupts at once. In the event loop's main thread.

    Args:
        stop: who works looks at it at the next safe point.
        said: is written to standard error at the first signal.
    """

    def __init__(self, stop: asyncio.Event, *, said: str) -> None:
        self._stop = stop
        self._said = said

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._former = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._on_signal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _give_back(self) -> None:
        for number in _SIGNALS:
            if self._loop.remove_signal_handler(number):
                signal.signal(number, self._former[number])

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            sys.stderr.write(f"\n{self._said}\n")
            self._stop.set()
        else:
            self._give_back()
            raise KeyboardInterrupt
