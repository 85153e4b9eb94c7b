from envs_bad.sound import Sound


class Bad(Sound):
    """Pays for calling the tool."""

    def reward(self, episode):
        called = any(event.ok for event in episode.tool_events) and not episode.truncated
        return 1.0 if called else super().reward(episode)
