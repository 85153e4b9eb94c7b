"""Broken repositories with their tests: made from the templates, or rows of a data file."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from miles_agents.envs.code.checks import read_check
from miles_agents.envs.code.judge import HostCheck
from miles_agents.envs.code.rows import Rows
from miles_agents.envs.repo_fix.lifting import TestFile, TestId
from miles_agents.envs.repo_fix.patches import apply_patch, make_patch
from miles_agents.errors import DataError, did_you_mean

MAX_FILES = 500  # of a repository
MAX_BYTES = 4 << 20  # of all its files together

_TEMPLATES = Path(__file__).parent / "templates"
_SEED = 0  # the tasks of a split are always the same
_KEYS = ("id", "problem_statement", "files", "tests", "setup", "checks", "fail_to_pass", "pass_to_pass", "patch")
_ALIASES = {"instance_id": "id", "FAIL_TO_PASS": "fail_to_pass", "PASS_TO_PASS": "pass_to_pass"}  # of SWE-bench
_IGNORED = frozenset(
    "repo base_commit hints_text created_at version environment_setup_commit test_patch difficulty".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A broken repository. Everything in it is a JSON value, so that it fits into a task."""

    id: str
    problem_statement: str
    files: Mapping[str, str]  # the repository, by path
    fail_to_pass: Sequence[str]  # names of tests that the fix must make pass
    pass_to_pass: Sequence[str]  # names of tests that must go on passing
    tests: Mapping[str, str] = field(default_factory=dict)  # test files, by path; hidden
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name: expression, expected or raises
    setup: str = ""  # statements before each check's expression
    patch: str = ""  # the true fix; "" if none is known
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def judged(self, place: str = "") -> dict[str, HostCheck]:
        """Every test by its name, those that must be made to pass first.

        Raises:
            DataError: a name stands for no test, or a test cannot be run.
        """
        place = place or self.id
        files = self._test_files(place)
        return {name: self._test(name, files, place) for name in (*self.fail_to_pass, *self.pass_to_pass)}

    def hidden_files(self) -> dict[str, bytes]:
        """What is put into the repository for the tests: their files without the literals that the host keeps."""
        lifted = self._test_files(self.id)
        return {path: (lifted[path].lifted if path in lifted else text).encode() for path, text in self.tests.items()}

    def _test_files(self, place: str) -> dict[str, TestFile]:
        named = {name.split("::")[0] for name in (*self.fail_to_pass, *self.pass_to_pass) if "::" in name}
        return {
            path: TestFile(path=path, source=source, place=place)
            for path, source in self.tests.items()
            if path in named
        }

    def _test(self, name: str, files: Mapping[str, TestFile], place: str) -> HostCheck:
        if "::" not in name:
            if name not in self.checks:
                known = [*self.checks, *(f"{path}::…" for path in self.tests)]
                raise DataError(f"{place}: there is no test {name!r}. {did_you_mean(name, known)}")
            return read_check({"setup": self.setup, **self.checks[name]}, f"{place}, {name}")
        test_id = TestId.parse(name, place)
        if test_id.path not in files:
            raise DataError(f"{place}: 'tests' has no file {test_id.path!r}. {did_you_mean(test_id.path, self.tests)}")
        return files[test_id.path].test(test_id)


def generated_problems(split: str) -> list[Problem]:
    """The generated problems of a split: each template with one of its bugs, or two. In a fixed order that mixes them.

    A template belongs to one split: no repository is in two of them.
    """
    problems = [each for template in _templates() if template["split"] == split for each in _generated(template)]
    random.Random(f"{_SEED}/{split}").shuffle(problems)
    return problems


@cache
def _templates() -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {"name": file.stem, **yaml.safe_load(file.read_text(encoding="utf-8"))}
        for file in sorted(_TEMPLATES.glob("*.yaml"))
    )


def _generated(template: Mapping[str, Any]) -> Iterator[Problem]:
    files: Mapping[str, str] = template["files"]
    for bugs in (*itertools.combinations(template["bugs"], 1), *itertools.combinations(template["bugs"], 2)):
        if [bug["id"] for bug in bugs] in template.get("not_together", ()):
            continue
        broken = dict(files)
        for bug in bugs:
            if broken[bug["path"]].count(bug["good"]) != 1:
                break  # the other one has changed this place
            broken[bug["path"]] = broken[bug["path"]].replace(bug["good"], bug["bad"])
        else:
            fails = sorted({name for bug in bugs for name in bug["fails"]})
            yield Problem(
                id=f"{template['name']}/{'+'.join(bug['id'] for bug in bugs)}",
                problem_statement="\n\n".join(bug["issue"] for bug in bugs),
                files=broken,
                checks=template["checks"],
                setup=template["setup"],
                fail_to_pass=fails,
                pass_to_pass=[name for name in template["checks"] if name not in fails],
                patch=make_patch(broken, files),
                metadata={"template": template["name"], "bugs": [bug["id"] for bug in bugs]},
            )


