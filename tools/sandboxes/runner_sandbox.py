"""One session as the host holds it, whatever launched it: calls become frames to the runner's supervisor."""

from __future__ import annotations

import asyncio
import base64
import errno
import itertools
import os
from typing import Any, Protocol

from miles_agents.contracts import ExecResult, ExecStatus, Language, Sandbox, SandboxCounters
from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.runner.frames import MAX_REQUEST_BYTES
from miles_agents.tools.sandboxes.wire import Wire

_MARGIN_S = 15.0  # over a call's own limit: the interrupt's grace, the kill, a busy machine
_FILE_S = 30.0
_MAX_FILE_BYTES = MAX_REQUEST_BYTES // 4 * 3 - (1 << 16)  # in base64 it is a third longer, and there is its path
_LARGE_CHARS = 1 << 17  # of a request: see `Wire.ask`


class SessionOwner(Protocol):
    """The launcher, as its sessions see it."""

    @property
    def counters(self) -> SandboxCounters:
        """Where respawns and losses are counted."""
        ...

    async def connect(self) -> Wire:
        """The wire to a fresh session, greeted and ready for calls.

        Raises:
            SandboxError: it could not be set up.
        """
        ...

    def release(self, wire: Wire) -> None:
        """Close the wire and clear up behind it; returns at once. Nobody waits on the wire any more."""
        ...

    def forget(self, sandbox: RunnerSandbox) -> None:
        """This session was closed."""
        ...


class RunnerSandbox(Sandbox):
    """One session. Calls made at the same time run one after the other.

    Args:
        owner: the launcher; `reset` asks it for a fresh session.
        wire: to the session's supervisor.
    """

    def __init__(self, owner: SessionOwner, wire: Wire) -> None:
        self._owner = owner
        self._wire = wire
        self._turn = asyncio.Lock()
        self._ids = itertools.count()
        self._closed = False
        self._released = False

    async def exec(self, code: str, *, timeout_s: float, language: Language = Language.PYTHON) -> ExecResult:
        """Run code or a shell command in the session; see `Sandbox.exec`."""
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s!r}; it must be positive")
        request = {"op": "exec", "language": language.value, "code": code, "timeout_s": timeout_s}
        answer = await self._request(request, timeout_s + _MARGIN_S, large=len(code) > _LARGE_CHARS)
        fields = {name: answer[name] for name in ExecResult.__dataclass_fields__ if name in answer}
        result = ExecResult(**{**fields, "status": ExecStatus(answer["status"])})
        self._owner.counters.respawns += result.state_lost
        return result

    async def read_file(self, path: str) -> bytes:
        """Read a regular file of the session; see `Sandbox.read_file`."""
        answer = await self._request({"op": "read", "path": path}, _FILE_S)
        encoded = answer["data"]
        if len(encoded) > _LARGE_CHARS:
            return await asyncio.to_thread(base64.b64decode, encoded)
        return base64.b64decode(encoded)

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the session; see `Sandbox.write_file`."""
        large = len(data) > _LARGE_CHARS
        if len(data) > _MAX_FILE_BYTES:  # not even on its way: the session would end over it
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        encoded = await asyncio.to_thread(_in_base64, data) if large else _in_base64(data)
        await self._request({"op": "write", "path": path, "data": encoded}, _FILE_S, large=large)

    async def reset(self) -> None:
        """A new session takes this one's place: nothing can be left over."""
        async with self._turn:
            self._require_open()
            old, self._wire = self._wire, await self._owner.connect()
            self._owner.release(old)

    async def close(self) -> None:
        """End the session. What it leaves is cleared up behind it; nobody waits for that."""
        self._closed = True
        self._wire.kill("it was closed")
        async with self._turn:  # a call in progress ends first, with a SandboxError
            if not self._released:
                self._released = True
                self._owner.release(self._wire)
                self._owner.forget(self)

    async def _request(self, request: dict[str, Any], deadline_s: float, *, large: bool = False) -> dict[str, Any]:
        async with self._turn:
            self._require_open()
            number = next(self._ids)
            try:
                answer = await self._wire.ask({"id": number, **request}, deadline_s, large=large)
                if answer.get("id") != number:
                    raise self._wire.lost("its answers are out of step")
            except SandboxError:
                self._owner.counters.sessions_lost += not self._closed
                raise
        if "errno" in answer:
            raise OSError(answer["errno"], answer["message"], request.get("path"))
        if "unsupported" in answer:
            raise SandboxError(f"the sandbox cannot do this: {answer['unsupported']}")
        return answer

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox session is closed")
        if self._wire.dead:
            raise SandboxError(f"the sandbox session was lost: {self._wire.dead}")


def _in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
