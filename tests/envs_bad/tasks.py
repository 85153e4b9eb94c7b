from envs_bad.sound import Sound


class Bad(Sound):
    """The order of its tasks depends on how often it was asked."""

    times = 0

    def tasks(self, split):
        self.times += 1
        return list(super().tasks(split))[:: 1 if self.times % 2 else -1]
