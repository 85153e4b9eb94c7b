"""A sound environment; the others here spoil it in one place each."""

from miles_agents import Episode, Message, Reply, Task, ToolEnv, ToolError, tool
from miles_agents.types import ToolCall

ROOMS = {"train": range(5), "test": range(10, 14)}


def code_of(room):
    return str(100_000 + room * 7919)


def calls(*rooms, name="door_code"):
    made = (ToolCall(id=f"c{n}", name=name, arguments={"room": room}, raw="…") for n, room in enumerate(rooms))
    return Reply(text="…", calls=tuple(made))


class Sound(ToolEnv):
    """What is the code of a door? Only the tool knows."""

    splits = ("train", "test")
    max_turns = 4

    @tool
    def door_code(self, room: int) -> str:
        """The code of a room's door."""
        return self.answer(room)

    def answer(self, room):
        if not 0 <= room < 1000:
            raise ToolError(f"there is no room {room}")
        return code_of(room)

    def tasks(self, split):
        for room in ROOMS[split]:
            prompt = (Message.user(f"Which code opens room {room}?"),)
            yield Task(id=f"room-{room}", prompt=prompt, answer=code_of(room), metadata={"room": room}, split=split)

    def reward(self, episode: Episode):
        return float(episode.final.content.strip() == episode.task.answer)

    def oracle(self, task):
        observation = yield calls(task.metadata["room"])
        yield Reply.of(observation[0].text)
