import random

from envs_bad.sound import Sound


class Bad(Sound):
    """Draws from the generator that everybody shares."""

    def reward(self, episode):
        random.random()
        return super().reward(episode)
