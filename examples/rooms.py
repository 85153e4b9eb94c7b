import miles_agents as ma
from miles_agents.checks.env_play import calling


@ma.register("rooms-v0")
class Rooms(ma.ToolEnv):
    """What is the code of a room's door? Only the tool knows."""

    @ma.tool
    def door_code(self, room: int) -> str:
        """The code of a room's door; rooms are 0 to 999."""
        if room not in range(1000):
            raise ma.ToolError(f"there is no room {room}; rooms are 0 to 999")
        return str(100_000 + room * 7919 * 104_729 % 900_000)

    def tasks(self, split: str):
        """A room is in one split only."""
        for room in {"train": range(800), "validation": range(800, 900), "test": range(900, 1000)}[split]:
            prompt = (ma.Message.user(f"What is the code of room {room}? Answer with the code only."),)
            yield ma.Task(id=f"room-{room}", prompt=prompt, answer=self.door_code(room), split=split)

    def reward(self, episode: ma.Episode) -> float:
        """1 for the code and nothing else."""
        return float(episode.final.content.strip() == episode.task.answer)

    def oracle(self, task: ma.Task):
        """Solves the task, for checks: no model sees it."""
        told = yield calling(("door_code", {"room": int(task.id.removeprefix("room-"))}))
        yield ma.Reply.of(told[0].text)
