"""The zygote: a warm interpreter, alone in its own namespaces, that clones a session for each socket it is handed.

`main` runs in a process of its own (never a fork of the training process) with an empty environment:

    launcher ── leaves the host's user (ordinary users), pid namespace; then guards what is below it
       └─ zygote (PID 1 of its own pid namespace: when it ends, the kernel kills every session)
            └─ session, session, …

It is told what to do over the socket it inherits: one JSON message with the settings, then one byte
and one descriptor for every session. It ends when that socket closes, and when the host ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from miles_agents.tools.sandboxes.runner import linux
from miles_agents.tools.sandboxes.runner.cgroups import ControlGroups, sweep
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, encode, read_message, write_all
from miles_agents.tools.sandboxes.runner.identity import is_root
from miles_agents.tools.sandboxes.runner.rootfs import enter_new_root
from miles_agents.tools.sandboxes.runner.session import Place, map_ids, start_session
from miles_agents.tools.sandboxes.runner.warming import warm_up

_MAX_SETTINGS_BYTES = 1 << 20
_END_S = 1.0  # for the zygote to end in order after the host's end


class Zygote:
    """The loop: takes sockets, clones sessions, collects the dead.

    Args:
        control: the socket to the host.
        settings: the limits of a session, plus `owner`.
        root: whether real root made this.
    """

    def __init__(self, control: socket.socket, settings: dict[str, Any], groups: ControlGroups, *, root: bool) -> None:
        self._control = control
        self._settings = settings
        self._groups = groups
        self._root = root
        self._serial = int(settings["first_serial"])
        self._slots: dict[int, int | None] = {}

    def serve(self) -> NoReturn:
        """Serve until the host closes the socket; ending PID 1 ends every session."""
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    self._reap()
                elif not self._take_session():
                    self._end()

    def _take_session(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        for fd in descriptors:
            self._start(fd)
            os.close(fd)
        return bool(data)

    def _start(self, fd: int) -> None:
        self._serial += 1
        slot = None
        try:
            slot = self._groups.take() if self._groups.active else None
            place = Place(root=self._root, serial=self._serial, slot=slot)
            self._slots[start_session(fd, place, self._settings, self._groups)] = slot
        except OSError as error:  # out of processes or memory: this session is refused, the others go on
            if slot is not None:
                self._groups.release(slot)
            with contextlib.suppress(OSError):
                write_all(fd, encode({"failed": str(error)}))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                slot = self._slots.pop(pid, None)
                if slot is not None:
                    self._groups.release(slot)

    def _end(self) -> NoReturn:
        """Sessions die first, so that their control groups are empty and can go."""
        for pid in self._slots:
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        self._groups.remove()
        os._exit(0)


def _launch(control: socket.socket, settings: dict[str, Any]) -> NoReturn:
    """Set up the zygote's own namespaces; this process stays behind as its guard."""
    root = is_root()
    groups = ControlGroups(settings["owner"], memory_mb=settings["memory_mb"], processes=settings["processes"])
    groups.check()
    if not root:
        uid, gid = os.getuid(), os.getgid()
        linux.unshare(linux.CLONE_NEWUSER)
        map_ids(inside=(0, 0), outside=(uid, gid))
    linux.unshare(linux.CLONE_NEWPID)
    pid = os.fork()
    if pid:
        _Guard(pid, control, settings["owner"]).keep()
    linux.signal_at_parents_end(signal.SIGKILL)
    enter_new_root(settings["site_folders"])
    description = {"ready": True, "control_groups": groups.active, "root": root}
    write_all(control.fileno(), encode(description))
    Zygote(control, settings, groups, root=root).serve()


class _Guard:
    """The launcher's work once the zygote runs: see that nothing outlives the host, not even an empty control group.

    The host's end shows in two ways. Its socket hangs up, unless a process it forked holds a copy; and the kernel
    sends a signal, which also comes when only the host's thread that started this ended.

    Args:
        pid: of the zygote.
        control: the zygote's socket to the host, watched and never read here.
        owner: whose control groups to remove.
    """

    def __init__(self, pid: int, control: socket.socket, owner: str) -> None:
        self._pid = pid
        self._owner = owner
        self._host = os.getppid()
        self._wake_read, wake_write = os.pipe()
        for fd in (self._wake_read, wake_write):
            os.set_blocking(fd, False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._poller = select.poll()
        self._poller.register(control, select.POLLRDHUP)
        self._poller.register(self._wake_read, select.POLLIN)
        self._control_fd = control.fileno()

    def keep(self) -> NoReturn:
        """Wait for the zygote's end, after the host's end not for long, and clear up."""
        deadline: float | None = None
        while (status := self._ended()) is None:
            if deadline is not None and time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000 + 10
            for fd, _ in self._poller.poll(left):
                if fd == self._control_fd:
                    self._poller.unregister(fd)
                    deadline = deadline or time.monotonic() + _END_S
                else:
                    os.read(self._wake_read, 4096)
            if deadline is None and os.getppid() != self._host:
                deadline = time.monotonic() + _END_S
        sweep(self._owner)
        os._exit(abs(os.waitstatus_to_exitcode(status)))

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return status if pid else None


def main(control_fd: int) -> None:
    """Entry: settings from the inherited socket, then warm up, isolate, serve."""
    linux.signal_at_parents_end(signal.SIGTERM)
    control = socket.socket(fileno=control_fd)
    settings = read_message(control_fd, FrameBuffer(_MAX_SETTINGS_BYTES))
    sys.path.extend(settings["site_folders"])
    os.environ["PYTHONPATH"] = os.pathsep.join(settings["site_folders"])  # for interpreters that sessions start
    try:
        warm_up(settings["preload"], forked_often=True)
        _launch(control, settings)
    except Exception as error:  # noqa: BLE001 — the seam to the host, which shows it to the operator
        write_all(control_fd, encode({"failed": f"{type(error).__name__}: {error}"}))
        os._exit(1)
