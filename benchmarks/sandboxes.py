"""`python -m benchmarks.sandboxes`: this project's sandboxes beside what else runs a model's code, in one run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import event_loop, peers, sandbox_subjects
from benchmarks.__main__ import figure, show
from benchmarks.measuring import Settings, Table
from benchmarks.peer_process import PeerProcess
from benchmarks.sandbox_rounds import (
    LIBRARIES,
    PLAIN,
    WORKS,
    Plan,
    Round,
    Subject,
    UnavailableError,
    measure_round,
)
from miles_agents.tools.sandboxes.docker.settings import IMAGE

_ROOT = Path(__file__).parents[1]
_TOGETHER = (1, 8, 32)
_WITH_DOCKER = (sandbox_subjects.DOCKER, sandbox_subjects.DOCKER_POOL, sandbox_subjects.DOCKER_EXEC)
_PEERS = (
    peers.SUBPROCESS,
    peers.SMOLAGENTS,
    peers.SWE_REX,
    peers.BUBBLEWRAP,
    peers.CONTAINER,
    peers.INTERACTIVE,
)
_PEERS_WITH_DOCKER = (peers.CONTAINER, peers.INTERACTIVE)
_SHOWN_CHARS = 200


class Measured(Protocol):
    """What takes part: in this process or in another one."""

    async def start(self) -> str:
        """See `Subject.start`."""
        ...

    async def round(self, plan: Plan) -> Round:
        """Measure a round."""
        ...

    async def stop(self) -> None:
        """See `Subject.stop`."""
        ...


class Here:
    """A subject of this process.

    Args:
        subject: to be measured.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.start = subject.start
        self.stop = subject.stop

    async def round(self, plan: Plan) -> Round:
        """Measure a round."""
        return await measure_round(self._subject, plan)


class Absent:
    """One that cannot take part.

    Args:
        why_not: what its row says.
    """

    def __init__(self, why_not: str) -> None:
        self._why_not = why_not

    async def start(self) -> str:
        """Refuse.

        Raises:
            UnavailableError: always.
        """
        raise UnavailableError(self._why_not)

    async def round(self, plan: Plan) -> Round:
        """Refuse, as `start` does."""
        raise UnavailableError(self._why_not)

    async def stop(self) -> None:
        """Nothing to end."""


@dataclass(slots=True)
class Entry:
    """What is known of one that was to be measured."""

    name: str
    description: str = ""
    why_not: str = ""  # it was not measured to the end
    rounds: list[Round] = field(default_factory=list)

    def latencies_ms(self, work: str) -> list[float]:
        """Of the calls of one session alone, all rounds together."""
        return [1000 * each for found in self.rounds for each in found.calls[work][1].latencies_s]

    def per_second(self, work: str, sessions: int) -> float:
        """The median of the rounds."""
        return statistics.median(found.calls[work][sessions].per_second for found in self.rounds)

    def starts_ms(self) -> list[float]:
        """Of all rounds together."""
        return [1000 * each for found in self.rounds for each in found.starts_s]

    def session_mb(self) -> float | None:
        """The median of the rounds."""
        known = [found.session_bytes for found in self.rounds if found.session_bytes is not None]
        return statistics.median(known) / (1 << 20) if known else None

    @property
    def calls_were_measured(self) -> bool:
        """Whether there is more than starts."""
        return bool(self.rounds) and all(found.calls[PLAIN.name] for found in self.rounds)


class Target(NamedTuple):
    """A claim, and what was found."""

    claim: str
    found: float | None  # None: not measured
    limit: float
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.found is None:
            return "not measured"
        return "held" if (self.found >= self.limit if self.at_least else self.found <= self.limit) else "MISSED"


async def compare(measured: Mapping[str, Measured], plans: Mapping[str, Plan], *, rounds: int) -> list[Entry]:
    """Measure all of them, taking turns; the first, short round warms up and is not counted.

    Args:
        measured: by name.
        plans: by name; all have one.
        rounds: that count.
    """
    entries = {name: Entry(name) for name in measured}
    try:
        for name, each in measured.items():
            with _noting(entries[name]):
                entries[name].description = await each.start()
                await each.round(_warm_up(plans[name]))
        for number in range(rounds):
            for name, each in measured.items():
                if not entries[name].why_not:
                    sys.stderr.write(f"round {number + 1} of {rounds}: {name}\n")
                    with _noting(entries[name]):
                        entries[name].rounds.append(await each.round(plans[name]))
    finally:
        for each in measured.values():
            await each.stop()
    return list(entries.values())


