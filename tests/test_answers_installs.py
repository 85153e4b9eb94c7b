"""The checker in this installation, where Hydra decides the antlr4 runtime, and in one without Hydra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from answers_cases import BOXED, DIFFERENT, LETTERS, MENTIONED, PERCENTAGES, TOWERS
from answers_clean_python import LOCK_FILE, NoCleanPythonError, clean_python
from answers_elsewhere import installation, judged
from answers_pairs import pairs
from packaging.requirements import Requirement

from miles_agents.runs.environment import environment_record

TESTS = Path(__file__).parent
EVERYWHERE = [(r"\frac{1}{2}", r"\boxed{0.5}"), (r"\sin^2 x + \cos^2 x", "1")]
ON_THE_RUNTIME = ("hydra-core", "omegaconf", "latex2sympy2_extended")
LATEX = [  # what the LaTeX library reads, whose parsers differ by the runtime
    (r"\int_0^1 x^2 dx", "1/3", True),
    (r"\int_0^{0.5} 2x dx", "0.25", True),
    (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", True),
    (r"\sum_{k=1}^{4} 35\%", "1.4", True),  # 4 · 0.35
    (r"\sum_{k=1}^{n} 35\%", "0.35n", None),  # left open: that library reads % by its version
    (r"\lim_{x \to 0} \frac{\sin x}{x}", "1", True),
    (r"\prod_{k=1}^{5} k", "120", True),
    (r"\sum_{i=1}^{5} i^2 + 1", "56", True),  # 55 + 1; i counts here and is no root of −1
    (r"2\sum_{k=0}^{3} \binom{3}{k} 2^k", "54", True),  # 2 · 3³
    (r"\sum_{k=1}^{3} (k+x)", "6+3x", True),
    (r"\sum_{k=1}^{3} k", "7", False),
]


def questions() -> dict[str, Any]:
    """Group A and all committed pairs."""
    percent = [[gold, answer, {"percent_asked": asked}] for gold, answer, _ in PERCENTAGES for asked in (False, True)]
    bare = [[gold, answer, {}] for gold, answer, *_ in (*TOWERS, *DIFFERENT, *LATEX)]
    replies = [
        *([text, "9", False] for text, _ in MENTIONED),
        *([text, "E", True] for text, _ in LETTERS),
        *([text, gold, False] for text, gold in BOXED),
    ]
    committed = [[pair.gold, pair.answer, asdict(pair.policy)] for pair in pairs()]
    return {"pairs": [*percent, *bare, *committed], "replies": replies, "everywhere": EVERYWHERE}


def python_with_the_project(python: str | Path, *words: str, given: str = "") -> str:
    path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    done = subprocess.run(
        [python, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(900)  # it may have to make the other environment
def test_A01_to_A07_and_H07_verdicts_are_the_same_under_both_antlr_runtimes() -> None:
    try:
        python = clean_python()
    except NoCleanPythonError as why:
        pytest.skip(str(why))
    asked = questions()
    theirs = json.loads(python_with_the_project(python, str(TESTS / "answers_elsewhere.py"), given=json.dumps(asked)))
    ours = json.loads(json.dumps(installation() | judged(asked)))
    assert (ours.pop("hydra"), theirs.pop("hydra")) == (True, False)
    runtimes = (ours.pop("antlr"), theirs.pop("antlr"))
    assert runtimes[0].startswith("4.9.")
    assert runtimes[1].startswith("4.13.")
    different = [
        (question, mine, other)
        for part in ("pairs", "replies", "everywhere")
        for question, mine, other in zip(
            asked[part], ours["contexts" if part == "everywhere" else part],
            theirs["contexts" if part == "everywhere" else part], strict=True,
        )
        if mine != other
    ]  # fmt: skip
    assert different == []
    assert theirs["contexts"] == [{"thread": True, "to_thread": True, "spawn": True}] * 2


@pytest.mark.parametrize(("first", "second", "equal"), LATEX)
def test_H07_what_the_latex_library_reads_is_decided_exactly_or_left_open(
    first: str, second: str, equal: bool | None
) -> None:
    found = judged({"pairs": [[first, second, {}]], "replies": [], "everywhere": []})["pairs"]
    assert found == [[equal, equal]]


def test_H07_all_that_run_on_the_antlr_runtime_agree_on_the_installed_version_which_the_lock_file_pins() -> None:
    installed = metadata.version("antlr4-python3-runtime")
    asking = {
        (name, str(need.specifier)): need.specifier.contains(installed)
        for name in ON_THE_RUNTIME
        for need in map(Requirement, metadata.requires(name) or ())
        if need.name == "antlr4-python3-runtime" and need.marker is None
    }
    assert {name for name, _ in asking} >= {"hydra-core", "omegaconf"}
    assert all(asking.values()), asking
    pinned = re.findall(r"(?m)^antlr4-python3-runtime==(.*)$", (TESTS.parent / "constraints.txt").read_text())
    assert pinned == [installed]
    assert re.findall(r"(?m)^antlr4-python3-runtime==(.*)$", LOCK_FILE.read_text()) == ["4.13.2"]


def test_H07_a_run_records_the_antlr_runtime() -> None:
    packages = environment_record(seed=0, run_id="r")["packages"]
    for name in ("antlr4-python3-runtime", "latex2sympy2_extended", "sympy"):
        assert packages[name] == metadata.version(name)


def test_the_checker_and_its_workers_need_neither_hydra_nor_torch(tmp_path: Path) -> None:
    for name in ("hydra", "omegaconf", "torch", "transformers"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from miles_agents.answers import equivalent\n"
        f"print(equivalent(*{EVERYWHERE[0]!r}).correct, equivalent(*{EVERYWHERE[1]!r}).correct)\n"
        "import hydra\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True True\n"
    assert done.stderr == "hydra was imported\n"  # the trap is set
    assert done.returncode == 1
