"""An environment of your own: `python -m miles_agents.train env=./examples/my_env.py:Weekdays`."""

from datetime import date

import miles_agents as ma


@ma.register("weekdays-v0")
class Weekdays(ma.ToolEnv):
    """Which weekday was it? Too far back to know by heart, so a calendar helps."""

    @ma.tool
    def calendar(self, day: date) -> str:
        """The weekday of a date, written YYYY-MM-DD."""
        return day.strftime("%A")

    def tasks(self, split: str):
        """Every third day is for validation, every third for testing."""
        for number in range({"train": 0, "validation": 1, "test": 2}[split], 6000, 3):
            day = date.fromordinal(700_000 + number)
            prompt = (ma.Message.user(f"Which weekday was {day}? Answer with its name only."),)
            yield ma.Task(id=f"weekday-of-{day}", prompt=prompt, answer=day.strftime("%A"), split=split)

    def reward(self, episode: ma.Episode) -> float:
        """1 for the right name and nothing else."""
        return float(episode.final.content.strip() == episode.task.answer)
