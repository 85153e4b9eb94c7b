from envs_bad.sound import Sound

from miles_agents import Message


class Bad(Sound):
    """Answers calls without saying which."""

    async def step(self, action):
        result = await super().step(action)
        return result._replace(observation=tuple(Message.tool(each.text) for each in result.observation))
