import numpy as np
from envs_bad.sound import Sound, calls

from miles_agents import Reply


class Bad(Sound):
    """Draws from a generator that no seed reaches."""

    def answer(self, room):
        return f"{super().answer(room)} (asked {np.random.default_rng().integers(10**9)} times)"

    def oracle(self, task):
        observation = yield calls(task.metadata["room"])
        yield Reply.of(observation[0].text.partition(" ")[0])
