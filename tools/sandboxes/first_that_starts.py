"""Choosing a launcher: the first one that this machine can give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from miles_agents.contracts import SandboxProvider
from miles_agents.errors import SandboxUnavailableError

AUTO_ORDER = ("namespace", "docker")  # what sandbox=auto tries, in this order

_log = logging.getLogger(__name__)


async def first_that_starts(launchers: Mapping[str, Callable[[], SandboxProvider]]) -> SandboxProvider:
    """Start the launchers in turn until one works; what the others said is logged.

    Raises:
        SandboxUnavailableError: none works here; never a quiet fallback to less isolation.
    """
    refusals: list[str] = []
    for name, make in launchers.items():
        provider = make()
        try:
            await provider.start()
        except SandboxUnavailableError as error:
            await provider.close()
            refusals.append(str(error))
        else:
            for refusal in refusals:
                _log.warning("sandbox=auto takes %s, since %s", name, refusal)
            return provider
    raise SandboxUnavailableError("\n".join(refusals))
