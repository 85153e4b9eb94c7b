"""The judge: runs hidden tests against a solution in a fresh session and compares what came back on the host."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from miles_agents.contracts import Sandbox
from miles_agents.contracts.threads import run_in_thread
from miles_agents.envs.code import harness
from miles_agents.errors import ConfigError, GraderError

_HARNESS = Path(harness.__file__).read_text(encoding="utf-8")
_GRACE_S = 5.0  # for the harness itself, over the tests' time
_MAX_RECORDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLimits:
    """How long hidden tests may take.

    Raises:
        ConfigError: a limit that is not positive.
    """

    test_s: float = 5.0  # of one test, loading the solution included
    total_s: float = 20.0  # of all tests of an episode; what is left then has failed

    def __post_init__(self) -> None:
        for name, value in (("test_timeout_s", self.test_s), ("total_timeout_s", self.total_s)):
            if not 0 < value <= 600:
                raise ConfigError(f"env.{name}={value}: it must be above 0 and at most 600")

    @property
    def reward_s(self) -> float:
        """What scoring an episode may take: the tests, a fresh session, a busy machine."""
        return self.total_s + 60.0


class HostCheck(Protocol):
    """A test that is judged on the host, see `checks.Check`."""

    @property
    def case(self) -> Mapping[str, Any]:
        """What the harness is told."""
        ...

    def fulfilled(self, record: Mapping[str, Any], *, float_tolerance: float = 0.0) -> bool:
        """True if the record of a run, in which anything may be forged, is what is wanted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What is judged: one source text, or files in which the tests' expressions find their modules."""

    source: str = ""
    entry_point: str = ""  # the function that calls go to
    files: Mapping[str, bytes] = field(default_factory=dict)  # by path within the folder
    folder: str = ""  # of the files, within the session's working folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Runs the tests of a solution. Expected values are never sent.

    Args:
        limits: of time.
        float_tolerance: see `Check.fulfilled`.
    """

    limits: JudgeLimits = JudgeLimits()
    float_tolerance: float = 0.0

    async def verdicts(self, sandbox: Sandbox, solution: Solution, checks: Sequence[HostCheck]) -> list[bool]:
        """Which checks the solution fulfils, in their order.

        The session is reset: nothing of what was done in it before can matter. Each test gets a process of its own.

        Raises:
            SandboxError: the session was lost.
            GraderError: the tests could not be begun, through no fault of the solution.
        """
        await sandbox.reset()
        nonce = secrets.token_hex(16)
        root = f"{secrets.token_hex(8)}/"  # a name that nothing in the solution can have counted on
        job = await run_in_thread(self._job, solution, checks, nonce)
        try:
            for path, data in solution.files.items():
                await sandbox.write_file(f"{solution.folder}/{path}", data)
            await sandbox.write_file(f"{root}job.json", job)
        except OSError as error:
            raise GraderError(f"the tests could not be written into the sandbox: {error}") from error
        call = f"main('{root}job.json', '{root}results.jsonl')"
        result = await sandbox.exec(f"{_HARNESS}\n\n{call}\n", timeout_s=self.limits.total_s + _GRACE_S)
        try:
            written = await sandbox.read_file(f"{root}results.jsonl")
        except OSError as error:
            if not result.stdout.startswith(nonce):
                raise GraderError(f"the tests did not begin: {result.status}, {result.stderr[-500:]!r}") from error
            return [False] * len(checks)  # the solution removed the file, or ended the harness before its first line
        return await run_in_thread(self._compare, written, checks, nonce)

    def _job(self, solution: Solution, checks: Sequence[HostCheck], nonce: str) -> bytes:
        job = {
            "nonce": nonce,
            "source": solution.source,
            "entry_point": solution.entry_point,
            "folder": solution.folder,
            "case_s": self.limits.test_s,
            "total_s": self.limits.total_s,
            "cases": [dict(check.case) for check in checks],
        }
        return json.dumps(job).encode()

    def _compare(self, written: bytes, checks: Sequence[HostCheck], nonce: str) -> list[bool]:
        records: dict[int, Mapping[str, Any]] = {}
        doubtful: set[int] = set()
        for line in written.split(b"\n")[:_MAX_RECORDS]:
            record = _read_record(line, nonce)
            if record is None or not isinstance(number := record.get("case"), int):
                continue
            if number in records:
                doubtful.add(number)  # the harness writes one line a case
            records[number] = record
        return [
            number not in doubtful and check.fulfilled(records.get(number, {}), float_tolerance=self.float_tolerance)
            for number, check in enumerate(checks)
        ]


def _read_record(line: bytes, nonce: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("nonce") == nonce else None
