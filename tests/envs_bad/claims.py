import json

from envs_bad.sound import Sound


class Bad(Sound):
    """Reads the verdict from the reply, as graders do that print JSON and read it back."""

    def reward(self, episode):
        try:
            return float(json.loads(episode.final.content)["correct"])
        except (ValueError, TypeError, KeyError):
            return super().reward(episode)
