"""The sandbox contract: one isolated, stateful, killable session."""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

from miles_agents.errors import SandboxError


class Language(StrEnum):
    """What `exec` runs."""

    PYTHON = "python"  # in the session's interpreter: variables are kept, the last expression is echoed
    SHELL = "shell"  # by a fresh bash: the working folder is kept, variables are not


class ExecStatus(StrEnum):
    """How an `exec` ended."""

    OK = "ok"
    ERROR = "error"  # the code raised (the traceback is in `stderr`), or the command's exit code is not 0
    TIMEOUT = "timeout"  # stopped at the limit
    CRASHED = "crashed"  # the interpreter or the shell died (signal, os._exit, memory limit)
    OUTPUT_LIMIT = "output_limit"  # stopped for printing too much


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What one `exec` gave.

    Output is cut to head and tail with the omitted size named; bytes that are no UTF-8 are shown as backslash
    escapes.
    """

    status: ExecStatus
    stdout: str = ""
    stderr: str = ""
    state_lost: bool = False  # the interpreter was restarted: variables of earlier calls are gone
    late_output: str = ""  # printed by leftovers of an earlier call; not this call's
    duration_s: float = 0.0
    exit_code: int | None = None  # of a shell command or a crashed interpreter, negative for signals
    strays_killed: int = 0  # processes of this call that outlived it and were killed
    forged_frames: bool = False  # the code wrote to the runner's own channel; the interpreter was restarted


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one session may use."""

    memory_mb: int = 512
    processes: int = 32
    file_mb: int = 16  # largest file
    tmp_mb: int = 64  # the writable folder, in all
    cpu_s: int = 60  # of one interpreter, in all
    output_kb: int = 64  # shown per stream; 64 times that stops the call
    open_files: int = 128


@dataclass(slots=True, kw_only=True)
class SandboxCounters:
    """What a provider did since it was made; each field only grows."""

    starts: int = 0  # sessions handed out; a `reset` that replaces the session is one more
    failed_starts: int = 0
    start_s: float = 0.0  # waiting for those sessions, in all, pool wait included
    pool_wait_s: float = 0.0  # the part of it spent waiting for a free place or for the pool
    respawns: int = 0  # interpreters replaced within a session: its state was lost
    sessions_lost: int = 0  # died or hung while in use; their calls raised SandboxError
    failed_removals: int = 0  # attempts to remove a session's container that had to be repeated


class Sandbox(ABC):
    """One session. State is kept between `exec` calls and never between sessions."""

    @abstractmethod
    async def exec(self, code: str, *, timeout_s: float, language: Language = Language.PYTHON) -> ExecResult:
        """Run code or a shell command, see `Language`. Nothing the call started outlives it.

        Python runs in the session's interpreter; the last expression's value is echoed like in a REPL. At `timeout_s`
        the code is interrupted (state kept); if it goes on, everything is killed and `state_lost` is True.

        A shell command begins in the folder where the last one ended (at first the session's working folder) and gives
        its `exit_code`. At `timeout_s` it is interrupted, then killed; the interpreter and its variables live on.

        Raises:
            SandboxError: the session could not be set up or was lost, or has no such language.
        """

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """Read a file of the session (relative to its working folder).

        Raises:
            FileNotFoundError: no such file in the session.
            SandboxError: the session was lost.
        """

    @abstractmethod
    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the session (relative to its working folder), making its folders.

        Raises:
            OSError: the session refuses (no space, read-only place).
            SandboxError: the session was lost.
        """

    @abstractmethod
    async def reset(self) -> None:
        """Back to a fresh session: no variables, files, environment changes, threads or processes are left."""

    @abstractmethod
    async def close(self) -> None:
        """End the session and everything in it. May be called twice."""

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SandboxProvider(ABC):
    """Opens sandboxes; owns what they share (a warm zygote, a container pool)."""

    @abstractmethod
    async def start(self) -> None:
        """Check the machine and warm up.

        Raises:
            SandboxUnavailableError: this machine cannot give the isolation; the message prints the way out.
        """

    @abstractmethod
    async def open(self) -> Sandbox:
        """A fresh session.

        Raises:
            SandboxError: it could not be set up.
        """

    @abstractmethod
    async def close(self) -> None:
        """End every session and what they share."""

    @property
    @abstractmethod
    def description(self) -> str:
        """One line for the run header: which launcher, and what it isolates with."""

    @functools.cached_property
    def counters(self) -> SandboxCounters:
        """Running totals, for metrics; a launcher adds to them as it works."""
        return SandboxCounters()

    async def __aenter__(self) -> SandboxProvider:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class OnDemandSandbox(Sandbox):
    """A session that is opened by its first use: an episode that never uses it costs nothing.

    Args:
        provider: opens the session.
    """

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._opening = asyncio.Lock()
        self._turns = asyncio.Lock()
        self._session: Sandbox | None = None
        self._closed = False

    async def open(self) -> Sandbox:
        """The session, opened now if it is not yet.

        Raises:
            SandboxError: it could not be set up, or was closed.
        """
        async with self._opening:
            if self._closed:
                raise SandboxError("the sandbox was closed")
            if self._session is None:
                self._session = await self._provider.open()
            return self._session

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the open session alone: a deadline inside counts neither its start nor the calls of others.

        Raises:
            SandboxError: it could not be set up, or was closed.
        """
        async with self._turns:
            await self.open()
            yield

    async def exec(self, code: str, *, timeout_s: float, language: Language = Language.PYTHON) -> ExecResult:
        """Run code or a shell command in the session."""
        return await (await self.open()).exec(code, timeout_s=timeout_s, language=language)

    async def read_file(self, path: str) -> bytes:
        """Read a file of the session."""
        return await (await self.open()).read_file(path)

    async def write_file(self, path: str, data: bytes) -> None:
        """Write a file of the session."""
        await (await self.open()).write_file(path, data)

    async def reset(self) -> None:
        """Back to a fresh session; one that was never opened is fresh."""
        if self._session is not None:
            await self._session.reset()

    async def close(self) -> None:
        """End the session, if there is one. May be called twice, and again after a cancelled call."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
