"""Sandboxes whose results are written down beforehand: for tests and demonstrations, no process is started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from miles_agents.contracts import ExecResult, ExecStatus, Language, Sandbox, SandboxProvider
from miles_agents.errors import SandboxError

Script = Callable[[str], ExecResult] | Iterable[ExecResult] | Mapping[str, ExecResult]


class ScriptedCall(NamedTuple):
    """One recorded `exec`."""

    code: str
    timeout_s: float
    language: Language = Language.PYTHON


class ScriptedSandbox(Sandbox):
    """Answers `exec` from a script.

    Args:
        script: a function of the code or command; or results by exact code; or results in order. A code or call that
            the script does not have is an `AssertionError`: the test asked for something it did not plan.
        lost_after: after this many calls the session is lost, and every further call raises `SandboxError`.
    """

    def __init__(self, script: Script, *, lost_after: int | None = None) -> None:
        self._script = script
        self._answers = iter(script) if not callable(script) and not isinstance(script, Mapping) else None
        self._lost_after = lost_after
        self.calls: list[ScriptedCall] = []
        self.files: dict[str, bytes] = {}
        self.resets = 0
        self.closed = False

    async def exec(self, code: str, *, timeout_s: float, language: Language = Language.PYTHON) -> ExecResult:
        """The script's answer to this code or command."""
        self._require_alive()
        self.calls.append(ScriptedCall(code, timeout_s, language))
        if isinstance(self._script, Mapping):
            answer = self._script.get(code)
        elif callable(self._script):
            answer = self._script(code)
        else:
            answer = next(self._answers, None) if self._answers is not None else None
        if answer is None:
            raise AssertionError(f"the script has no answer to call {len(self.calls)}: {code!r}")
        return answer

    async def read_file(self, path: str) -> bytes:
        """What `write_file` wrote."""
        self._require_alive()
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    async def write_file(self, path: str, data: bytes) -> None:
        """Keep it in `files`."""
        self._require_alive()
        self.files[path] = data

    async def reset(self) -> None:
        """Forget the files; the script goes on."""
        self._require_alive()
        self.files.clear()
        self.resets += 1

    async def close(self) -> None:
        """Every further call raises `SandboxError`."""
        self.closed = True

    def _require_alive(self) -> None:
        if self.closed:
            raise SandboxError("the sandbox session is closed")
        if self._lost_after is not None and len(self.calls) >= self._lost_after:
            raise SandboxError("the sandbox session was lost: its script says so")


class ScriptedSandboxes(SandboxProvider):
    """Opens `ScriptedSandbox`es.

    Args:
        script: of every session; results in order are for each session anew.
        fail_opens: which calls of `open` fail, counted from 0.
        lost_after: see `ScriptedSandbox`.
    """

    def __init__(self, script: Script, *, fail_opens: Iterable[int] = (), lost_after: int | None = None) -> None:
        in_order = not callable(script) and not isinstance(script, Mapping)
        self._script: Script = tuple(script) if in_order else script  # type: ignore[arg-type]
        self._fail_opens = frozenset(fail_opens)
        self._lost_after = lost_after
        self._opens = 0
        self.opened: list[ScriptedSandbox] = []
        self.started = False

    @property
    def description(self) -> str:
        """One line for the run header."""
        return "scripted (answers written down beforehand; runs no code)"

    @classmethod
    def printing(cls, text: str) -> ScriptedSandboxes:
        """Every call prints `text`."""
        return cls(lambda code: ExecResult(status=ExecStatus.OK, stdout=text))

    async def start(self) -> None:
        """Nothing to warm up."""
        self.started = True

    async def open(self) -> ScriptedSandbox:
        """A session, or `SandboxError` if the script says that this one fails."""
        number = self._opens
        self._opens += 1
        if number in self._fail_opens:
            self.counters.failed_starts += 1
            raise SandboxError("a sandbox session could not be set up: its script says so")
        sandbox = ScriptedSandbox(self._script, lost_after=self._lost_after)
        self.opened.append(sandbox)
        self.counters.starts += 1
        return sandbox

    async def close(self) -> None:
        """Close every session."""
        for sandbox in self.opened:
            await sandbox.close()
