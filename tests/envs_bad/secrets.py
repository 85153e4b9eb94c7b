from dataclasses import replace

from envs_bad.sound import Sound

from miles_agents import Message


class Bad(Sound):
    """The prompt holds the answer."""

    def tasks(self, split):
        for task in super().tasks(split):
            yield replace(task, prompt=(Message.user(f"{task.prompt[0].text} (It was {task.answer} last year.)"),))

    def reward(self, episode):
        return float(episode.final.content == episode.task.answer)
