"""The `python` tool: runs code in the episode's sandbox and shows the model what it printed."""

from __future__ import annotations

from pydantic import Field

from miles_agents.contracts import Language
from miles_agents.tools.program import INTERPRETER, ProgramTool
from miles_agents.tools.typed import Arguments


class _Code(Arguments):
    code: str = Field(description="the code; print() what you want to see")


class PythonTool(ProgramTool[_Code]):
    """Runs Python in the episode's sandbox. Variables are kept between calls.

    Args: see `ProgramTool`.
    """

    name = "python"
    description = "Run Python code and return what it prints. Variables are kept between calls."
    arguments = _Code
    language = Language.PYTHON
    program = INTERPRETER
