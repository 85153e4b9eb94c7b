"""How long the thread that asks may work on a pair itself; past that, a worker process has to.

An answer of 200 characters can ask for minutes of exact arithmetic, and the thread that asks may run an event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class LateError(Exception):
    """The time given by `within` is over."""


class _Own(threading.local):
    deadline = float("inf")


_own = _Own()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Have `check` raise in this thread once so many seconds are over."""
    _own.deadline = time.perf_counter() + seconds
    try:
        yield
    finally:
        _own.deadline = float("inf")


def check() -> None:
    """Called wherever work may add up.

    Raises:
        LateError: it did.
    """
    if time.perf_counter() > _own.deadline:
        raise LateError
