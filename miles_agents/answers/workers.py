"""The grader's side of its worker processes: starting, asking, killing."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

_START = "import sys; sys.path[:] = {path!r}; from miles_agents.answers.worker import main; sys.exit(main())"
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_FORK_S = 10.0  # for a warm process to fork, on a very busy machine
_DEATH_S = 10.0  # for a killed process to be gone


class WorkerLostError(Exception):
    """A process died, hung or spoke nonsense."""


class Worker:
    """One process that compares pairs; not for two threads at once."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection
        self._waiting = b""
        try:
            self._process = os.pidfd_open(pid)  # the number may go to another process, this cannot
        except OSError as error:
            connection.close()
            raise WorkerLostError("it died at once") from error

    def ask(self, question: dict[str, Any], time_s: float) -> dict[str, Any]:
        """The answer to one question.

        Raises:
            TimeoutError: none came within `time_s` seconds; the worker is to be killed.
            WorkerLostError: the worker died; it is to be killed all the same.
        """
        deadline = time.monotonic() + time_s
        try:
            self._connection.settimeout(time_s)
            self._connection.sendall(json.dumps(question).encode() + b"\n")
            line, self._waiting = read_line(self._connection, self._waiting, deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise WorkerLostError("it died") from error
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End it now; back when it is gone."""
        self._connection.close()
        with suppress(OSError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        select.select([self._process], [], [], _DEATH_S)
        os.close(self._process)

    def forget(self) -> None:
        """Let go of it in a forked child, whose parent it serves."""
        self._connection.close()
        os.close(self._process)


class Nursery:
    """The warm process from which workers are forked; started when the first worker is needed.

    It is started by exec, never by forking this process, and lives in a session of its own, so that a Ctrl-C is the
    parent's affair.

    Args:
        start_s: seconds in which it has to be ready.
        memory_mb: memory in MiB that a worker may take on top of what it begins with.
    """

    def __init__(self, *, start_s: float, memory_mb: int) -> None:
        self._start_s = start_s
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def worker(self) -> Worker:
        """A new worker.

        Raises:
            WorkerLostError: none could be had.
        """
        with self._lock:
            for last_try in (False, True):
                try:
                    return self._forked(self._warm())
                except (OSError, WorkerLostError) as error:
                    self._end()
                    if last_try:
                        raise WorkerLostError(f"no worker could be started: {error or 'not in time'}") from error
        raise AssertionError

    def _forked(self, control: socket.socket) -> Worker:
        mine, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [b"%d" % self._memory_mb], [theirs.fileno()])
                line, _ = read_line(control, b"", time.monotonic() + _FORK_S)
            except BaseException:
                mine.close()
                raise
        return Worker(int(line), mine)

    def _warm(self) -> socket.socket:
        if self._control is not None:
            return self._control
        mine, theirs = socket.socketpair()
        self._control = mine
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, own code)
                [sys.executable, "-c", _START.format(path=sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_THREADS},
                start_new_session=True,
            )
        read_line(mine, b"", time.monotonic() + self._start_s)
        return mine

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def close(self) -> None:
        """End the warm process, and with it all workers."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Let go of it in a forked child, whose parent it serves."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # no child of this process: it is not waited for
        self._control = self._process = None


def read_line(connection: socket.socket, waiting: bytes, deadline: float) -> tuple[bytes, bytes]:
    """The next line and what was read beyond it.

    Raises:
        TimeoutError: no complete line by the deadline (of the monotonic clock).
        WorkerLostError: the other side is gone.
    """
    while b"\n" not in waiting:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        read = connection.recv(1 << 16)
        if not read:
            raise WorkerLostError("it died")
        waiting += read
    line, _, rest = waiting.partition(b"\n")
    return line, rest