@contextlib.contextmanager
def _noting(entry: Entry) -> Iterator[None]:
    try:
        yield
    except UnavailableError as error:
        entry.why_not = str(error)
    except Exception as error:  # noqa: BLE001 — the seam to code of others: one that fails is a row, the others go on
        entry.why_not = f"{type(error).__name__}: {error}"


def _warm_up(plan: Plan) -> Plan:
    sessions = (1,) if plan.sessions else ()
    return Plan(sessions=sessions, starts=1, starts_s=0, calls_s=min(0.2, plan.calls_s), least_calls=1)


# ---------------------------------------------------------------------- tables


def calls_table(entries: Sequence[Entry], work: str) -> RichTable:
    """Latency and rate of one kind of call."""
    table = RichTable(title=f"calls: {work}", title_justify="left")
    table.add_column("")
    heads = ("p50 ms", "p99 ms", *(f"calls/s, {count}" for count in _TOGETHER), "× subprocess, 8")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    baseline = _rate(entries, sandbox_subjects.SUBPROCESS, work)
    for entry in entries:
        if not entry.calls_were_measured:
            continue
        latencies = entry.latencies_ms(work)
        rates = [entry.per_second(work, count) for count in _TOGETHER]
        ratio = "" if baseline is None else f"{entry.per_second(work, 8) / baseline:.2f}"
        values = (percentile(latencies, 50), percentile(latencies, 99), *rates)
        table.add_row(entry.name, *(figure(value) for value in values), ratio)
    return table


def sessions_table(entries: Sequence[Entry]) -> RichTable:
    """Start, memory, and what each of them is."""
    table = RichTable(title="sessions: open, and a first call that imports numpy and sympy", title_justify="left")
    table.add_column("")
    for head in ("start p50 ms", "p99 ms", "MB each"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("what it is")
    for entry in entries:
        if not entry.rounds:
            continue
        memory = entry.session_mb()
        starts = [figure(percentile(entry.starts_ms(), share)) for share in (50, 99)]
        table.add_row(entry.name, *starts, "" if memory is None else f"{memory:.1f}", entry.description)
    return table


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100).__int__() - 1)]


def _rate(entries: Sequence[Entry], name: str, work: str) -> float | None:
    found = next((entry for entry in entries if entry.name == name), None)
    return found.per_second(work, 8) if found is not None and found.calls_were_measured else None


def targets(entries: Sequence[Entry]) -> list[Target]:
    """What this project promises of its sandboxes, as far as this run can tell."""
    own = {entry.name: entry for entry in entries if entry.rounds}

    def call_ms(name: str) -> float | None:
        return percentile(own[name].latencies_ms(PLAIN.name), 50) if name in own else None

    def times(work: str) -> float | None:
        ours = _rate(entries, sandbox_subjects.NAMESPACE, work)
        bare = _rate(entries, sandbox_subjects.SUBPROCESS, work)
        return None if ours is None or bare is None else ours / bare

    namespace = sandbox_subjects.NAMESPACE
    start_ms = percentile(own[namespace].starts_ms(), 50) if namespace in own else None
    return [
        Target("namespace, call p50 in ms: at most 0.3", call_ms(namespace), 0.3),
        Target("docker, call p50 in ms: at most 0.5", call_ms(sandbox_subjects.DOCKER), 0.5),
        Target("namespace, start p50 in ms with numpy and sympy: at most 60", start_ms, 60),
        Target(
            "namespace, calls/s at 8 with numpy and sympy: at least 100 × subprocess",
            times(LIBRARIES.name),
            100,
            at_least=True,
        ),
        Target("the same with plain code, whose subprocess imports nothing", times(PLAIN.name), 100, at_least=True),
    ]


def report(entries: Sequence[Entry], found: Sequence[Target], loop: Sequence[Table], console: Console) -> None:
    """Print everything."""
    for work in WORKS:
        console.print()
        console.print(calls_table(entries, work.name))
    console.print()
    console.print(sessions_table(entries))
    for entry in entries:
        if entry.why_not:
            console.print(f"  not measured: {entry.name}: {_one_line(entry.why_not)}", markup=False, highlight=False)
    for table in loop:
        show(table, console)
    console.print()
    for target in found:
        value = "" if target.found is None else f"{figure(target.found)} "
        console.print(f"  {target.claim}: {value}({target.verdict})", markup=False, highlight=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_SHOWN_CHARS]


