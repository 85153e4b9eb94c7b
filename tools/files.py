"""The `read`, `write` and `edit` tools: text files of the episode's sandbox."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from pydantic import Field

from miles_agents.contracts import Sandbox, ToolContext, ToolLimits, ToolOutput
from miles_agents.contracts.threads import run_in_thread
from miles_agents.errors import ToolError
from miles_agents.tools.file_edits import numbered, replaced_once, split_lines
from miles_agents.tools.typed import Arguments, SandboxTool, require_at_least

P = ParamSpec("P")
R = TypeVar("R")

_TIMEOUT_S = 60.0  # the sandbox has its own, shorter one
_LARGE_BYTES = 1 << 14  # of a file: work on more is done off the event loop
_PATH = "path of the file, relative to the working folder"


class _Read(Arguments):
    path: str = Field(description=_PATH)
    start_line: int = Field(default=1, ge=1, description="first line to show, counted from 1")
    end_line: int | None = Field(default=None, ge=1, description="last line to show; the end of the file if left out")


class _Write(Arguments):
    path: str = Field(description=_PATH)
    content: str = Field(description="the whole content of the file")


class _Edit(Arguments):
    path: str = Field(description=_PATH)
    old_text: str = Field(description="the text to replace, exactly as it is in the file; it must be there just once")
    new_text: str = Field(description="the text to put in its place")


class ReadFileTool(SandboxTool[_Read]):
    """Shows lines of a text file, numbered.

    Args:
        max_lines: shown by one call; the model is told where to go on.
        max_output_chars: shown by one call.
        max_line_chars: shown of one line.
        name: what the model calls it.
    """

    name = "read"
    description = "Read a text file. Lines are shown with their numbers, which are not part of the file."
    arguments = _Read

    def __init__(
        self,
        *,
        max_lines: int = 400,
        max_output_chars: int = 12_000,
        max_line_chars: int = 1000,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, limits=ToolLimits(timeout_s=_TIMEOUT_S))
        require_at_least(
            self.name,
            max_lines=(max_lines, 1),
            max_output_chars=(max_output_chars, 100),
            max_line_chars=(max_line_chars, 10),
        )
        self.max_lines = max_lines
        self.max_output_chars = max_output_chars
        self.max_line_chars = max_line_chars

    async def run(self, arguments: _Read, context: ToolContext) -> ToolOutput:
        """Show the lines asked for.

        Raises:
            ToolError: no such text file, or no such lines.
            SandboxError: the session is missing or was lost.
        """
        data = await _read(self.sandbox_of(context), arguments.path)
        return ToolOutput(await _off_loop(len(data), self._show, data, arguments))

    def _show(self, data: bytes, asked: _Read) -> str:
        lines = split_lines(_as_text(asked.path, data))
        if not lines:
            return "(the file is empty)"
        if asked.start_line > len(lines):
            raise ToolError(f"'{asked.path}' has {len(lines)} lines; there is no line {asked.start_line}")
        end = min(asked.end_line or len(lines), len(lines))
        if end < asked.start_line:
            raise ToolError(f"end_line {asked.end_line} is before start_line {asked.start_line}")
        shown: list[str] = []
        room = self.max_output_chars
        for number in range(asked.start_line, min(end, asked.start_line + self.max_lines - 1) + 1):
            line = numbered(number, lines[number - 1], self.max_line_chars)
            room -= len(line) + 1
            if room < 0 and shown:
                break
            shown.append(line)
        last = asked.start_line + len(shown) - 1
        if last < end:
            shown.append(f"(lines {last + 1} to {end} are not shown; go on with start_line={last + 1})")
        elif end < len(lines):
            shown.append(f"(the file has {len(lines)} lines)")
        return "\n".join(shown)


class WriteFileTool(SandboxTool[_Write]):
    """Writes a text file, a new one or over an old one.

    Args:
        max_chars: of a file.
        name: what the model calls it.
    """

    name = "write"
    description = "Write a text file, making its folders. A file that is there already is replaced."
    arguments = _Write

    def __init__(self, *, max_chars: int = 1_000_000, name: str | None = None) -> None:
        super().__init__(name=name, limits=ToolLimits(timeout_s=_TIMEOUT_S))
        require_at_least(self.name, max_chars=(max_chars, 1))
        self.max_chars = max_chars

    async def run(self, arguments: _Write, context: ToolContext) -> ToolOutput:
        """Write it.

        Raises:
            ToolError: it is too long, or the sandbox refuses.
            SandboxError: the session is missing or was lost.
        """
        if len(arguments.content) > self.max_chars:
            raise ToolError(
                f"the content has {len(arguments.content)} characters; at most {self.max_chars} are allowed"
            )
        data = _as_bytes(arguments.content)
        await _write(self.sandbox_of(context), arguments.path, data)
        lines = len(split_lines(arguments.content))
        return ToolOutput(f"wrote {lines} lines, {len(data)} bytes, to {arguments.path}")


class EditTool(SandboxTool[_Edit]):
    """Replaces one piece of a text file that is there exactly once.

    Args:
        max_chars: of a file after the edit.
        name: what the model calls it.
    """

    name = "edit"
    description = (
        "Replace a piece of a text file. old_text must be exactly what is in the file, white space included, and be "
        "there just once: add lines around it until it is."
    )
    arguments = _Edit

    def __init__(self, *, max_chars: int = 1_000_000, name: str | None = None) -> None:
        super().__init__(name=name, limits=ToolLimits(timeout_s=_TIMEOUT_S))
        require_at_least(self.name, max_chars=(max_chars, 1))
        self.max_chars = max_chars

    async def run(self, arguments: _Edit, context: ToolContext) -> ToolOutput:
        """Edit it.

        Raises:
            ToolError: no such text file, or `old_text` is not there just once; the message says what to do.
            SandboxError: the session is missing or was lost.
        """
        sandbox = self.sandbox_of(context)
        data = await _read(sandbox, arguments.path)
        edit = await _off_loop(len(data), self._edited, data, arguments)
        await _write(sandbox, arguments.path, edit.data)
        return ToolOutput(f"edited {arguments.path}; it now says:\n{edit.shown}")

    def _edited(self, data: bytes, asked: _Edit) -> _Edited:
        edit = replaced_once(_as_text(asked.path, data), asked.old_text, asked.new_text, path=asked.path)
        if len(edit.text) > self.max_chars:
            raise ToolError(f"the file would have {len(edit.text)} characters; at most {self.max_chars} are allowed")
        return _Edited(_as_bytes(edit.text), edit.shown)


class _Edited(NamedTuple):
    data: bytes
    shown: str


async def _read(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.read_file(_checked(path))
    except OSError as error:
        raise _refusal(path, error) from error


async def _write(sandbox: Sandbox, path: str, data: bytes) -> None:
    try:
        await sandbox.write_file(_checked(path), data)
    except OSError as error:
        raise _refusal(path, error) from error


def _checked(path: str) -> str:
    if not path or re.search(r"[\0\ud800-\udfff]", path):
        raise ToolError(f"{path!r} is no path of a file")
    return path


def _refusal(path: str, error: OSError) -> ToolError:
    if isinstance(error, FileNotFoundError):
        return ToolError(f"there is no file '{path}'")
    if isinstance(error, IsADirectoryError):
        return ToolError(f"'{path}' is a folder, not a file")
    return ToolError(f"'{path}': {error.strerror or error}")


def _as_text(path: str, data: bytes) -> str:
    if b"\0" not in data:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    raise ToolError(
        f"'{path}' is no text in UTF-8 but {len(data)} bytes of something else; it cannot be shown or edited"
    )


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("the text has half of a surrogate pair in it, which cannot be written") from None


async def _off_loop(size: int, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Do work on a file of `size` bytes without holding up the event loop."""
    return await run_in_thread(work, *args, **kwargs) if size > _LARGE_BYTES else work(*args, **kwargs)
