"""The supervisor: PID 1 of a session. Drives the worker, keeps the time, kills what is left over.

Its own process is out of the code's reach: the kernel lets nobody inside a pid namespace signal PID 1, and it is
undumpable, so that a process of the same user can neither trace it nor read its memory or descriptors.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import secrets
import select
import signal
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from miles_agents.tools.sandboxes.runner.capture import Capture
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, FrameError, encode, read_message, write_all
from miles_agents.tools.sandboxes.runner.processes import kill_everything, kill_strays, memory_mb
from miles_agents.tools.sandboxes.runner.worker import become_worker, describe_limits

GRACE_S = 0.25  # between the interrupt and the kill
HARD_STOP_FACTOR = 64  # a stream may be this many times longer than what is shown of it
_TICK_S = 0.1  # how often a long call is looked at
_READ_BYTES = 1 << 16
_MAX_REPLY_BYTES = 256
_LATE_BYTES = 4096
_MAX_REQUEST_BYTES = 96 << 20
_STATUSES = ("ok", "error")


class _Child(NamedTuple):
    """The worker and this end of its pipes."""

    pid: int
    calls: int
    replies: int
    stdout: int
    stderr: int
    late: int


class _Call:
    """One call in progress."""

    def __init__(self, nonce: str, timeout_s: float, shown_bytes: int) -> None:
        self.nonce = nonce
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.next_look = self.started + _TICK_S
        self.stdout = Capture(shown_bytes)
        self.stderr = Capture(shown_bytes)
        self.late = Capture(_LATE_BYTES)
        self.replies = FrameBuffer(_MAX_REPLY_BYTES)
        self.status = ""
        self.interrupted = False
        self.forged = False


class Supervisor:
    """Serves one session over one socket.

    Args:
        fd: the socket to the host.
        settings: the session's limits.
        guard_memory: no control group counts the session's memory, so look at it here.
    """

    def __init__(self, fd: int, settings: dict[str, Any], *, guard_memory: bool) -> None:
        self._fd = fd
        self._settings = settings
        self._guard_memory = guard_memory
        self._shown_bytes = int(settings["output_kb"]) << 10
        self._max_file = int(settings["file_mb"]) << 20
        self._worker: _Child | None = None

    def serve(self) -> NoReturn:
        """Answer requests until the host goes away; ending PID 1 ends everything in the session."""
        buffer = FrameBuffer(_MAX_REQUEST_BYTES)
        self._spawn()
        write_all(self._fd, encode({"ready": True}))
        while True:
            try:
                request = read_message(self._fd, buffer)
                write_all(self._fd, encode({"id": request["id"], **self._answer(request)}))
            except (EOFError, BrokenPipeError, ConnectionResetError, FrameError):
                os._exit(0)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "exec":
                    return self._exec(request["code"], float(request["timeout_s"]))
                case "read":
                    return {"data": base64.b64encode(self._read(request["path"])).decode()}
                case "write":
                    self._write(request["path"], base64.b64decode(request["data"]))
                    return {}
        except OSError as error:
            return {"errno": error.errno, "message": error.strerror or str(error)}
        return {"errno": 0, "message": f"unknown request {request['op']!r}"}

    # -- the worker -------------------------------------------------------------------------------------------------

    def _spawn(self) -> _Child:
        ends = {name: os.pipe() for name in ("calls", "replies", "stdout", "stderr", "late")}
        inner = {name: pair[0] if name == "calls" else pair[1] for name, pair in ends.items()}
        outer = {name: pair[1] if name == "calls" else pair[0] for name, pair in ends.items()}
        pid = os.fork()
        if pid == 0:
            become_worker(inner, describe_limits(self._settings))
        for fd in inner.values():
            os.close(fd)
        for fd in outer.values():
            os.set_blocking(fd, False)
        self._worker = _Child(pid=pid, **outer)
        return self._worker

    def _respawn(self) -> int | None:
        """Kill everything, start afresh; how the old worker ended."""
        old = self._worker
        self._worker = None
        endings = kill_everything()
        if old is not None:
            for fd in old[1:]:
                os.close(fd)
        self._spawn()
        return None if old is None else endings.get(old.pid)

    # -- one call ---------------------------------------------------------------------------------------------------

    def _exec(self, code: str, timeout_s: float) -> dict[str, Any]:
        call = _Call(secrets.token_hex(8), timeout_s, self._shown_bytes)
        lost_before = self._settle(call)
        worker = self._worker or self._spawn()
        self._send(worker, call, code)
        while not call.status:
            self._wait(worker, call)
        self._drain(worker, call)
        call.forged = call.forged or len(call.replies) > 0
        result = self._finish(worker, call)
        result["state_lost"] = result["state_lost"] or lost_before
        return result

    def _settle(self, call: _Call) -> bool:
        """Take what came between the calls: late output, and frames nobody asked for."""
        worker = self._worker
        if worker is None:
            return False
        for fd in (worker.stdout, worker.stderr, worker.late):
            _take(fd, call.late)
        stale = Capture(_MAX_REPLY_BYTES)
        alive = _take(worker.replies, stale)
        if alive and not stale.total:
            return False
        call.forged = stale.total > 0
        self._respawn()
        return True

    def _send(self, worker: _Child, call: _Call, code: str) -> None:
        """Hand the code over; a worker that does not read it within the limit has lost its turn."""
        data = memoryview(encode({"nonce": call.nonce, "code": code}))
        poller = select.poll()
        poller.register(worker.calls, select.POLLOUT)
        while data and not call.status:
            if not poller.poll(max(0.0, call.deadline - time.monotonic()) * 1000):
                call.status = "timeout"
                return
            try:
                data = data[os.write(worker.calls, data) :]
            except BlockingIOError:
                continue
            except OSError:
                call.status = "crashed"

    def _wait(self, worker: _Child, call: _Call) -> None:
        """One wait: output, a reply, the worker's end, the deadline, or the host's going away."""
        poller = select.poll()
        for fd in (worker.stdout, worker.stderr, worker.late, worker.replies):
            poller.register(fd, select.POLLIN)
        poller.register(self._fd, select.POLLRDHUP)
        while not call.status:
            left = call.deadline - time.monotonic()
            events = poller.poll(max(0.0, min(left, _TICK_S)) * 1000)
            for fd, event in events:
                self._take_event(worker, call, fd, event, poller)
            if left <= 0 and not call.status:
                self._overdue(worker, call)
            elif time.monotonic() >= call.next_look:
                self._look(worker, call)

    def _take_event(self, worker: _Child, call: _Call, fd: int, event: int, poller: select.poll) -> None:
        if fd == self._fd:
            os._exit(0)
        if fd == worker.replies:
            self._take_reply(worker, call)
            return
        stream = {worker.stdout: call.stdout, worker.stderr: call.stderr, worker.late: call.late}[fd]
        data = _read(fd)
        if data:
            stream.add(data)
        elif data is not None or event & select.POLLHUP:
            poller.unregister(fd)
        if stream.total > HARD_STOP_FACTOR * self._shown_bytes:
            call.status = "output_limit"

    def _take_reply(self, worker: _Child, call: _Call) -> None:
        data = _read(worker.replies)
        if data is None:
            return
        if not data:
            call.status = "crashed"
            return
        call.replies.feed(data)
        try:
            reply = call.replies.pop()
        except FrameError:
            reply = {}
        if reply is None:
            return
        if reply.get("nonce") == call.nonce and reply.get("status") in _STATUSES:
            call.status = reply["status"]
        else:
            call.forged = True
            call.status = "crashed"

    def _overdue(self, worker: _Child, call: _Call) -> None:
        """First an interrupt, which keeps the session's state; then the end."""
        if call.interrupted:
            call.status = "timeout"
            return
        call.interrupted = True
        call.deadline = time.monotonic() + GRACE_S
        os.kill(worker.pid, signal.SIGINT)

    def _look(self, worker: _Child, call: _Call) -> None:
        """A worker whose children hold its pipes shows no end of file; and memory that nobody counts."""
        call.next_look = time.monotonic() + _TICK_S
        gone = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if gone is not None:
            call.status = "crashed"
        elif self._guard_memory and memory_mb() > self._settings["memory_mb"] + self._settings["tmp_mb"]:
            call.status = "crashed"
            call.stderr.add(b"killed: the session's processes use more memory than allowed\n")

    def _drain(self, worker: _Child, call: _Call) -> None:
        """Whatever was written before the reply is in the pipes by now."""
        for fd, stream in ((worker.stdout, call.stdout), (worker.stderr, call.stderr), (worker.late, call.late)):
            _take(fd, stream, at_most=HARD_STOP_FACTOR * self._shown_bytes)
        if call.status in _STATUSES and (extra := _read(worker.replies)):
            call.replies.feed(extra)

    def _finish(self, worker: _Child, call: _Call) -> dict[str, Any]:
        lost = call.forged or call.status not in _STATUSES
        died = call.status == "crashed" and not call.forged
        if call.interrupted:
            call.status = "timeout"
        exit_code = None
        strays = 0
        if lost:
            ending = self._respawn()
            exit_code = ending if died else None
        else:
            strays, all_gone = kill_strays(worker.pid)
            if not all_gone:
                self._respawn()
                lost = True
            elif strays or call.interrupted:
                with contextlib.suppress(OSError):  # a worker that is going under is noticed by the next call
                    os.write(worker.calls, encode({"collect": True}))
        return {
            "status": call.status,
            "stdout": call.stdout.text(),
            "stderr": call.stderr.text(),
            "state_lost": lost,
            "late_output": call.late.text(),
            "duration_s": time.monotonic() - call.started,
            "exit_code": exit_code,
            "strays_killed": strays,
            "forged_frames": call.forged,
        }

    # -- files ------------------------------------------------------------------------------------------------------

    def _read(self, path: str) -> bytes:
        """A regular file of the session; never blocks on a pipe, never follows into /proc."""
        fd = os.open(Path("/tmp", path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # noqa: S108
        with os.fdopen(fd, "rb") as file:
            _require_plain(fd, path)
            data = file.read(self._max_file + 1)
        if len(data) > self._max_file:
            raise OSError(errno.EFBIG, "File too large")
        return data

    def _write(self, path: str, data: bytes) -> None:
        if len(data) > self._max_file:
            raise OSError(errno.EFBIG, "File too large")
        target = Path("/tmp", path)  # noqa: S108
        target.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            _require_plain(fd, path)
            file.truncate(0)
            file.write(data)


def _require_plain(fd: int, path: str) -> None:
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    if not stat.S_ISREG(found.st_mode) or found.st_dev == os.stat("/proc").st_dev:  # noqa: PTH116
        raise PermissionError(errno.EACCES, "Not a regular file", path)


def _read(fd: int) -> bytes | None:
    """What is there now: b"" at the end, None if nothing yet."""
    try:
        return os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return None


def _take(fd: int, into: Capture, *, at_most: int = 1 << 20) -> bool:
    """Take what is there, within a bound; False at the end of the stream."""
    start = into.total
    with contextlib.suppress(OSError):
        while into.total - start < at_most:
            data = _read(fd)
            if not data:
                return data is None
            into.add(data)
    return True
