"""The `submit` tool: hands in the final answer and ends the episode."""

from __future__ import annotations

from pydantic import Field

from miles_agents.contracts import ToolContext, ToolOutput
from miles_agents.tools.typed import Arguments, TypedTool


class _Answer(Arguments):
    answer: str = Field(description="the final answer")


class SubmitTool(TypedTool[_Answer]):
    """Ends the episode with an answer, which `reward` finds in `Episode.submitted`.

    Args:
        name: what the model calls it.
        description: what the model is told of it.
    """

    name = "submit"
    description = "Hand in the final answer. This ends the task; nothing can be done after it."
    arguments = _Answer
    ends_episode = True

    def __init__(self, *, name: str | None = None, description: str | None = None) -> None:
        super().__init__(name=name)
        if description is not None:
            self.description = description

    async def run(self, arguments: _Answer, context: ToolContext) -> ToolOutput:
        """Hand it in."""
        return ToolOutput("submitted", submitted=arguments.answer)
