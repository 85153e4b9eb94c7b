"""Tools of one's own: a function, and a class that uses the sandbox.

python -m miles_agents.play env=./examples/my_tool.py:Tidy oracle=true
"""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

import miles_agents as ma
from miles_agents.contracts import ToolContext, ToolOutput
from miles_agents.tools import Arguments, SandboxTool, SubmitTool
from miles_agents.types import ToolCall


# tool: function
@ma.tool(timeout_s=5, retries=2)
async def shelf_of(topic: str) -> str:
    """The shelf on which files about a topic lie.

    Args:
        topic: one word, in English.
    """
    if not topic.isalpha():
        raise ma.ToolError(f"{topic!r} is no word; give one word, such as tea")  # the model is shown this
    return f"shelves/{topic.lower()}.txt"


# tool: class
class CountArguments(Arguments):
    """What the model gives; descriptions and limits are part of the schema it is shown."""

    path: str = Field(description="the file to count, relative to the working folder")
    least: int = Field(default=1, ge=1, description="words that are shorter do not count")


class CountWords(SandboxTool[CountArguments]):
    """Counts words of a file in the episode's sandbox.

    Args:
        max_bytes: of a file.
        name: what the model calls it.
    """

    name = "count_words"
    description = "Count the words of a text file."
    arguments = CountArguments

    def __init__(self, *, max_bytes: int = 100_000, name: str | None = None) -> None:
        super().__init__(name=name)
        self.max_bytes = max_bytes

    async def run(self, arguments: CountArguments, context: ToolContext) -> ToolOutput:
        """Count them."""
        try:
            data = await self.sandbox_of(context).read_file(arguments.path)
        except FileNotFoundError:
            raise ma.ToolError(f"there is no file '{arguments.path}'") from None
        if len(data) > self.max_bytes:
            raise ma.ToolError(f"'{arguments.path}' has {len(data)} bytes; at most {self.max_bytes} are counted")
        words = [each for each in data.decode("utf-8", "replace").split() if len(each) >= arguments.least]
        return ToolOutput(str(len(words)), info={"bytes": len(data)})


# tool: environment
TOPICS = {"train": ["tea", "salt", "maps", "moss"], "validation": ["rope", "bells"], "test": ["kites", "lamps"]}


class Tidy(ma.ToolEnv):
    """How many words lie on a shelf?"""

    tools = (shelf_of, CountWords(), SubmitTool())
    max_turns = 4

    def tasks(self, split: str) -> Iterator[ma.Task]:
        """A task for each topic."""
        for topic in TOPICS[split]:
            prompt = ma.Message.user(f"How many words are in the file about {topic}? Submit the number.")
            yield ma.Task(id=topic, prompt=(prompt,), answer=str(sum(map(ord, topic))), split=split)

    async def begin(self, task: ma.Task) -> None:
        """Fill the shelf."""
        await self.sandbox.write_file(f"shelves/{task.id}.txt", b"leaf " * int(task.answer))

    def reward(self, episode: ma.Episode) -> float:
        """1 for the right number."""
        return float(episode.submitted == episode.task.answer)

    # tool: end
    def oracle(self, task: ma.Task) -> list[ma.Reply]:
        """Ask, count, hand in."""
        return [
            _calling("shelf_of", topic=task.id),
            _calling("count_words", path=f"shelves/{task.id}.txt"),
            _calling("submit", answer=task.answer),
        ]


def _calling(name: str, **arguments: Any) -> ma.Reply:
    return ma.Reply(text="…", calls=(ToolCall(id="call_0", name=name, arguments=arguments, raw="…"),))
