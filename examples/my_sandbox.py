"""A sandbox launcher of one's own: it hands out the sessions of another one, made ahead.

Any `SandboxProvider` will do for an environment: `env.bind(EnvResources(sandboxes=provider))`. Whatever it starts its
sessions with, the isolation is its own business: `check_sandbox` and `check_abuse` say what it lacks.
"""

import asyncio

from miles_agents.checks.env import play
from miles_agents.checks.sandbox import check_sandbox
from miles_agents.contracts import EnvResources, Sandbox, SandboxProvider
from miles_agents.envs.code.env import Code
from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes import NamespaceSandboxes


# sandbox: provider
class ReadySandboxes(SandboxProvider):
    """Keeps some sessions ready, so that an episode need not wait for one.

    Args:
        inner: makes the sessions; started and closed with this one.
        ready: sessions to keep.
    """

    def __init__(self, inner: SandboxProvider, *, ready: int = 2) -> None:
        self._inner = inner
        self._ready = ready
        self._waiting: list[Sandbox] = []
        self._closed = False

    @property
    def description(self) -> str:
        """One line for the run header."""
        return f"{self._inner.description}, {self._ready} kept ready"

    async def start(self) -> None:
        """Start the other launcher, which refuses where this machine cannot isolate, and make the first sessions."""
        try:
            await self._inner.start()
            while len(self._waiting) < self._ready:
                self._waiting.append(await self._inner.open())
        except BaseException:
            await self.close()
            raise

    async def open(self) -> Sandbox:
        """A session that was ready, or a new one."""
        if self._closed:
            raise SandboxError("the sandboxes were closed")
        session = self._waiting.pop() if self._waiting else await self._inner.open()
        self.counters.starts += 1
        return session

    async def close(self) -> None:
        """End every session."""
        self._closed = True
        while self._waiting:
            await self._waiting.pop().close()
        await self._inner.close()


# sandbox: use
async def main() -> None:
    """Check the launcher, then play an episode with it."""
    async with ReadySandboxes(NamespaceSandboxes(preload=())) as sandboxes:
        findings = await check_sandbox(sandboxes)
        assert findings == [], findings
        env = Code()
        env.bind(EnvResources(sandboxes=sandboxes))
        task = env.tasks("test")[0]
        last = (await play(env, task, env.oracle(task), seed=0))[-1]
        print(f"{sandboxes.description}: reward {last.reward:g}")  # noqa: T201 — a command line


# sandbox: end
if __name__ == "__main__":
    asyncio.run(main())
