import asyncio

from envs_bad.sound import Sound


class Bad(Sound):
    """Starts something with each episode that nobody ends."""

    async def begin(self, task):
        self.ticker = asyncio.create_task(self.tick())

    async def tick(self):
        await asyncio.sleep(3600)
