from envs_bad.sound import Sound, calls

from miles_agents import Reply

current = {}


class Bad(Sound):
    """Keeps the running task in the module."""

    async def begin(self, task):
        current["task"] = task

    def answer(self, room):
        return f"{super().answer(room)} (for {current['task'].id})"

    def oracle(self, task):
        observation = yield calls(task.metadata["room"])
        yield Reply.of(observation[0].text.partition(" ")[0])
