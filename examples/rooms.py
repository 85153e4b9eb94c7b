"""An environment with an oracle: `python -m miles_agents.environments check ./examples/rooms.py:Rooms`."""

import miles_agents as ma
from miles_agents.types import ToolCall

ROOMS = {"train": range(800), "validation": range(800, 900), "test": range(900, 1000)}


def code_of(room: int) -> str:
    """Something that cannot be guessed."""
    return str(100_000 + room * 7919 * 104_729 % 900_000)


class Rooms(ma.ToolEnv):
    """What is the code of a room's door? Only the tool knows."""

    max_turns = 4  # replies, the answer included

    @ma.tool
    def door_code(self, room: int) -> str:
        """The code of a room's door.

        Args:
            room: the room's number, 0 to 999.
        """
        if room not in range(1000):
            raise ma.ToolError(f"there is no room {room}; rooms are 0 to 999")
        return code_of(room)

    def tasks(self, split: str):
        """A room is in one split only."""
        for room in ROOMS[split]:
            prompt = (ma.Message.user(f"What is the code of room {room}? Answer with the code only."),)
            yield ma.Task(id=f"room-{room}", prompt=prompt, answer=code_of(room), metadata={"room": room}, split=split)

    def reward(self, episode: ma.Episode) -> float:
        """1 for the code and nothing else."""
        return float(episode.final.content.strip() == episode.task.answer)

    def oracle(self, task: ma.Task):
        """Ask, then answer what the tool said: for checks, no model is trained on it."""
        call = ToolCall(id="call_0", name="door_code", arguments={"room": task.metadata["room"]}, raw="…")
        observation = yield ma.Reply(text="…", calls=(call,))
        yield ma.Reply.of(observation[0].text)
