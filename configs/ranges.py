"""The values each key may take, checked before anything starts. Keys that a configuration lacks are passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from miles_agents.errors import ConfigError, did_you_mean


class Range(NamedTuple):
    """From `low` to `high`, both included unless `low_excluded`."""

    low: float
    high: float = math.inf
    low_excluded: bool = False

    def __str__(self) -> str:
        least = f"above {self.low:g}" if self.low_excluded else f"at least {self.low:g}"
        return least if self.high == math.inf else f"{least} and at most {self.high:g}"

    def holds(self, value: float) -> bool:
        """True if `value` lies in it; NaN does not."""
        return (self.low < value if self.low_excluded else self.low <= value) and value <= self.high


_COUNT, _NUMBER, _POSITIVE = Range(1), Range(0), Range(0, low_excluded=True)
_SHARE, _TOP_P = Range(0, 1), Range(0, 1, low_excluded=True)
RANGES: dict[str, Range] = {
    **dict.fromkeys(("steps", "samples", "tasks", "eval.tasks", "eval.final_tasks", "eval.samples"), _COUNT),
    **dict.fromkeys(("cluster.threads", "engine.threads", "trainer.threads", "rollout.concurrency"), _COUNT),
    **dict.fromkeys(("trainer.minibatches", "trainer.epochs", "trainer.token_budget", "logging.keep_last"), _COUNT),
    **dict.fromkeys(("rollout.groups_per_step", "rollout.max_new_tokens", "rollout.max_tokens"), _COUNT),
    **dict.fromkeys(("max_new_tokens", "max_tokens"), _COUNT),
    **dict.fromkeys(("engine.slots", "engine.prefill_rows", "engine.prefill_chunk", "engine.connections"), _COUNT),
    "engine.retries": _NUMBER,
    **dict.fromkeys((f"sandbox.{name}" for name in ("memory_mb", "processes", "file_mb", "tmp_mb", "cpu_s")), _COUNT),
    **dict.fromkeys(("sandbox.output_kb", "sandbox.open_files", "sandbox.docker.max_parallel_starts"), _COUNT),
    "sandbox.docker.pool_size": _NUMBER,
    **dict.fromkeys(("seed", "rollout.max_staleness", "rollout.retries", "eval.every", "logging.keep_best"), _NUMBER),
    **dict.fromkeys(("logging.checkpoint_every", "logging.trajectories_every", "trainer.warmup_steps"), _NUMBER),
    **dict.fromkeys(("trainer.lr", "trainer.weight_decay", "top_k", "rollout.top_k", "eval.top_k"), _NUMBER),
    **dict.fromkeys(("temperature", "rollout.temperature", "eval.temperature"), _NUMBER),
    **dict.fromkeys(("rollout.episode_deadline_s", "episode_deadline_s", "engine.request_deadline_s"), _POSITIVE),
    **dict.fromkeys(("trainer.eps", "trainer.max_grad_norm"), _POSITIVE),
    **dict.fromkeys(("rollout.max_failure_rate", "max_failure_rate", "eval.max_failure_rate"), _SHARE),
    **dict.fromkeys(("top_p", "rollout.top_p", "eval.top_p"), _TOP_P),
}
CHOICES: dict[str, tuple[str, ...]] = {
    "interval": ("wilson", "bootstrap"),
    "model.dtype": ("float32", "bfloat16"),
    "model.history": ("auto", "append", "keep", "split"),
    "model.thinking_calls": ("ignore", "end_thinking"),
    "trainer.dtype": ("float32", "bfloat16"),
    "logging.progress": ("auto", "live", "plain", "off"),
    "sandbox.docker.pull": ("never", "missing"),
    "sandbox.docker.transport": ("auto", "socket", "stdio"),
}


def check_ranges(config: Any) -> None:
    """Refuse values that no run could use.

    Args:
        config: a composed configuration; unset (None) values are not looked at.

    Raises:
        ConfigError: every key that is out of its range, and the range.
    """
    problems: list[str] = []
    for key, value in _leaves(config, ""):
        allowed = RANGES.get(key)
        if allowed is not None and not allowed.holds(value):
            problems.append(f"{key}={value}: must be {allowed}")
        choices = CHOICES.get(key)
        if choices is not None and value not in choices:
            problems.append(f"{key}={value}: unknown. {did_you_mean(str(value), choices)}")
    if problems:
        raise ConfigError("\n  ".join(problems))


def _leaves(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{each.name}.")
        elif value is not None:
            yield f"{prefix}{each.name}", value
