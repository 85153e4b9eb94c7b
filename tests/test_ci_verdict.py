"""What the continuous check accepts of a short training run, and what it does not."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "verdict.py"
GOOD: dict[str, Any] = {
    "accuracy_before": 0.08,
    "accuracy_after": 0.8,
    "max_logprob_abs_diff": 1e-5,
    "max_staleness": 0,
    "no_tool_accuracy_after": 0.0,
    "failures_by_cause": {"policy": 0, "sandbox": 0},
}


@pytest.fixture
def verdict() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_a_run_that_learnt_is_accepted(verdict: dict[str, Any]) -> None:
    assert verdict["train_findings"](GOOD) == []
    assert verdict["evaluate_findings"]({"total": {"accuracy": 0.8}}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accuracy_after": 0.3}, "accuracy went from"),
        ({"accuracy_after": None}, "accuracy went from"),
        ({"max_logprob_abs_diff": 1.1e-4}, "max_logprob_abs_diff"),
        ({"max_logprob_abs_diff": float("nan")}, "max_logprob_abs_diff"),
        ({"max_staleness": 1}, "max_staleness"),
        ({"no_tool_accuracy_after": 0.06}, "without tools"),
        ({"failures_by_cause": {"policy": 0, "sandbox": 2}}, "'sandbox': 2"),
    ],
)
def test_a_run_that_did_not_is_refused(verdict: dict[str, Any], change: dict[str, Any], said: str) -> None:
    (finding,) = verdict["train_findings"](GOOD | change)
    assert said in finding


def test_a_poor_evaluation_is_refused(verdict: dict[str, Any]) -> None:
    assert verdict["evaluate_findings"]({"total": {"accuracy": 0.4}})
    assert verdict["evaluate_findings"]({"total": {"accuracy": None}})


def test_the_exit_code_is_the_verdict(tmp_path: Path) -> None:
    for name, content, code in (("good", GOOD, 0), ("bad", GOOD | {"accuracy_after": 0.1}, 1)):
        (tmp_path / name).write_text(json.dumps(content))
        done = subprocess.run([sys.executable, SCRIPT, "train", tmp_path / name], capture_output=True, timeout=30)
        assert done.returncode == code
