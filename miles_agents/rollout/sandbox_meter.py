"""What the sandboxes did between two moments, as metrics."""

from __future__ import annotations

from dataclasses import replace

from miles_agents.contracts import SandboxCounters, SandboxProvider


class SandboxMeter:
    """Reads a provider's running totals, which go on through training and evaluation alike.

    Args:
        provider: None: the run needs no sandbox, and there are no metrics of any.
    """

    def __init__(self, provider: SandboxProvider | None) -> None:
        self._provider = provider
        self._last = SandboxCounters()

    def read(self) -> dict[str, float]:
        """What was added since the last reading; the first counts from the provider's start.

        `start_mean_s` is left out where no session was started.
        """
        if self._provider is None:
            return {}
        now = replace(self._provider.counters)
        metrics = sandbox_metrics(self._last, now)
        self._last = now
        return metrics


def sandbox_metrics(before: SandboxCounters, after: SandboxCounters) -> dict[str, float]:
    """The difference of two readings of one provider."""
    starts = after.starts - before.starts
    metrics = {
        "sandbox/starts": float(starts),
        "sandbox/failed_starts": float(after.failed_starts - before.failed_starts),
        "sandbox/pool_wait_s": after.pool_wait_s - before.pool_wait_s,
        "sandbox/respawns": float(after.respawns - before.respawns),
        "sandbox/sessions_lost": float(after.sessions_lost - before.sessions_lost),
        "sandbox/failed_removals": float(after.failed_removals - before.failed_removals),
    }
    if starts:
        metrics["sandbox/start_mean_s"] = (after.start_s - before.start_s) / starts
    return metrics
