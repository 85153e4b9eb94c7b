"""plot.png: reward, sampled held-out accuracy and tool-call rate over the steps."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from miles_agents.runs.durable import write_atomic
from miles_agents.runs.metrics import MetricName, MetricRow, merge_by_step

_BLUE, _ORANGE, _GREEN, _INK, _GRID = "#2563c9", "#c4541a", "#1a7f5a", "#333333", "#e3e3e3"


def write_plot(path: Path, rows: Sequence[MetricRow], *, title: str = "") -> None:
    """Draw the curves of `rows` into a PNG file, atomically. Works without a display."""
    merged = merge_by_step(list(rows))
    figure = Figure(figsize=(8, 5.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    _curve(upper, merged, MetricName.RAW_REWARD, "reward (training episodes)", color=_ORANGE)
    _curve(upper, merged, MetricName.ACCURACY, "accuracy (held-out tasks, sampled)", color=_BLUE, marker="o")
    _curve(lower, merged, MetricName.TOOL_CALL_RATE, "share of episodes that call a tool", color=_GREEN)
    upper.set_title(title.replace("$", r"\$"), loc="left", fontsize=11, color=_INK)
    lower.set_xlabel("training step", color=_INK)
    lower.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    for axes in (upper, lower):
        _dress(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def _curve(axes: Any, rows: Sequence[MetricRow], name: str, label: str, **style: Any) -> None:
    points = [(step, metrics[name]) for step, metrics in rows if math.isfinite(metrics.get(name, math.nan))]
    if not points:
        return
    steps, values = zip(*points, strict=True)
    if len(points) == 1:
        style.setdefault("marker", "o")
    axes.plot(steps, values, label=label, linewidth=1.8, markersize=4, **style)


def _dress(axes: Any) -> None:
    axes.grid(visible=True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(colors=_INK)
    low, high = axes.get_ylim()
    if axes.lines and low >= -0.05 and high <= 1.1:  # shares: always on the same scale
        axes.set_ylim(-0.03, 1.03)
    if axes.lines:
        # A fixed place: loc="best" searches, and warns on a busy machine that it is slow.
        axes.legend(loc="lower right", frameon=False, fontsize=9, labelcolor=_INK)
    else:
        axes.text(0.5, 0.5, "nothing logged yet", transform=axes.transAxes, ha="center", va="center", color="#777777")
