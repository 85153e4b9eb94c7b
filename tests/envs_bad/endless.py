from envs_bad.sound import Sound

from miles_agents.contracts import StepResult


class Bad(Sound):
    """Silence is never the end."""

    async def step(self, action):
        if not action.text.strip():
            self._current()
            return StepResult((), 0.0, False, False, {})
        return await super().step(action)
