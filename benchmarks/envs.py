"""`python -m benchmarks.envs`: CPU time and memory of episodes with tools, beside a loop by hand and other projects.

Every subject plays the same episode (five turns, four calls of a tool that does nothing) against one scripted server in
a process of its own, which answers after 50 ms. Each subject has a process too; what is counted is the CPU time of that
process alone. The subjects take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.envs_process import PEERS, SubjectProcess, UnavailableError, python_of
from benchmarks.envs_rounds import SUBJECTS, Plan, Round
from benchmarks.envs_server import serving

LOOP, OURS = "loop", "miles_agents"
LIMIT_RATIO, LIMIT_MS = 2.2, 3.0
_LEAST_EPISODES = 256
_TOGETHER = (32, 128, 512, 1024)
_WARM = 32


@dataclass(slots=True)
class Entry:
    """What is known of one subject."""

    name: str
    description: str = ""
    why_not: str = ""  # it was not measured to the end
    rounds: dict[int, list[Round]] = field(default_factory=dict)  # by episodes in play
    peak_kb: float | None = None  # per episode in play, at the most of them

    def cpu_ms(self, together: int) -> float | None:
        """The median of the repetitions."""
        found = self.rounds.get(together)
        return statistics.median(each.cpu_ms for each in found) if found else None

    def growth(self) -> float | None:
        """CPU time of an episode among the most others, over that among the fewest."""
        fewest, most = (self.cpu_ms(pick(self.rounds)) if self.rounds else None for pick in (min, max))
        return None if fewest is None or most is None else most / fewest


def measure(names: Sequence[str], together: Sequence[int], *, repeats: int) -> list[Entry]:
    """Measure the subjects, in turn, then the memory of each in a fresh process."""
    entries = {name: Entry(name) for name in names}
    with serving() as base_url:
        running: dict[str, SubjectProcess] = {}
        try:
            for name in names:
                _start(entries[name], base_url, running)
            for count in together:
                plan = Plan(base_url, max(count, _LEAST_EPISODES), count)
                for _ in range(repeats):
                    for name, subject in list(running.items()):
                        _round(entries[name], subject, plan, running)
        finally:
            for subject in running.values():
                subject.stop()
        for name in running:
            _memory(entries[name], base_url, max(together))
    return list(entries.values())


def _start(entry: Entry, base_url: str, running: dict[str, SubjectProcess]) -> None:
    try:
        subject = SubjectProcess(entry.name, _python(entry.name))
        running[entry.name] = subject
        entry.description = subject.description
        subject.round(Plan(base_url, _WARM, _WARM))
    except UnavailableError as error:
        entry.why_not = str(error)
        if entry.name in running:
            running.pop(entry.name).stop()


def _round(entry: Entry, subject: SubjectProcess, plan: Plan, running: dict[str, SubjectProcess]) -> None:
    try:
        entry.rounds.setdefault(plan.together, []).append(subject.round(plan))
    except UnavailableError as error:
        entry.why_not = f"at {plan.together}: {error}"
        running.pop(entry.name).stop()


def _memory(entry: Entry, base_url: str, most: int) -> None:
    """In a process that has freed no larger round's memory yet."""
    try:
        subject = SubjectProcess(entry.name, _python(entry.name))
        try:
            subject.round(Plan(base_url, _WARM, _WARM))
            entry.peak_kb = subject.round(Plan(base_url, most, most)).peak_kb
        finally:
            subject.stop()
    except UnavailableError as error:
        entry.why_not = f"memory: {error}"


def _python(name: str) -> Path:
    return python_of(name) if name in PEERS else Path(sys.executable)


# ---------------------------------------------------------------------- what is shown


