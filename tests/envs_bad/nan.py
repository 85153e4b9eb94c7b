from envs_bad.sound import Sound


class Bad(Sound):
    """Divides by the length of a reply, which may be 0."""

    def reward(self, episode):
        return super().reward(episode) if episode.final.content else float("nan")