def loaded_problems(path: str, split: str, *, allow_forgeable: bool) -> list[Problem]:
    """The problems of one split of a data file (JSONL), a folder of them or a `{split}` pattern; see `Rows.of_split`.

    Args:
        path: of the data.
        split: train, validation or test.
        allow_forgeable: take tests of which no assertion is judged on the host.

    Raises:
        DataError: a missing file, a broken line, a row that is no problem; file and line are named.
    """

    def read(row: Mapping[str, Any], place: str, id: str) -> Problem:
        return _problem(row, place, id, allow_forgeable=allow_forgeable)

    return Rows(read=read, text=lambda each: each.problem_statement).of_split(path, split)


def _problem(row: Mapping[str, Any], place: str, id: str, *, allow_forgeable: bool) -> Problem:
    row = {_ALIASES.get(name, name): value for name, value in row.items() if name not in _IGNORED}
    unknown = sorted(set(row) - set(_KEYS))
    if unknown:
        raise DataError(f"{place}: a row has no '{unknown[0]}'. {did_you_mean(unknown[0], _KEYS)}")
    for name in ("id", "problem_statement", "setup", "patch"):
        if not isinstance(row.get(name, ""), str):
            raise DataError(f"{place}: '{name}' is {row[name]!r}, not text")
    if not row.get("problem_statement", "").strip():
        raise DataError(f"{place}: the row has no 'problem_statement'")
    checks = row.get("checks", {})
    if not isinstance(checks, Mapping) or not all(
        isinstance(each, Mapping) and "expression" in each for each in checks.values()
    ):
        raise DataError(f"{place}: 'checks' is an object of objects with 'expression' and 'expected' or 'raises'")
    problem = Problem(
        id=row.get("id") or id,
        problem_statement=row["problem_statement"].strip(),
        files=_files(row.get("files"), "files", place),
        tests=_files(row.get("tests", {}), "tests", place, may_be_empty=True),
        checks=checks,
        setup=row.get("setup", ""),
        fail_to_pass=_names(row.get("fail_to_pass"), "fail_to_pass", place),
        pass_to_pass=_names(row.get("pass_to_pass", []), "pass_to_pass", place),
        patch=row.get("patch", ""),
        metadata={"source": id},
    )
    _check(problem, place, allow_forgeable=allow_forgeable)
    return problem


def _check(problem: Problem, place: str, *, allow_forgeable: bool) -> None:
    if not problem.fail_to_pass:
        raise DataError(f"{place}: 'fail_to_pass' names no test, so nothing says what is to be mended")
    both = set(problem.fail_to_pass) & set(problem.pass_to_pass)
    if both:
        raise DataError(f"{place}: {min(both)!r} is in 'fail_to_pass' and in 'pass_to_pass'")
    for name, test in problem.judged(place).items():
        if not getattr(test, "wanted", True) and not allow_forgeable:
            raise DataError(
                f"{place}: no assertion of {name} compares with a literal, so the tested code could forge its verdict; "
                "write one like assertEqual(value, 3), or set env.allow_forgeable=true"
            )
    if problem.patch:
        try:
            apply_patch(problem.files, problem.patch)
        except DataError as error:
            raise DataError(f"{place}: {error}") from error


def _files(value: Any, key: str, place: str, *, may_be_empty: bool = False) -> dict[str, str]:
    if not isinstance(value, Mapping) or not (value or may_be_empty):
        raise DataError(f"{place}: '{key}' is an object of texts by path, not {str(value)[:80]!r}")
    for path, text in value.items():
        if not isinstance(text, str) or not is_repository_path(path):
            raise DataError(f"{place}: '{key}' has {path!r}; it must be a relative path with '/', and its value text")
    if len(value) > MAX_FILES or sum(map(len, value.values())) > MAX_BYTES:
        raise DataError(f"{place}: '{key}' has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB")
    return dict(value)


def is_repository_path(path: str) -> bool:
    """True for a plain relative path within a repository."""
    parts = PurePosixPath(path).parts
    plain = bool(parts) and not path.startswith("/") and ".." not in parts and str(PurePosixPath(path)) == path
    return plain and path.isprintable() and len(path) <= 400 and "\\" not in path


def _names(value: Any, key: str, place: str) -> list[str]:
    if isinstance(value, str):  # as SWE-bench writes it
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"{place}: '{key}' is text that is no JSON list: {error}") from error
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise DataError(f"{place}: '{key}' is a list of names of tests, not {str(value)[:80]!r}")
    return list(dict.fromkeys(value))
