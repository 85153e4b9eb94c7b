from envs_bad.sound import Sound


class Bad(Sound):
    """Twice as much as it says."""

    def reward(self, episode):
        return 2 * super().reward(episode)
