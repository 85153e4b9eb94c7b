from dataclasses import replace

from envs_bad.sound import Sound

from miles_agents import Message


class Bad(Sound):
    """A question of the test split is one of the train split, written a little differently."""

    def tasks(self, split):
        for task in super().tasks(split):
            text = "Which code  opens ROOM 0?" if task.id == "room-10" else task.prompt[0].text
            yield replace(task, prompt=(Message.user(text),))
