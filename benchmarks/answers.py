"""`python -m benchmarks.answers --peers-python PY`: this project's answer checker beside others, as Markdown tables.

Every pair's verdict was fixed by hand, or by exact arithmetic, before any checker ran on it. The checker's own errors,
and the pairs at which it had to be killed, are counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Protocol

from benchmarks.answers_peer import CHECKERS
from miles_agents.answers import AnswerPolicy, Grader, extract, parse_number
from miles_agents.errors import UsageError

_ROOT = Path(__file__).parents[1]
_DATA = Path(os.environ.get("MILES_AGENTS_DATA", _ROOT.parent / "shared" / "data")) / "gsm8k" / "test.jsonl"
_OURS = "miles_agents"
_PAIR_S = 10.0  # a peer that has not answered by then is killed
_START_S = 120.0
_FROZEN = "frozen"
Verdict = bool | str | None  # None: undecided; text: the exception, or that it was killed


@dataclass(frozen=True)
class Pair:
    """Two answers, whether they are equal, and the group they are counted in."""

    gold: str
    answer: str
    equal: bool
    group: str
    policy: AnswerPolicy = field(default_factory=AnswerPolicy)


@dataclass(frozen=True)
class Judged:
    """What a checker said of a pair, and its seconds."""

    pair: Pair
    verdict: Verdict
    seconds: float


class Subject(Protocol):
    """A checker."""

    def judge(self, pair: Pair) -> tuple[Verdict, float]:
        """Its verdict and the seconds it took."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class Ours:
    """This project's."""

    def __init__(self) -> None:
        self._grader = Grader()
        self._grader.grade(r"\sin^2 x + \cos^2 x", "1")  # starts a worker
        self.close = self._grader.close

    def judge(self, pair: Pair) -> tuple[Verdict, float]:
        """See `Subject.judge`."""
        started = time.perf_counter()
        verdict = self._grader.grade(pair.gold, pair.answer, pair.policy)
        return verdict.correct, time.perf_counter() - started


