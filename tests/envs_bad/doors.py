from contextvars import ContextVar

from envs_bad.sound import Sound, calls

from miles_agents import Reply

task_id = ContextVar("task_id", default="nobody")


class Bad(Sound):
    """Keeps the running task in a context variable, which is gone in the next asyncio task."""

    async def begin(self, task):
        task_id.set(task.id)

    def answer(self, room):
        return f"{super().answer(room)} (for {task_id.get()})"

    def oracle(self, task):
        observation = yield calls(task.metadata["room"])
        yield Reply.of(observation[0].text.partition(" ")[0])
