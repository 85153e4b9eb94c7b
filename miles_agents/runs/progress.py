"""The live progress view: a few lines redrawn in a terminal, one plain line per step elsewhere."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.runs.metrics import MetricName
from miles_agents.runs.tables import printable

_MODES = ("auto", "live", "plain", "off")
_BARS = "▁▂▃▄▅▆▇█"
_RECENT_STEPS = 10  # time left is estimated from these
_SHOWN: tuple[tuple[MetricName, str, str], ...] = (
    (MetricName.RAW_REWARD, "reward", "{:.3f}"),
    (MetricName.ACCURACY, "held-out", "{:.3f}"),
    (MetricName.TOOL_CALL_RATE, "tool use", "{:.2f}"),
    (MetricName.SAMPLED_TOKENS_PER_S, "tokens/s", "{:,.0f}"),
)


class Progress:
    """Shows where a run stands. Use as a context manager; `update` once per step.

    Args:
        total_steps: the run's last step, counted from 1.
        console: default: standard output. Where it is no terminal, or `CI` is set, lines are printed instead.
        mode: "auto" as said above; "live" and "plain" force one or the other; "off" shows nothing.
        first_step: the step a resumed run starts from (0: a new run).
        clock: gives seconds; for tests.
    """

    def __init__(
        self,
        total_steps: int,
        console: Console | None = None,
        *,
        mode: str = "auto",
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if mode not in _MODES:
            raise ConfigError(f"unknown progress view {mode!r}. {did_you_mean(mode, _MODES)}")
        self._total = total_steps
        self._console = console or Console()
        self._mode = mode
        self._clock = clock
        self._step = first_step
        self._started = clock()
        self._finished_at = [self._started]  # when each step of this process ended
        self._latest: dict[str, float] = {}
        self._rewards: list[float] = []
        self._status = ""
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        in_terminal = self._console.is_terminal and not os.environ.get("CI")
        if self._mode == "live" or (self._mode == "auto" and in_terminal):
            self._live = Live(self._render(), console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status = ""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()
            self._live = None

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step `step` (1 is the first) is done, with these metrics; what is missing keeps its last value.

        Before the first step, `update(first_step, …)` shows what was measured beforehand.
        """
        if step > self._step:
            self._finished_at = [*self._finished_at, self._clock()][-_RECENT_STEPS - 1 :]
        else:
            self._finished_at = [self._clock()]
        self._step = step
        self._latest.update(metrics)
        if MetricName.RAW_REWARD in metrics:
            self._rewards.append(metrics[MetricName.RAW_REWARD])
        self._status = ""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif self._mode != "off":
            self._console.print(self._line(metrics), soft_wrap=True, highlight=False, markup=False)

    def status(self, text: str) -> None:
        """Say what is going on between steps, e.g. "evaluating"; shown in a terminal only."""
        self._status = printable(text)
        if self._live is not None:
            self._live.update(self._render(), refresh=True)

    def seconds_left(self) -> float | None:
        """Estimated from the last steps of this process; None before the first."""
        steps = len(self._finished_at) - 1
        if steps == 0:
            return None
        return (self._finished_at[-1] - self._finished_at[0]) / steps * max(self._total - self._step, 0)

    def _render(self) -> Group:
        head = Table.grid(padding=(0, 2), expand=False)
        head.add_row(
            Text(f"step {self._step}/{self._total}", style="bold"),
            ProgressBar(total=max(self._total, 1), completed=self._step, width=min(30, self._console.width // 4)),
            Text(self._times(), style="dim"),
        )
        numbers = Text(no_wrap=True, overflow="ellipsis")
        for name, label, shape in _SHOWN:
            numbers.append(f"{label} ", style="dim")
            numbers.append(f"{_number(self._latest.get(name), shape)}   ")
        lines: list[Table | Text] = [head, numbers]
        if self._rewards:
            curve = sparkline(self._rewards, width=min(40, max(self._console.width - 20, 8)))
            lines.append(Text.assemble(("reward ", "dim"), (curve, "green"), no_wrap=True, overflow="crop"))
        if self._status:
            lines.append(Text(f"{self._status} …", style="italic dim", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    def _line(self, metrics: Mapping[str, float]) -> str:
        parts = [f"step {self._step}/{self._total}"]
        parts += [f"{label} {_number(metrics[name], shape)}" for name, label, shape in _SHOWN if name in metrics]
        return "  ".join([*parts, self._times()])

    def _times(self) -> str:
        left = self.seconds_left()
        elapsed = duration(self._clock() - self._started)
        return f"{elapsed} so far" + (f", {duration(left)} left" if left is not None else "")


def duration(seconds: float) -> str:
    """`7 s`, `3 min 05 s`, `2 h 14 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def sparkline(values: list[float], *, width: int) -> str:
    """`▁▃▅█`: at most `width` bars between the smallest and the largest value; more values are averaged."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [round(index * len(finite) / count) for index in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def _number(value: float | None, shape: str) -> str:
    return "–" if value is None else shape.format(value)
