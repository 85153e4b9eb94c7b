import asyncio

from envs_bad.sound import Sound


class Bad(Sound):
    """Waits for something that never comes, before an episode begins."""

    async def begin(self, task):
        await asyncio.Event().wait()
