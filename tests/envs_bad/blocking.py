import time

from envs_bad.sound import Sound

from miles_agents import tool


class Bad(Sound):
    """An async tool that blocks."""

    @tool
    async def door_code(self, room: int) -> str:
        """The code of a room's door."""
        time.sleep(30)
        return self.answer(room)
