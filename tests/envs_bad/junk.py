from dataclasses import replace

from envs_bad.sound import Sound

from miles_agents import Reply


class Bad(Sound):
    """Finds the answer anywhere in the reply."""

    def tasks(self, split):
        return [replace(task, answer=str(task.metadata["room"] % 5 + 2)) for task in super().tasks(split)]

    def answer(self, room):
        return str(room % 5 + 2) if super().answer(room) else ""

    def reward(self, episode):
        return float(f" {episode.task.answer} " in f" {episode.final.content} ")

    def oracle(self, task):
        return [Reply.of(task.answer)]
