"""Figures of tool calls: how many, what failed, how long they ran and waited.

A model can make up any name: figures are kept by the names of real tools alone, calls of other names share one count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from miles_agents.errors import ToolErrorKind
from miles_agents.types import ToolEvent

_NEVER_RAN = frozenset(
    {
        ToolErrorKind.BAD_ARGUMENTS,
        ToolErrorKind.UNKNOWN_TOOL,
        ToolErrorKind.MALFORMED_CALL,
        ToolErrorKind.NOT_EXECUTED,
    }
)


class CallFacts(NamedTuple):
    """What is counted of one call."""

    name: str  # as the model wrote it
    error: ToolErrorKind
    duration_s: float
    wait_s: float

    @property
    def ran(self) -> bool:
        """True if the tool was reached."""
        return self.error not in _NEVER_RAN


class Percentiles(NamedTuple):
    """Of seconds, interpolated linearly between two calls."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFigures:
    """Of one tool. The percentiles are over the calls that reached it, None if there were none."""

    calls: int
    errors: Mapping[ToolErrorKind, int]  # the kinds that occurred
    latency: Percentiles | None  # the tool's own work
    wait: Percentiles | None  # before it: for the sandbox, for a free place

    @property
    def failed(self) -> int:
        """Calls answered by an error."""
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTable:
    """Figures by the tool's name, in alphabetical order."""

    tools: Mapping[str, ToolFigures]
    unknown_calls: int  # of names that are no tool's, or without one


def facts_of(event: ToolEvent) -> CallFacts:
    """What is counted of a call."""
    kind = kind_of(event.error_kind, ok=event.ok, readable=event.call.error is None)
    return CallFacts(event.call.name, kind, event.duration_s, event.wait_s)


def kind_of(stated: str, *, ok: bool, readable: bool) -> ToolErrorKind:
    """The kind of a call's error; an environment that records its own events may state none."""
    if stated or ok:
        return ToolErrorKind(stated)
    return ToolErrorKind.ERROR if readable else ToolErrorKind.MALFORMED_CALL


def tool_figures(calls: Iterable[CallFacts], *, declared: Iterable[str] = ()) -> ToolTable:
    """Figures of the calls.

    Args:
        calls: in any order.
        declared: names of tools that get a row even if nothing called them. A tool that ran needs no declaration.
    """
    calls = list(calls)
    by_name: dict[str, list[CallFacts]] = {name: [] for name in declared}
    by_name.update({call.name: [] for call in calls if call.ran})
    unknown = 0
    for call in calls:
        if call.name in by_name:
            by_name[call.name].append(call)
        else:
            unknown += 1
    return ToolTable(tools={name: _figures(by_name[name]) for name in sorted(by_name)}, unknown_calls=unknown)


def _figures(calls: Sequence[CallFacts]) -> ToolFigures:
    errors = Counter(call.error for call in calls if call.error)
    ran = [call for call in calls if call.ran]
    return ToolFigures(
        calls=len(calls),
        errors={kind: errors[kind] for kind in ToolErrorKind if errors[kind]},
        latency=_percentiles([call.duration_s for call in ran]),
        wait=_percentiles([call.wait_s for call in ran]),
    )


def _percentiles(seconds: Sequence[float]) -> Percentiles | None:
    if not seconds:
        return None
    p50, p90, p99 = np.percentile(seconds, (50, 90, 99))
    return Percentiles(float(p50), float(p90), float(p99))
