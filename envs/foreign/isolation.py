"""Keeping a foreign game to itself: its own global random state, and no say on standard output.

The global generators and `sys.stdout` belong to the whole process, so only one foreign call runs at a time. Most take
microseconds. One that does not come back within its limit makes the calls that wait for it fail.
"""

from __future__ import annotations

import logging
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

R = TypeVar("R")

_POLL_S = 0.2
_one_at_a_time = threading.Lock()
_overdue_at = [math.inf]  # when the call that runs now has taken too long, in time.monotonic()
_log = logging.getLogger(__name__)


class OtherGameBlocksError(Exception):
    """Another foreign call did not come back in time."""


class Isolation:
    """One game's view of the global generators of `random` and numpy.

    Args:
        seed: of both, until `seed` is called.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """What the game draws from now on follows from this seed."""
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed % 2**32).get_state(legacy=False)

    def run(self, limit_s: float, begun: Callable[[], None], function: Callable[[], R]) -> R:
        """Call `function` with the game's generators in place; what it prints goes to the log, at level DEBUG.

        Args:
            limit_s: how long it may take; kept by those who wait for it, not here.
            begun: is called when no other call is in the way any more.
            function: the blocking call.

        Raises:
            OtherGameBlocksError: the call before is overdue.
        """
        while not _one_at_a_time.acquire(timeout=_POLL_S):
            if time.monotonic() > _overdue_at[0]:
                raise OtherGameBlocksError("another game's call does not come back")
        try:
            _overdue_at[0] = time.monotonic() + limit_s
            begun()
            with self._generators(), _output_logged():
                return function()
        finally:
            _overdue_at[0] = math.inf
            _one_at_a_time.release()

    @contextmanager
    def _generators(self) -> Iterator[None]:
        outer = random.getstate(), np.random.get_state(legacy=False)
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
            random.setstate(outer[0])
            np.random.set_state(outer[1])


class _Diverted:
    """A stream that keeps what one thread writes and hands on what all others do."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._thread: int | None = threading.get_ident()
        self.said: list[str] = []

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            self.said.append(text)
            return len(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def end(self) -> str:
        """What was kept. Whoever holds on to this stream writes to the one behind it from now on."""
        self._thread = None
        return "".join(self.said)


@contextmanager
def _output_logged() -> Iterator[None]:
    out, errors = _Diverted(sys.stdout), _Diverted(sys.stderr)
    former = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, errors
    try:
        yield
    finally:
        said = out.end() + errors.end()
        if sys.stdout is out:  # else somebody put another stream there meanwhile
            sys.stdout = former[0]
        if sys.stderr is errors:
            sys.stderr = former[1]
        if said.strip():
            _log.debug("the game printed: %s", said)


@contextmanager
def root_logger_kept() -> Iterator[None]:
    """Inside, a library may set up logging for the whole process (`logging.basicConfig`); afterwards it is undone."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
