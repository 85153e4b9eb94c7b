"""The supervisor: PID 1 of a session. Drives the worker, keeps the time, kills what is left over.

Its own process is out of the code's reach: the kernel lets nobody inside a pid namespace signal PID 1, and it is
undumpable, so that a process of the same user can neither trace it nor read its memory or descriptors.
"""

from __future__ import annotations

import base64
import errno
import os
from typing import Any, NoReturn

from miles_agents.tools.sandboxes.runner.calls import Call
from miles_agents.tools.sandboxes.runner.children import child_limits
from miles_agents.tools.sandboxes.runner.files import read_file, write_file
from miles_agents.tools.sandboxes.runner.frames import (
    MAX_REQUEST_BYTES,
    FrameBuffer,
    FrameError,
    encode,
    read_message,
    write_all,
)
from miles_agents.tools.sandboxes.runner.interpreter import Interpreter
from miles_agents.tools.sandboxes.runner.processes import memory_mb
from miles_agents.tools.sandboxes.runner.shell import Shell


class Supervisor:
    """Serves one session.

    Args:
        ends: descriptors requests come from and answers go to; one socket may be both.
        settings: the session's limits.
        guard_memory: no control group counts the session's memory, so look at it here.
    """

    def __init__(self, ends: tuple[int, int], settings: dict[str, Any], *, guard_memory: bool) -> None:
        self._requests_fd, self._answers_fd = ends
        self._guard_memory = guard_memory
        self._max_memory_mb = int(settings["memory_mb"]) + int(settings["tmp_mb"])
        self._shown_bytes = int(settings["output_kb"]) << 10
        self._max_file = int(settings["file_mb"]) << 20
        limits = child_limits(settings)
        self._interpreter = Interpreter(self._requests_fd, limits, self._check_memory)
        self._shell = Shell(self._requests_fd, limits, self._check_memory, self._interpreter)

    def serve(self) -> NoReturn:
        """Answer requests until the host goes away; ending PID 1 ends everything in the session."""
        buffer = FrameBuffer(MAX_REQUEST_BYTES)
        try:
            write_all(self._answers_fd, encode({"ready": True}))
            while True:
                request = read_message(self._requests_fd, buffer)
                write_all(self._answers_fd, encode({"id": request["id"], **self._answer(request)}))
        except (EOFError, BrokenPipeError, ConnectionResetError, FrameError):
            os._exit(0)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            match request["op"]:
                case "exec":
                    return self._exec(request)
                case "read":
                    data = read_file(request["path"], self._max_file)
                    return {"data": base64.b64encode(data).decode()}
                case "write":
                    write_file(request["path"], base64.b64decode(request["data"]), self._max_file)
                    return {}
        except OSError as error:
            return {"errno": error.errno, "message": error.strerror or str(error)}
        except ValueError as error:  # a path with a NUL in it, or that is no text
            return {"errno": errno.EINVAL, "message": str(error)}
        return {"unsupported": f"unknown request {request['op']!r}"}

    def _exec(self, request: dict[str, Any]) -> dict[str, Any]:
        call = Call(float(request["timeout_s"]), self._shown_bytes)
        match request["language"]:
            case "python":
                return self._interpreter.execute(request["code"], call)
            case "shell":
                return self._shell.execute(request["code"], call)
        return {"unsupported": f"no language {request['language']!r}"}

    def _check_memory(self, call: Call) -> None:
        if self._guard_memory and memory_mb() > self._max_memory_mb:
            call.status = "crashed"
            call.stderr.add(b"killed: the session's processes use more memory than allowed\n")
