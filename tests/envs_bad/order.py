from envs_bad.sound import Sound

from miles_agents.contracts import StepResult


class Bad(Sound):
    """Answers when no episode runs."""

    async def step(self, action):
        if self._episode is None:
            return StepResult((), 0.0, True, False, {})
        return await super().step(action)
