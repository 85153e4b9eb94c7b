"""Tools that run programs in the episode's sandbox, and what the model is shown of a run."""

from __future__ import annotations

from typing import Any, ClassVar

from miles_agents.contracts import ExecResult, ExecStatus, Language, ToolContext, ToolLimits, ToolOutput
from miles_agents.errors import ToolErrorKind, UsageError
from miles_agents.tools.typed import SANDBOX_GRACE_S, A, SandboxTool, require_at_least

INTERPRETER = "interpreter"
SHELL = "shell"

_MIN_OUTPUT_CHARS = 100
_NO_OUTPUT = "(no output)"
_STATE_LOST = "(the interpreter was restarted: earlier variables are gone)"

_KINDS = {
    ExecStatus.OK: ToolErrorKind.NONE,
    ExecStatus.ERROR: ToolErrorKind.ERROR,
    ExecStatus.TIMEOUT: ToolErrorKind.TIMEOUT,
    ExecStatus.CRASHED: ToolErrorKind.CRASHED,
    ExecStatus.OUTPUT_LIMIT: ToolErrorKind.OUTPUT_LIMIT,
}


class ProgramTool(SandboxTool[A]):
    """What `PythonTool` and `ShellTool` have in common: their one argument is a program.

    Args:
        timeout_s: of one call, kept by the sandbox. The deadline of `limits` is later, so that it never comes first.
        max_output_chars: the model is shown at most about this much; of more it sees head and tail.
        name: what the model calls it.
        max_concurrency: calls at a time, over all episodes of the process.
    """

    language: ClassVar[Language]
    program: ClassVar[str]  # for messages: INTERPRETER or SHELL

    def __init__(
        self,
        *,
        timeout_s: float = 10.0,
        max_output_chars: int = 2000,
        name: str | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        name = name or self.name
        if timeout_s <= 0:
            raise UsageError(f"{name} tool: timeout_s is {timeout_s}; it must be positive")
        require_at_least(name, max_output_chars=(max_output_chars, _MIN_OUTPUT_CHARS))
        limits = ToolLimits(timeout_s=timeout_s + SANDBOX_GRACE_S, max_concurrency=max_concurrency)
        super().__init__(name=name, limits=limits)
        self.timeout_s = timeout_s
        self.max_output_chars = max_output_chars

    async def run(self, arguments: A, context: ToolContext) -> ToolOutput:
        """Run the program.

        Raises:
            SandboxError: the session is missing or was lost.
        """
        (code,) = arguments.model_dump().values()
        result = await self.sandbox_of(context).exec(code, timeout_s=self.timeout_s, language=self.language)
        return program_output(result, program=self.program, timeout_s=self.timeout_s, max_chars=self.max_output_chars)


def program_output(result: ExecResult, *, program: str, timeout_s: float, max_chars: int) -> ToolOutput:
    """Stdout, then stderr, then what went wrong, one below the other; `(no output)` if there is nothing.

    Args:
        result: of the call.
        program: what ran: INTERPRETER or SHELL.
        timeout_s: the limit it ran under.
        max_chars: of its output; of more the model sees head and tail.
    """
    kind = ToolErrorKind.ERROR if result.forged_frames else _KINDS[result.status]
    facts: dict[str, Any] = {"status": result.status.value, "state_lost": result.state_lost}
    if result.exit_code is not None:
        facts["exit_code"] = result.exit_code
    return ToolOutput(_shown(result, program, timeout_s, max_chars), error_kind=kind, info=facts)


def _shown(result: ExecResult, program: str, timeout_s: float, max_chars: int) -> str:
    interrupted = program == INTERPRETER and result.status is ExecStatus.TIMEOUT and not result.state_lost
    stderr = "" if interrupted else result.stderr  # the traceback of the interrupt says nothing new
    printed = cut("\n".join(part for part in (result.stdout.rstrip("\n"), stderr.rstrip("\n")) if part), max_chars)
    lines = [printed] if printed else []
    if result.late_output.strip():
        lines.append(f"(printed by earlier code: {cut(result.late_output.strip(), max_chars)})")
    failure = _failure(result, program, timeout_s)
    if failure:
        lines.append(failure)
    if result.state_lost:
        lines.append(_STATE_LOST)
    return "\n".join(lines) or _NO_OUTPUT


def _failure(result: ExecResult, program: str, timeout_s: float) -> str:
    if result.forged_frames:
        return "Error: the code wrote to the interpreter's own channel"
    match result.status:
        case ExecStatus.TIMEOUT:
            return f"Error: timed out after {timeout_s:g} s"
        case ExecStatus.OUTPUT_LIMIT:
            return "Error: stopped for printing too much"
        case ExecStatus.CRASHED:
            return f"Error: the {program} died{_how(result.exit_code)}"
        case ExecStatus.ERROR:
            return _how(result.exit_code).strip()
        case ExecStatus.OK:
            return ""


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    return f" (signal {-exit_code})" if exit_code < 0 else f" (exit code {exit_code})"


def cut(text: str, max_chars: int) -> str:
    """Head and tail of a text that is too long, and how much is missing."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n… [{len(text) - 2 * half} characters omitted] …\n{text[-half:]}"