def markdown(entries: Sequence[Entry], together: Sequence[int]) -> str:
    """The table, and what its rows are."""
    heads = [f"{count:,}" for count in together]
    most, fewest = max(together), min(together)
    lines = [
        f"| CPU ms per episode, in play: | {' | '.join(heads)} | × loop, {fewest:,} | × loop, {most:,} | "
        f"{most:,} against {fewest:,} | KB per episode |",
        "|---" * (len(together) + 5) + "|",
    ]
    loop = next((entry for entry in entries if entry.name == LOOP), None)
    for entry in entries:
        cells = [_shown(entry.cpu_ms(count)) for count in together]
        ratios = [_ratio(entry, loop, count) for count in (fewest, most)]
        lines.append(
            f"| `{entry.name}` | {' | '.join(cells)} | {' | '.join(map(_shown, ratios))} | {_shown(entry.growth())} | "
            f"{_shown(entry.peak_kb)} |"
        )
    notes = [f"- `{entry.name}`: {entry.description}{_missing(entry)}" for entry in entries]
    return "\n".join([*lines, "", *notes])


def _missing(entry: Entry) -> str:
    return f" (not measured to the end: {entry.why_not})" if entry.why_not else ""


def _ratio(entry: Entry, loop: Entry | None, together: int) -> float | None:
    own, other = entry.cpu_ms(together), loop.cpu_ms(together) if loop is not None else None
    return None if own is None or other is None or entry is loop else own / other


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def targets(entries: Sequence[Entry]) -> dict[str, bool]:
    """What this project promises of itself, and whether this run shows it."""
    by_name = {entry.name: entry for entry in entries}
    if not {LOOP, OURS} <= by_name.keys():
        return {}
    ours, loop = by_name[OURS], by_name[LOOP]
    counts = [count for count in ours.rounds if count in loop.rounds]
    if not counts:
        return {}
    ratio = max(_ratio(ours, loop, count) or 0.0 for count in counts)
    most_ms = max(ours.cpu_ms(count) or 0.0 for count in counts)
    return {
        f"at most {LIMIT_RATIO:g} × the loop by hand at each count ({ratio:.2f})": ratio <= LIMIT_RATIO,
        f"at most {LIMIT_MS:g} ms of CPU an episode where nothing else runs ({most_ms:.2f})": most_ms <= LIMIT_MS,
    }


def as_json(entries: Sequence[Entry], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The figures behind the table."""
    subjects = {
        entry.name: {
            **{key: value for key, value in asdict(entry).items() if key not in ("name", "rounds")},
            "cpu_ms": {count: entry.cpu_ms(count) for count in entry.rounds},
            "rounds": {count: [asdict(each) for each in found] for count, found in entry.rounds.items()},
        }
        for entry in entries
    }
    return {**plan, "subjects": subjects, "targets": targets(entries)}


# ---------------------------------------------------------------------- command line


def main(words: Sequence[str]) -> int:
    """Measure, print, write the file; the exit code comes back."""
    given = _parser().parse_args(words)
    from benchmarks.machine import machine_facts  # loads torch
    from benchmarks.measuring import Settings

    machine = machine_facts(Settings(repeats=given.repeats))
    sys.stdout.write(machine + "\n\n")
    names = given.only or ([LOOP, OURS] if given.no_peers else list(SUBJECTS))
    together = sorted(set(given.together))
    entries = measure(names, together, repeats=given.repeats)
    sys.stdout.write(markdown(entries, together) + "\n\n")
    for claim, held in targets(entries).items():
        sys.stdout.write(f"{'held  ' if held else 'missed'} {claim}\n")
    facts = {"machine": machine.splitlines(), "load_after": os.getloadavg()[0], "repeats": given.repeats}
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(as_json(entries, facts), indent=2) + "\n")
    sys.stdout.write(f"figures: {given.json}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envs", description=__doc__)
    parser.add_argument("--repeats", type=_count, default=3, metavar="N", help="interleaved (default: %(default)s)")
    parser.add_argument(
        "--together",
        type=_count,
        nargs="+",
        default=list(_TOGETHER),
        metavar="N",
        help=f"episodes in play (default: {' '.join(map(str, _TOGETHER))})",
    )
    parser.add_argument("--only", action="append", choices=list(SUBJECTS), help="measure this; may be repeated")
    parser.add_argument("--no-peers", action="store_true", help="the loop by hand and this project alone")
    parser.add_argument("--json", type=Path, default=Path("outputs/bench-envs.json"), help="default: %(default)s")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
