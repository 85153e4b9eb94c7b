"""The session's interpreter as its supervisor holds it: a worker process that is replaced when it is lost."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from miles_agents.tools.sandboxes.runner.calls import Call, Watch, read_some, take
from miles_agents.tools.sandboxes.runner.capture import Capture
from miles_agents.tools.sandboxes.runner.children import ChildLimits
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, FrameError, encode
from miles_agents.tools.sandboxes.runner.processes import (
    await_collected,
    interrupt_everything,
    kill_everything,
    kill_strays,
)
from miles_agents.tools.sandboxes.runner.worker import become_worker

_MAX_REPLY_BYTES = 256
_COLLECT_S = 0.05
_DEAD_KEPT = 3  # so many ended children are left for later code to ask how they ended
_STATUSES = ("ok", "error")


class Worker(NamedTuple):
    """The worker process and this end of its pipes."""

    pid: int
    calls: int
    replies: int
    stdout: int
    stderr: int
    late: int


class Interpreter:
    """Runs Python calls one by one. The worker's replies are believed only if they carry the call's own nonce.

    Between calls the worker is stopped: threads and timers of an earlier call neither run on nor start anything.

    Args:
        host_fd: when the host hangs up during a call, the session ends.
        limits: of the worker and its children.
        check_memory: called now and then during a call, for sessions whose memory nobody else counts.
    """

    def __init__(self, host_fd: int, limits: ChildLimits, check_memory: Callable[[Call], None]) -> None:
        self._host_fd = host_fd
        self._limits = limits
        self._check_memory = check_memory
        self.worker = self._spawn()

    def _spawn(self) -> Worker:
        ends = {name: os.pipe() for name in ("calls", "replies", "stdout", "stderr", "late")}
        inner = {name: pair[0] if name == "calls" else pair[1] for name, pair in ends.items()}
        outer = {name: pair[1] if name == "calls" else pair[0] for name, pair in ends.items()}
        pid = os.fork()
        if pid == 0:
            become_worker(inner, self._limits)
        for fd in inner.values():
            os.close(fd)
        self._outputs = select.poll()
        for name, fd in outer.items():
            os.set_blocking(fd, False)
            if name != "calls":
                self._outputs.register(fd, select.POLLIN)
        return Worker(pid=pid, **outer)

    def respawn(self) -> int | None:
        """Kill everything in the session and start afresh; how the old worker ended."""
        endings = kill_everything()
        old = self.worker
        for fd in old[1:]:
            os.close(fd)
        self.worker = self._spawn()
        return endings.get(old.pid)

    def execute(self, code: str, call: Call) -> dict[str, Any]:
        """Run one call to its end; the fields of the answer."""
        lost_before = self._settle(call)
        worker = self.worker
        nonce = secrets.token_hex(8)
        replies = FrameBuffer(_MAX_REPLY_BYTES)
        self._send(worker, call, encode({"nonce": nonce, "code": code}))
        watch = Watch(call, self._host_fd, interrupt=interrupt_everything, look=lambda: self._look(call))
        for fd, stream in _streams(worker, call):
            watch.capture(fd, stream)
        watch.on_event(worker.replies, lambda: _take_reply(worker, call, replies, nonce))
        watch.wait()
        self._take_rest(worker, call, replies)
        return self._finish(worker, call, lost_before=lost_before)

    def _take_rest(self, worker: Worker, call: Call, replies: FrameBuffer) -> None:
        """Whatever was written before the reply is in the pipes by now; a second reply is a forged one."""
        ready = {fd for fd, _ in self._outputs.poll(0)}
        for fd, stream in _streams(worker, call):
            if fd in ready:
                take(fd, stream, at_most=call.hard_stop_bytes)
        if call.status in _STATUSES and worker.replies in ready and (extra := read_some(worker.replies)):
            replies.feed(extra)
        call.forged = call.forged or len(replies) > 0

    def _settle(self, call: Call) -> bool:
        """Take what came between the calls: late output, and frames nobody asked for. True if state was lost."""
        if not self._outputs.poll(0):
            return False
        worker = self.worker
        for fd in (worker.stdout, worker.stderr, worker.late):
            take(fd, call.late)
        stale = Capture(_MAX_REPLY_BYTES)
        alive = take(worker.replies, stale)
        if alive and not stale.total:
            return False
        call.forged = stale.total > 0
        self.respawn()
        return True

    def _send(self, worker: Worker, call: Call, frame: bytes) -> None:
        """Hand the code over and let the worker go on, in this order: it wakes once and finds the code there.

        A worker that does not read it within the limit has lost its turn.
        """
        data = memoryview(frame)
        data = self._write(worker, call, data)
        os.kill(worker.pid, signal.SIGCONT)
        if not data:
            return
        poller = select.poll()
        poller.register(worker.calls, select.POLLOUT)
        while data and not call.status:
            if poller.poll(max(0.0, call.deadline - time.monotonic()) * 1000):
                data = self._write(worker, call, data)
            else:
                call.status = "timeout"

    def _write(self, worker: Worker, call: Call, data: memoryview) -> memoryview:
        """Write what the pipe takes; what is left comes back."""
        try:
            return data[os.write(worker.calls, data) :]
        except BlockingIOError:
            return data
        except OSError:
            call.status = "crashed"
            return data

    def _look(self, call: Call) -> None:
        """A worker whose children hold its pipes shows no end of file; and memory that nobody counts."""
        if os.waitid(os.P_PID, self.worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            call.status = "crashed"
        else:
            self._check_memory(call)

    def _finish(self, worker: Worker, call: Call, *, lost_before: bool) -> dict[str, Any]:
        lost = call.forged or call.status not in _STATUSES
        if lost:
            ending = self.respawn()
            died = call.status == "crashed" and not call.forged
            return call.result(state_lost=True, exit_code=ending if died else None, strays_killed=0)
        strays = kill_strays(worker.pid)
        all_gone = strays.all_gone
        if all_gone and (strays.killed + strays.dead > _DEAD_KEPT or call.interrupted):
            all_gone = self._collect()
        if not all_gone:
            self.respawn()
        return call.result(state_lost=lost_before or not all_gone, exit_code=None, strays_killed=strays.killed)

    def _collect(self) -> bool:
        """Have the stopped worker take the ends of its dead children, which count as processes until then.

        Returns:
            False if it used the moment to start processes that multiply faster than they die.
        """
        with contextlib.suppress(OSError):  # a worker that is going under is noticed by the next call
            os.write(self.worker.calls, encode({"collect": True}))
        os.kill(self.worker.pid, signal.SIGCONT)
        await_collected(self.worker.pid, _COLLECT_S)
        return kill_strays(self.worker.pid).all_gone


def _streams(worker: Worker, call: Call) -> tuple[tuple[int, Capture], ...]:
    return (worker.stdout, call.stdout), (worker.stderr, call.stderr), (worker.late, call.late)


def _take_reply(worker: Worker, call: Call, replies: FrameBuffer, nonce: str) -> None:
    data = read_some(worker.replies)
    if data is None:
        return
    if not data:
        call.status = "crashed"
        return
    replies.feed(data)
    try:
        reply = replies.pop()
    except FrameError:
        reply = {}
    if reply is None:
        return
    if reply.get("nonce") == nonce and reply.get("status") in _STATUSES:
        call.status = reply["status"]
    else:
        call.forged = True
        call.status = "crashed"