def as_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """The figures behind the tables."""
    return {entry.name: _entry_json(entry) for entry in entries}


def _entry_json(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"description": entry.description, "why_not": entry.why_not}
    if entry.rounds:
        found["start_ms"] = _spread(entry.starts_ms())
        found["session_mb"] = entry.session_mb()
    if entry.calls_were_measured:
        for work in WORKS:
            rates = {count: [each.calls[work.name][count].per_second for each in entry.rounds] for count in _TOGETHER}
            found[work.name] = {"call_ms": _spread(entry.latencies_ms(work.name)), "calls_per_second": rates}
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    shares = {f"p{share}": percentile(values, share) for share in (10, 50, 90, 99)}
    return {**shares, "count": len(values)}


# ---------------------------------------------------------------------- command line


def main(words: Sequence[str]) -> int:
    """Measure, print, write the file; the exit code comes back."""
    given = _parser().parse_args(words)
    from benchmarks.machine import machine_facts  # loads torch

    machine = machine_facts(Settings(repeats=given.rounds, scale=given.scale))
    console = Console(file=sys.stdout, width=150)
    console.print(machine, markup=False, highlight=False)
    with _docker(given.start_docker) as (host, why_not):
        plan = Plan(sessions=_TOGETHER, starts_s=3 * given.scale, calls_s=given.scale)
        measured = _chosen(_everything(given, host, why_not), given.only)
        plans = {name: _plan_of(name, plan) for name in measured}
        entries = asyncio.run(compare(measured, plans, rounds=given.rounds))
        loop = [] if given.only else asyncio.run(event_loop.tables(host, why_not, scale=given.scale))
    found = targets(entries)
    report(entries, found, loop, console)
    written = {
        "machine": machine.splitlines(),
        "plan": asdict(plan),
        "rounds": given.rounds,
        "subjects": as_json(entries),
        "event_loop": [asdict(table) for table in loop],
        "targets": [{**target._asdict(), "verdict": target.verdict} for target in found],
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(written, indent=2) + "\n")
    console.print(f"\n  figures: {given.json}", markup=False, highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandboxes", description=__doc__)
    parser.add_argument("--peers-python", type=Path, help="interpreter of an environment with benchmarks/peers.txt")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="time spent on each figure, e.g. 0.2 for a quick look")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="measure this row; may be repeated")
    parser.add_argument("--start-docker", action="store_true", help="as root: start a private daemon if none answers")
    parser.add_argument("--json", type=Path, default=Path("outputs/bench-sandbox.json"), help="default: %(default)s")
    return parser


@contextlib.contextmanager
def _docker(start: bool) -> Iterator[tuple[str, str]]:
    """The address of a daemon with the sandbox image, or why there is none."""
    sys.path.append(str(_ROOT / "tests"))
    import docker_daemon as daemons

    if start:
        daemons.os.environ[daemons.PERMISSION] = "1"
    with contextlib.ExitStack() as stack:
        try:
            host, why_not = stack.enter_context(daemons.docker_daemon()), ""
        except daemons.NoDockerError as error:
            host, why_not = "", str(error)
        yield host, why_not


def _everything(given: argparse.Namespace, host: str, why_not: str) -> dict[str, Measured]:
    measured: dict[str, Measured] = {}
    for name, subject in sandbox_subjects.own_subjects(host).items():
        measured[name] = Absent(why_not) if why_not and name in _WITH_DOCKER else Here(subject)
    for name in _PEERS:
        if given.peers_python is None:
            measured[name] = Absent("no --peers-python was given")
        elif why_not and name in _PEERS_WITH_DOCKER:
            measured[name] = Absent(why_not)
        else:
            measured[name] = PeerProcess(given.peers_python.absolute(), name, image=IMAGE, docker_host=host)
    return measured


def _chosen(measured: dict[str, Measured], only: Sequence[str]) -> dict[str, Measured]:
    unknown = set(only) - measured.keys()
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are: {'; '.join(measured)}")
    return {name: each for name, each in measured.items() if not only or name in only}


def _plan_of(name: str, plan: Plan) -> Plan:
    if name == sandbox_subjects.DOCKER_POOL:  # its calls are those of any other container
        return Plan(sessions=(), starts=8, starts_s=plan.starts_s * 10)
    return plan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
