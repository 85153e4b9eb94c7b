"""Shell commands: a fresh bash for each, in the folder where the last one ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from miles_agents.tools.sandboxes.runner.calls import Call, Watch, take
from miles_agents.tools.sandboxes.runner.capture import Capture
from miles_agents.tools.sandboxes.runner.children import WORK_FOLDER, ChildLimits, begin_child
from miles_agents.tools.sandboxes.runner.interpreter import Interpreter
from miles_agents.tools.sandboxes.runner.processes import kill_strays

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
_FOLDER_FD = 9  # the shell writes its last folder here
_WRAPPER = f"trap '{{ pwd -P || pwd; }} >&{_FOLDER_FD} 2>/dev/null' EXIT; eval \"$1\""
_MAX_COMMAND_BYTES = 131_000  # Linux takes 128 KiB for one argument of a program
_MAX_FOLDER_BYTES = 4096
_NOT_RUN = 126  # what shells say of a command that cannot be run


class Shell:
    """Runs commands one by one. The session's interpreter lives on beside them.

    Args:
        host_fd: when the host hangs up during a command, the session ends.
        limits: of the shell and of each process below it.
        check_memory: called now and then during a command, for sessions whose memory nobody else counts.
        interpreter: is spared when a command's left-over processes are killed.
    """

    def __init__(
        self, host_fd: int, limits: ChildLimits, check_memory: Callable[[Call], None], interpreter: Interpreter
    ) -> None:
        self._host_fd = host_fd
        self._limits = limits
        self._check_memory = check_memory
        self._interpreter = interpreter
        self._folder = WORK_FOLDER

    def execute(self, command: str, call: Call) -> dict[str, Any]:
        """Run one command to its end; the fields of the answer."""
        shell = next((each for each in _SHELLS if os.access(each, os.X_OK)), None)
        if shell is None:
            return {"unsupported": "there is no bash in the session's file tree; install bash where the code runs"}
        if (why_not := _unrunnable(command)) is not None:
            call.status = "error"
            call.stderr.add(f"bash: {why_not}\n".encode())
            return call.result(state_lost=False, exit_code=_NOT_RUN, strays_killed=0)
        ends = {name: os.pipe() for name in ("stdout", "stderr", "folder")}
        pid = os.fork()
        if pid == 0:
            # Out of the way of the number that the folder's end is about to take.
            inner = {name: fcntl.fcntl(pair[1], fcntl.F_DUPFD, _FOLDER_FD + 1) for name, pair in ends.items()}
            _become_shell(shell, command, self._folder, inner, self._limits)
        outer = {name: pair[0] for name, pair in ends.items()}
        for _, write_end in ends.values():
            os.close(write_end)
        for fd in outer.values():
            os.set_blocking(fd, False)
        try:
            return self._follow(pid, outer, call)
        finally:
            for fd in outer.values():
                os.close(fd)

    def _follow(self, pid: int, outer: dict[str, int], call: Call) -> dict[str, Any]:
        watch = Watch(
            call, self._host_fd, interrupt=lambda: _signal_group(pid, signal.SIGINT), look=lambda: self._look(pid, call)
        )
        watch.capture(outer["stdout"], call.stdout)
        watch.capture(outer["stderr"], call.stderr)
        with _exit_event(pid) as ended:
            if ended is not None:
                watch.on_event(ended, lambda: _note_end(pid, call))
            watch.wait()
        exit_code = self._end(pid, call)
        for name, stream in (("stdout", call.stdout), ("stderr", call.stderr)):
            take(outer[name], stream, at_most=call.hard_stop_bytes)
        self._note_folder(outer["folder"])
        strays = kill_strays(self._interpreter.worker.pid)
        if not strays.all_gone:
            self._interpreter.respawn()
        return call.result(state_lost=not strays.all_gone, exit_code=exit_code, strays_killed=strays.killed)

    def _look(self, pid: int, call: Call) -> None:
        _note_end(pid, call)
        if not call.status:
            self._check_memory(call)

    def _end(self, pid: int, call: Call) -> int | None:
        """Take the shell's own end, which is killed now if it still runs; the command's exit code, if it gave one."""
        ended_itself = call.status == "ended"
        if not ended_itself:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if not ended_itself:
            return None
        call.status = "crashed" if code < 0 else "error" if code else "ok"
        return None if call.interrupted else code

    def _note_folder(self, fd: int) -> None:
        """A folder that is gone, or that the command made up, is a folder the next one cannot enter: no harm."""
        written = Capture(2 * _MAX_FOLDER_BYTES)
        take(fd, written, at_most=_MAX_FOLDER_BYTES)
        folder = written.text().removesuffix("\n")
        if folder.startswith("/") and "\0" not in folder and written.total <= _MAX_FOLDER_BYTES:
            self._folder = folder


def _unrunnable(command: str) -> str | None:
    if "\0" in command:
        return "the command has a NUL character in it"
    try:
        size = len(os.fsencode(command))
    except UnicodeEncodeError:
        return "the command has half of a surrogate pair in it, which is no text"
    if size > _MAX_COMMAND_BYTES:
        return f"the command is {size} bytes long, at most {_MAX_COMMAND_BYTES} are possible; write it to a file first"
    return None


def _become_shell(shell: str, command: str, folder: str, descriptors: dict[str, int], limits: ChildLimits) -> NoReturn:
    try:
        os.dup2(descriptors["folder"], _FOLDER_FD)
        begin_child(descriptors["stdout"], descriptors["stderr"], [_FOLDER_FD], limits)
        try:
            os.chdir(folder)
        except OSError as error:
            os.write(2, f"bash: {folder}: {error.strerror}; the working folder is {WORK_FOLDER} again\n".encode())
            os.chdir(WORK_FOLDER)
        os.execv(shell, ["bash", "--noprofile", "--norc", "-c", _WRAPPER, "bash", command])  # noqa: S606
    finally:
        os._exit(_NOT_RUN)


@contextlib.contextmanager
def _exit_event(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when the process ends; None before Linux 5.3, where the tick must do."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _note_end(pid: int, call: Call) -> None:
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
        call.status = "ended"


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