class Peer:
    """One of `benchmarks.answers_peer`, in a process that is killed at a pair that takes too long.

    Args:
        python: interpreter of the environment the peers are installed in.
        name: of the checker.
    """

    def __init__(self, python: Path, name: str) -> None:
        self._command = [str(python), str(_ROOT / "benchmarks" / "answers_peer.py"), name]
        self._process: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 — closed by `close`
        try:
            self._started()
        except UsageError:
            self._log.close()
            raise

    def judge(self, pair: Pair) -> tuple[Verdict, float]:
        """See `Subject.judge`."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps([pair.gold, pair.answer]) + "\n")
        process.stdin.flush()
        line = self._line(process, _PAIR_S)
        if line is None:
            self._end()
            return _FROZEN, _PAIR_S
        verdict, seconds = json.loads(line)
        return verdict, seconds

    def close(self) -> None:
        """End the process."""
        self._end()
        self._log.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(  # noqa: S603 — the interpreter that was named
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1
                )
            except OSError as error:
                raise UsageError(f"--peers-python {self._command[0]}: {error.strerror}") from error
            if self._line(self._process, _START_S) is None:
                self._end()
                self._log.seek(0)
                said = self._log.read().strip().rpartition("\n")[2]
                raise UsageError(f"{' '.join(self._command)}: {said or 'it is not ready in time'}")
        return self._process

    @staticmethod
    def _line(process: subprocess.Popen[str], within_s: float) -> str | None:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], within_s)
        return (process.stdout.readline() or None) if ready else None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


# The pairs


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"answer_pairs_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed_pairs() -> list[Pair]:
    """All tables of `tests/answer_pairs`."""
    found = []
    for path in sorted((_ROOT / "tests" / "answer_pairs").glob("*pairs.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            policy = AnswerPolicy(**row.get("options", {}))
            group = f"{path.stem}: {row['family'].replace('_', ' ')}"
            found.append(Pair(row["gold"], row["answer"], row["equal"], group, policy))
    return found


def gsm8k_pairs(golds: int) -> list[Pair]:
    """A true form and a near miss of `golds` answers of GSM8K's test split, evenly spread, from every family."""
    lines = _DATA.read_text(encoding="utf-8").splitlines()
    chosen = [lines[place * len(lines) // golds] for place in range(golds)]
    found = []
    for path in sorted((_ROOT / "tests" / "answer_pairs").glob("*families.py")):
        for name, forms in _loaded(path).FAMILIES.items():
            chance = Random(name)
            for line in chosen:
                gold = extract(json.loads(line)["answer"])
                value = parse_number(gold or "")
                if gold is None or value is None:
                    raise UsageError(f"{_DATA}: an answer that is no number: {line[-40:]}")
                group = f"GSM8K {path.stem}: {name}"
                found += [
                    Pair(gold, write(value, chance), equal, group)
                    for write, equal in zip(forms, (True, False), strict=True)
                ]
    return found


# The tables


def counted(judged: Sequence[Judged]) -> tuple[int, int, int, int]:
    """Wrongly called equal, wrongly called unequal, undecided or failed, killed."""
    right_to_wrong = sum(each.verdict is True and not each.pair.equal for each in judged)
    wrong_to_right = sum(each.verdict is False and each.pair.equal for each in judged)
    frozen = sum(each.verdict == _FROZEN for each in judged)
    unknown = sum(not isinstance(each.verdict, bool) for each in judged) - frozen
    return right_to_wrong, wrong_to_right, unknown, frozen


def summary(results: dict[str, list[Judged]]) -> Iterator[str]:
    """One row for each checker and set."""
    yield "| checker | pairs | wrongly equal | wrongly unequal | undecided, failed | killed | ms a pair | 95% below |"
    yield "|---|---|---|---|---|---|---|---|"
    for part in ("pairs", "independent_pairs", "GSM8K"):
        for name, judged in results.items():
            mine = [each for each in judged if each.pair.group.startswith(part)]
            if not mine:
                continue
            times = sorted(1000 * each.seconds for each in mine)
            median, high = statistics.median(times), times[int(0.95 * (len(times) - 1))]
            cells = " | ".join(str(count) for count in counted(mine))
            yield f"| {name}, {part} | {len(mine)} | {cells} | {median:.2f} | {high:.2f} |"


def by_group(results: dict[str, list[Judged]]) -> Iterator[str]:
    """One row for each group: wrongly equal / wrongly unequal / undecided, failed or killed."""
    yield "| group | pairs | " + " | ".join(results) + " |"
    yield "|---" * (2 + len(results)) + "|"
    groups = dict.fromkeys(each.pair.group for each in next(iter(results.values())))
    for group in groups:
        cells, size = [], 0
        for judged in results.values():
            mine = [each for each in judged if each.pair.group == group]
            wrong = counted(mine)
            size = len(mine)
            cells.append("·" if not any(wrong) else f"{wrong[0]} / {wrong[1]} / {wrong[2] + wrong[3]}")
        yield f"| {group} | {size} | " + " | ".join(cells) + " |"


def _judged(subject: Subject, name: str, pairs: Sequence[Pair]) -> list[Judged]:
    found: list[Judged] = []
    for place, pair in enumerate(pairs):
        if place % 500 == 0:
            sys.stderr.write(f"{name}: {place} of {len(pairs)}\n")
        found.append(Judged(pair, *subject.judge(pair)))
    return found


def measured(peers_python: Path | None, golds: int) -> dict[str, list[Judged]]:
    """What every checker says of every pair.

    Raises:
        UsageError: data or a checker is missing.
    """
    if not 0 <= golds <= 1_319:
        raise UsageError(f"--golds {golds}: it is 0 to 1319")
    if golds and not _DATA.is_file():
        raise UsageError(f"no {_DATA}: MILES_AGENTS_DATA names the folder of data; --golds 0 leaves it out")
    pairs = [*committed_pairs(), *gsm8k_pairs(golds)]
    subjects: dict[str, Subject] = {}
    with contextlib.ExitStack() as stack:
        subjects[_OURS] = Ours()
        stack.callback(subjects[_OURS].close)
        for name in CHECKERS if peers_python else ():
            subjects[name] = Peer(Path(str(peers_python)), name)
            stack.callback(subjects[name].close)
        return {name: _judged(subject, name, pairs) for name, subject in subjects.items()}


def main(words: Sequence[str]) -> int:
    """Print the tables; the exit code comes back."""
    given = _parser().parse_args(words)
    try:
        results = measured(given.peers_python, given.golds)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("\n".join([*summary(results), "", *by_group(results)]) + "\n")
    if given.wrong:
        for name, judged in results.items():
            for each in judged:
                if each.verdict is not each.pair.equal:
                    sys.stdout.write(f"{name}: {each.pair.gold!r} | {each.pair.answer!r}: {each.verdict}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answers", description=__doc__)
    parser.add_argument("--peers-python", type=Path, help="interpreter of an environment with answers_peers.txt")
    parser.add_argument(
        "--golds", type=int, default=100, help="answers of GSM8K for each family (default: %(default)s)"
    )
    parser.add_argument("--wrong", action="store_true", help="list every pair that was not judged rightly")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
