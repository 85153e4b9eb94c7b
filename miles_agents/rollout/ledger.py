"""The ledger of lost episodes: each has exactly one cause; too many stop the run."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from miles_agents.errors import FailureCause, FailureRateError
from miles_agents.types import EpisodeStatus, Trajectory, TrajectoryGroup

_WINDOW = 256  # episodes the failure rate is taken over
_MINIMUM = 16  # below this many episodes no rate is judged


class FailureLedger:
    """Counts episodes and their failures, and stops the run above `max_failure_rate`.

    Args:
        max_failure_rate: share of the last 256 attempts that may be lost.
    """

    def __init__(self, *, max_failure_rate: float) -> None:
        self.max_failure_rate = max_failure_rate
        self.episodes = 0
        self.by_status: Counter[str] = Counter()
        self.by_cause: Counter[str] = Counter()
        self.retried = 0
        self._recent: deque[bool] = deque(maxlen=_WINDOW)
        self._first_error = ""

    def attempt(self, trajectory: Trajectory, *, retried: bool = False) -> None:
        """Judge the failure rate with one more attempt.

        Args:
            trajectory: what came of the attempt.
            retried: it failed and is played again.

        Raises:
            FailureRateError: too many of the last attempts failed; says how many and gives the first error.
        """
        failed = trajectory.status is EpisodeStatus.FAILED
        self._recent.append(failed)
        if failed and not self._first_error:
            self._first_error = f"{trajectory.cause}: {trajectory.error}"
        self.retried += retried
        lost = sum(self._recent)
        if failed and len(self._recent) >= _MINIMUM and lost > self.max_failure_rate * len(self._recent):
            raise FailureRateError(
                f"{lost} of the last {len(self._recent)} episodes were lost, more than "
                f"rollout.max_failure_rate={self.max_failure_rate:g} allows. The first: {self._first_error}"
            )

    def count(self, group: TrajectoryGroup) -> None:
        """Count a group's episodes, once: when it is trained on, or discarded."""
        for trajectory in group.trajectories:
            self.episodes += 1
            self.by_status[trajectory.status.value] += 1
            if trajectory.cause is not None:
                self.by_cause[trajectory.cause.value] += 1

    @property
    def failures(self) -> dict[str, int]:
        """Lost episodes by cause; every cause is listed."""
        return {cause.value: self.by_cause[cause.value] for cause in FailureCause}

    def state_dict(self) -> dict[str, Any]:
        """JSON state."""
        return {
            "episodes": self.episodes,
            "by_status": dict(self.by_status),
            "by_cause": dict(self.by_cause),
            "retried": self.retried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.episodes = int(state["episodes"])
        self.by_status = Counter(state["by_status"])
        self.by_cause = Counter(state["by_cause"])
        self.retried = int(state["retried"])
