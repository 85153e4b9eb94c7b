from envs_bad.sound import Sound


class Bad(Sound):
    """Every text begins with nothing."""

    def reward(self, episode):
        begun = episode.task.answer.startswith(episode.final.content.strip())
        return float(begun and not episode.truncated)
