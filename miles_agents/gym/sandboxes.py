"""Sandboxes for Gymnasium environments: one launcher for a whole process, started by the first call that needs it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from miles_agents import registry
from miles_agents.contracts import Sandbox, SandboxLimits, SandboxProvider
from miles_agents.errors import UsageError, did_you_mean
from miles_agents.gym.loop import close_at_exit
from miles_agents.tools.sandboxes.first_that_starts import AUTO_ORDER, first_that_starts


@dataclass(slots=True)
class _Launcher:
    """A launcher in use, and by how many."""

    users: int = 0
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    provider: SandboxProvider | None = None


_launchers: dict[tuple[int, str], _Launcher] = {}  # by process and name


def check_sandbox_name(name: str) -> None:
    """Refuse a launcher that does not exist.

    Raises:
        UsageError: the allowed names.
    """
    names = ["auto", *registry.sandboxes.names()]
    if name not in names:
        raise UsageError(f"unknown sandbox {name!r}. {did_you_mean(name, names)}")


class SharedSandboxes(SandboxProvider):
    """What one environment is lent: the process's launcher of that name, started when the first session is opened.

    The launcher is closed when the last environment that used it is closed, or when the process ends.

    Args:
        name: "auto" (the first launcher that works here) or a registered one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._launcher: _Launcher | None = None

    async def start(self) -> None:
        """Nothing yet: most episodes may never call a tool."""

    async def open(self) -> Sandbox:
        """A fresh session; the first one starts the launcher.

        Raises:
            SandboxUnavailableError: this machine cannot give the isolation.
            SandboxError: the session could not be set up.
        """
        if self._launcher is None:
            self._launcher = _launchers.setdefault((os.getpid(), self._name), _Launcher())
            self._launcher.users += 1
        async with self._launcher.starting:
            if self._launcher.provider is None:
                self._launcher.provider = await _start(self._name)
        return await self._launcher.provider.open()

    async def close(self) -> None:
        """Use the launcher no more; the last one to say so ends it."""
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        launcher.users -= 1
        if launcher.users == 0:
            await _stop(launcher)

    @property
    def description(self) -> str:
        """The launcher's own words."""
        provider = self._launcher.provider if self._launcher else None
        return provider.description if provider else f"{self._name} (not started)"


async def _start(name: str) -> SandboxProvider:
    names = AUTO_ORDER if name == "auto" else (name,)
    return await first_that_starts(
        {each: lambda each=each: registry.sandboxes.get(each)(limits=SandboxLimits(), preload=()) for each in names}  # type: ignore[misc]
    )


async def _stop(launcher: _Launcher) -> None:
    async with launcher.starting:
        provider, launcher.provider = launcher.provider, None
        if provider is not None:
            await provider.close()


async def _stop_all() -> None:
    for (process, _), launcher in list(_launchers.items()):
        if process == os.getpid():
            await _stop(launcher)


close_at_exit(_stop_all)
