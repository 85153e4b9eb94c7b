"""The `python` tool: runs code in the episode's sandbox and shows the model what it printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from miles_agents.contracts.sandbox import ExecResult, ExecStatus
from miles_agents.contracts.tools import ToolContext, ToolOutput, describe_validation_error, function_schema
from miles_agents.errors import SandboxError, ToolError, UsageError

_DESCRIPTION = "Run Python code and return what it prints. Variables are kept between calls."
_NO_OUTPUT = "(no output)"
_STATE_LOST = "(the interpreter was restarted: earlier variables are gone)"
_MIN_OUTPUT_CHARS = 100


class _Arguments(BaseModel):
    """What the model passes."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="the code; print() what you want to see")


class PythonTool:
    """Runs Python in the episode's sandbox.

    Args:
        timeout_s: of one call.
        max_output_chars: the model is shown at most about this much; of more it sees head and tail.
    """

    name = "python"
    needs_sandbox = True

    def __init__(self, *, timeout_s: float = 10.0, max_output_chars: int = 2000) -> None:
        if timeout_s <= 0:
            raise UsageError(f"python tool: timeout_s is {timeout_s}; it must be positive")
        if max_output_chars < _MIN_OUTPUT_CHARS:
            raise UsageError(f"python tool: max_output_chars is {max_output_chars}; at least {_MIN_OUTPUT_CHARS}")
        self.timeout_s = timeout_s
        self.max_output_chars = max_output_chars

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema: one argument, `code`."""
        parameters = _Arguments.model_json_schema()
        parameters.pop("title")
        parameters.pop("description", None)
        for each in parameters["properties"].values():
            each.pop("title", None)
        return function_schema(self.name, _DESCRIPTION, parameters)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the code.

        Raises:
            ToolError: the arguments are not `{"code": <text>}`.
            SandboxError: the session is missing or was lost.
        """
        try:
            code = _Arguments.model_validate(dict(arguments)).code
        except ValidationError as error:
            raise ToolError(describe_validation_error(self.name, error)) from error
        if context.sandbox is None:
            raise SandboxError("the python tool needs a sandbox, but the episode has none")
        result = await context.sandbox.exec(code, timeout_s=self.timeout_s)
        return ToolOutput(
            self.show(result),
            ok=result.status is ExecStatus.OK,
            info={"status": result.status.value, "state_lost": result.state_lost},
        )

    def show(self, result: ExecResult) -> str:
        """What the model sees: stdout, then stderr, then what went wrong, one below the other.

        A call that printed nothing shows `(no output)`.
        """
        interrupted = result.status is ExecStatus.TIMEOUT and not result.state_lost
        stderr = "" if interrupted else result.stderr  # the traceback of the interrupt says nothing new
        printed = _cut(
            "\n".join(part for part in (result.stdout.rstrip("\n"), stderr.rstrip("\n")) if part), self.max_output_chars
        )
        lines = [printed] if printed else []
        if result.late_output.strip():
            lines.append(f"(printed by earlier code: {_cut(result.late_output.strip(), self.max_output_chars)})")
        failure = self._failure(result)
        if failure:
            lines.append(failure)
        if result.state_lost:
            lines.append(_STATE_LOST)
        return "\n".join(lines) or _NO_OUTPUT

    def _failure(self, result: ExecResult) -> str:
        if result.forged_frames:
            return "Error: the code wrote to the interpreter's own channel"
        match result.status:
            case ExecStatus.TIMEOUT:
                return f"Error: timed out after {self.timeout_s:g} s"
            case ExecStatus.OUTPUT_LIMIT:
                return "Error: stopped for printing too much"
            case ExecStatus.CRASHED:
                return f"Error: the interpreter died{_how(result.exit_code)}"
            case ExecStatus.OK | ExecStatus.ERROR:
                return ""


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    return f" (signal {-exit_code})" if exit_code < 0 else f" (exit code {exit_code})"


def _cut(text: str, max_chars: int) -> str:
    """Head and tail of a text that is too long, and how much is missing."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n… [{len(text) - 2 * half} characters omitted] …\n{text[-half:]}"
