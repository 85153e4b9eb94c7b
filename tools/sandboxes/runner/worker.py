"""The worker: runs a session's code, call by call, in one interpreter.

Everything here is in the hands of the code it runs; the supervisor believes only what cannot do harm.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import linecache
import os
import random
import signal
import sys
import threading
import traceback
import types
import weakref
from typing import NoReturn

from miles_agents.tools.sandboxes.runner.children import WORK_FOLDER, ChildLimits, begin_child
from miles_agents.tools.sandboxes.runner.frames import FrameBuffer, FrameError, encode, read_message, write_all

_MAX_CALL_BYTES = 64 << 20
_OWN_MODULES = "miles_agents"


class _Stream(io.TextIOWrapper):
    """stdout or stderr. What threads left over from an earlier call write goes to the late pipe.

    Args:
        fd: where this call's output goes.
        late_fd: where left-over threads' output goes.
        leftovers: the threads that were alive when an earlier call ended.
    """

    def __init__(self, fd: int, late_fd: int, leftovers: weakref.WeakSet[threading.Thread]) -> None:
        raw = io.FileIO(fd, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", newline="\n")
        self._late_fd = late_fd
        self._leftovers = leftovers

    def write(self, text: str, /) -> int:
        if self._leftovers and threading.current_thread() in self._leftovers:
            write_all(self._late_fd, text.encode("utf-8", "backslashreplace"))
            return len(text)
        return super().write(text)


class Worker:
    """Takes calls from one descriptor, answers on another.

    Args:
        calls_fd: calls come from here.
        replies_fd: replies go here; the code can write here too, and the supervisor knows it.
        late_fd: output of left-over threads.
    """

    def __init__(self, calls_fd: int, replies_fd: int, late_fd: int) -> None:
        self._calls_fd = calls_fd
        self._replies_fd = replies_fd
        self._buffer = FrameBuffer(_MAX_CALL_BYTES)
        self._pid = os.getpid()
        self._running = False
        self._count = 0
        self._exit_code = 0  # of a fork that ends as the cell does
        self._leftovers: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._streams = [_Stream(fd, late_fd, self._leftovers) for fd in (1, 2)]
        self._main = types.ModuleType("__main__")
        self._main.__dict__["__builtins__"] = __builtins__

    def run(self) -> NoReturn:
        """Serve calls until the supervisor goes away."""
        self._begin()
        while True:
            try:
                call = read_message(self._calls_fd, self._buffer)
            except (EOFError, OSError, FrameError):
                os._exit(0)
            if "collect" in call:
                _collect_children()
                continue
            self._note_leftovers()
            status = self._execute(call["code"])
            self._flush()
            if os.getpid() != self._pid:  # a fork that ran to the end of the code: it has no say here
                os._exit(0 if status == "ok" else self._exit_code or 1)
            self._note_leftovers()
            write_all(self._replies_fd, encode({"nonce": call["nonce"], "status": status}))

    def _note_leftovers(self) -> None:
        if threading.active_count() > 1:
            self._leftovers.update(each for each in threading.enumerate() if each is not threading.main_thread())

    def _begin(self) -> None:
        """A fresh session begins the same every time: modules, random state, streams."""
        for name in [name for name in sys.modules if name.split(".")[0] == _OWN_MODULES]:
            del sys.modules[name]
        sys.modules["__main__"] = self._main
        sys.argv = [""]
        vars(builtins).update(exit=sys.exit, quit=sys.exit, help=_help)  # an interpreter without `site` lacks them
        sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False), encoding="utf-8")
        sys.stdout, sys.stderr = self._streams
        vars(sys).update(__stdout__=self._streams[0], __stderr__=self._streams[1])
        random.seed(0)
        if (numpy_random := sys.modules.get("numpy.random")) is not None:
            numpy_random.seed(0)
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: object) -> None:
        if self._running:
            raise KeyboardInterrupt

    def _execute(self, code: str) -> str:
        self._count += 1
        self._exit_code = 0
        name = f"<cell {self._count}>"
        try:
            try:
                self._running = True
                self._run_cell(code, name)
            except SystemExit as error:
                return self._leave(error)
            finally:
                self._running = False
        except BaseException as error:  # noqa: BLE001 — the seam between the session's code and the runner
            self._running = False
            self._show(error)
            return "error"
        return "ok"

    def _run_cell(self, code: str, name: str) -> None:
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        # Not ast.parse: its frame would show in the traceback of a SyntaxError.
        tree: ast.Module = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)  # type: ignore[assignment]
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        variables = self._main.__dict__
        if tree.body:
            exec(compile(tree, name, "exec", dont_inherit=True), variables)  # noqa: S102 — the purpose of this process
        if last is not None:
            value = eval(compile(last, name, "eval", dont_inherit=True), variables)  # noqa: S307 — likewise
            if value is not None:
                print(repr(value))  # noqa: T201 — the session's own output

    def _leave(self, error: SystemExit) -> str:
        """`exit()` ends the call, not the session."""
        if error.code is None or error.code == 0:
            return "ok"
        self._exit_code = error.code & 0xFF if isinstance(error.code, int) else 1
        shown = f"SystemExit: {error.code}\n" if isinstance(error.code, int) else f"{error.code}\n"
        self._streams[1].write(shown)
        return "error"

    def _show(self, error: BaseException) -> None:
        """The traceback, without the runner's own frames."""
        try:
            shown = traceback.TracebackException.from_exception(error)
            _drop_own_frames(shown)
            lines = list(shown.format())
        except BaseException as broken:  # noqa: BLE001 — an exception whose own __str__ fails
            lines = [f"{type(error).__name__} (and {type(broken).__name__} while it was shown)\n"]
        text = "".join(lines)
        self._streams[1].write(text)

    def _flush(self) -> None:
        named = (getattr(sys, name, None) for name in ("stdout", "stderr"))  # the code may have deleted them
        for stream in {id(each): each for each in (*named, *self._streams) if each is not None}.values():
            with contextlib.suppress(BaseException):  # a stream the session's code put there, or closed
                stream.flush()


def _help(*subjects: object) -> None:
    """Print what is known of a thing; `pydoc` is loaded only for that."""
    import pydoc

    for subject in subjects or (help,):
        pydoc.help(subject)


def _drop_own_frames(shown: traceback.TracebackException) -> None:
    seen: set[int] = set()
    waiting: list[traceback.TracebackException | None] = [shown]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        own = each.stack
        each.stack = traceback.StackSummary.from_list([frame for frame in own if frame.filename != __file__])
        waiting += [each.__cause__, each.__context__, *(each.exceptions or ())]


def _collect_children() -> None:
    """Take the ends of all dead children: as zombies of a call that was cut short they would use up the limit."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become_worker(descriptors: dict[str, int], limits: ChildLimits) -> NoReturn:
    """Turn a fresh fork of the supervisor into the worker. Never returns."""
    try:
        kept = [descriptors[name] for name in ("calls", "replies", "late")]
        begin_child(descriptors["stdout"], descriptors["stderr"], kept, limits)
        try:
            os.chdir(WORK_FOLDER)
        except OSError:  # the code closed its own folder
            os.chdir("/")
        Worker(descriptors["calls"], descriptors["replies"], descriptors["late"]).run()
    finally:
        os._exit(97)
