from envs_bad.sound import Sound


class Bad(Sound):
    """Gives a list where the contract says a tuple."""

    async def step(self, action):
        result = await super().step(action)
        return result._replace(observation=list(result.observation))
