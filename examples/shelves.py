import miles_agents as ma
from miles_agents.checks.env_play import calling
from miles_agents.tools import PythonTool


@ma.register("shelves-v0")
class Shelves(ma.ToolEnv):
    """How many books? Too many to add up in one's head, so there is a Python interpreter."""

    tools = (PythonTool(),)

    def tasks(self, split: str):
        """Every third one is for validation, every third for testing."""
        for n in range({"train": 0, "validation": 1, "test": 2}[split], 6000, 3):
            one, other = 101 + n * 37 % 899, 101 + n * 101 % 887
            prompt = (
                ma.Message.user(f"Mia has {one} books. She buys {other} more. How many books does she have now?"),
            )
            yield ma.Task(id=f"{one}+{other}", prompt=prompt, answer=str(one + other), split=split)

    def reward(self, episode: ma.Episode) -> float:
        """1 for the number in a box."""
        return float(episode.final.content.strip() == rf"\boxed{{{episode.task.answer}}}")

    def oracle(self, task: ma.Task):
        """Solves the task, for checks: no model sees it."""
        told = yield calling(("python", {"code": f"print({task.id})"}))
        yield ma.Reply.of(rf"\boxed{{{told[0].text.strip()}}}")
