"""The `shell` tool: runs bash commands in the episode's sandbox."""

from __future__ import annotations

from pydantic import Field

from miles_agents.contracts import Language
from miles_agents.tools.program import SHELL, ProgramTool
from miles_agents.tools.typed import Arguments


class _Command(Arguments):
    command: str = Field(description="one bash command, or several lines of them")


class ShellTool(ProgramTool[_Command]):
    """Runs bash in the episode's sandbox. The working folder and files are kept between calls, variables are not.

    Args: see `ProgramTool`.
    """

    name = "shell"
    description = (
        "Run a bash command and return what it prints. The working folder and the files are kept between calls; "
        "variables and background processes are not."
    )
    arguments = _Command
    language = Language.SHELL
    program = SHELL
