"""One call in progress: its clock, its output, and the wait for its end."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from miles_agents.tools.sandboxes.runner.capture import Capture

GRACE_S = 0.5  # between the interrupt and the kill; a Popen that is interrupted waits 0.25 s for its child
HARD_STOP_FACTOR = 64  # a stream may be this many times longer than what is shown of it
TICK_S = 0.1  # how often a long call is looked at
_SHORT_MS = 1  # what a call this short prints is taken once, at its end, and not piece by piece
_READ_BYTES = 1 << 16
_LATE_BYTES = 4096


class Call:
    """The state of one call.

    Args:
        timeout_s: from now to the interrupt.
        shown_bytes: of each stream.
    """

    def __init__(self, timeout_s: float, shown_bytes: int) -> None:
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.stdout = Capture(shown_bytes)
        self.stderr = Capture(shown_bytes)
        self.late = Capture(_LATE_BYTES)
        self.hard_stop_bytes = HARD_STOP_FACTOR * shown_bytes
        self.status = ""  # empty until it ended
        self.interrupted = False
        self.forged = False

    def result(self, *, state_lost: bool, exit_code: int | None, strays_killed: int) -> dict[str, object]:
        """The fields of the answer; see `ExecResult`."""
        return {
            "status": "timeout" if self.interrupted else self.status,
            "stdout": self.stdout.text(),
            "stderr": self.stderr.text(),
            "state_lost": state_lost,
            "late_output": self.late.text(),
            "duration_s": time.monotonic() - self.started,
            "exit_code": exit_code,
            "strays_killed": strays_killed,
            "forged_frames": self.forged,
        }


class Watch:
    """Waits for the end of a call.

    Args:
        call: its `status` ends the wait; over its deadline it is interrupted once, then its status is "timeout".
        host_fd: when the host hangs up the session ends.
        interrupt: asks the code to stop.
        look: called every `TICK_S`, for what no descriptor tells.
    """

    def __init__(self, call: Call, host_fd: int, *, interrupt: Callable[[], None], look: Callable[[], None]) -> None:
        self._call = call
        self._interrupt = interrupt
        self._look = look
        self._poller = select.poll()
        self._poller.register(host_fd, select.POLLRDHUP)
        self._streams: dict[int, Capture] = {}
        self._events: dict[int, Callable[[], None]] = {host_fd: _end_session}

    def capture(self, fd: int, stream: Capture) -> None:
        """Take what comes from a descriptor, if the call is not a short one; what is left there is the caller's."""
        self._streams[fd] = stream

    def on_event(self, fd: int, react: Callable[[], None]) -> None:
        """Call `react` when there is something to read."""
        self._events[fd] = react
        self._poller.register(fd, select.POLLIN)

    def wait(self) -> None:
        """Until the call has a status."""
        call = self._call
        if not call.status:
            for fd, _ in self._poller.poll(_SHORT_MS):
                self._events[fd]()
        for fd in self._streams:
            self._poller.register(fd, select.POLLIN)
        next_look = call.started + TICK_S
        while not call.status:
            left = call.deadline - time.monotonic()
            for fd, event in self._poller.poll(max(0.0, min(left, TICK_S)) * 1000):
                if fd in self._streams:
                    self._take(fd, event)
                else:
                    self._events[fd]()
            if left <= 0 and not call.status:
                self._overdue()
            elif time.monotonic() >= next_look:
                next_look = time.monotonic() + TICK_S
                self._look()

    def _take(self, fd: int, event: int) -> None:
        stream = self._streams[fd]
        data = read_some(fd)
        if data:
            stream.add(data)
        elif data is not None or event & select.POLLHUP:
            self._poller.unregister(fd)
        if stream.total > self._call.hard_stop_bytes:
            self._call.status = "output_limit"

    def _overdue(self) -> None:
        """First an interrupt, which keeps the session's state; then the end."""
        if self._call.interrupted:
            self._call.status = "timeout"
            return
        self._call.interrupted = True
        self._call.deadline = time.monotonic() + GRACE_S
        self._interrupt()


def _end_session() -> None:
    """The host is gone: PID 1 ends, and the kernel ends everything in the session."""
    os._exit(0)


def read_some(fd: int) -> bytes | None:
    """What is there now: b"" at the end, None if nothing yet."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None


def take(fd: int, into: Capture, *, at_most: int = 1 << 20) -> bool:
    """Take what is there, within a bound; False at the end of the stream."""
    start = into.total
    while into.total - start < at_most:
        try:
            data = read_some(fd)
        except OSError:
            return False
        if not data:
            return data is None
        into.add(data)
        if len(data) < _READ_BYTES:  # of a pipe: that was all
            return True
    return True
