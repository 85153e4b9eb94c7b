from envs_bad.sound import Sound, calls

from miles_agents import Reply


class Bad(Sound):
    """Counts on from episode to episode."""

    def __init__(self):
        self.asked = 0

    def answer(self, room):
        self.asked += 1
        return f"{super().answer(room)} (question {self.asked})"

    def oracle(self, task):
        observation = yield calls(task.metadata["room"])
        yield Reply.of(observation[0].text.partition(" ")[0])
