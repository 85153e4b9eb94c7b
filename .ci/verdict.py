"""Whether a run's figures are good enough: `verdict.py train SUMMARY` or `verdict.py evaluate RESULTS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RISE = 0.5  # held-out accuracy, after − before
MAX_LOGPROB_ABS_DIFF = 1e-4
MAX_NO_TOOL_ACCURACY = 0.05
EVALUATED_ACCURACY = 0.6


def train_findings(summary: dict[str, Any]) -> list[str]:
    """What is wrong with the summary of a training run."""
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    findings = []
    if not (after is not None and after - before >= RISE):
        findings.append(f"accuracy went from {before} to {after}: it should rise by {RISE}")
    if not summary["max_logprob_abs_diff"] <= MAX_LOGPROB_ABS_DIFF:
        findings.append(f"max_logprob_abs_diff is {summary['max_logprob_abs_diff']}, allowed {MAX_LOGPROB_ABS_DIFF}")
    if summary["max_staleness"] != 0:
        findings.append(f"max_staleness is {summary['max_staleness']} in a synchronous run")
    if not summary["no_tool_accuracy_after"] <= MAX_NO_TOOL_ACCURACY:
        findings.append(f"without tools it still scores {summary['no_tool_accuracy_after']}")
    lost = {cause: count for cause, count in summary["failures_by_cause"].items() if count}
    if lost:
        findings.append(f"episodes were lost: {lost}")
    return findings


def evaluate_findings(results: dict[str, Any]) -> list[str]:
    """What is wrong with the results of an evaluation."""
    total = results["total"]
    if total["accuracy"] is not None and total["accuracy"] >= EVALUATED_ACCURACY:
        return []
    return [f"the trained model scores {total['accuracy']}, expected at least {EVALUATED_ACCURACY}"]


def main() -> int:
    """Read the file, print the verdict, return the exit code."""
    kind, path = sys.argv[1], Path(sys.argv[2])
    content = json.loads(path.read_text(encoding="utf-8"))
    findings = {"train": train_findings, "evaluate": evaluate_findings}[kind](content)
    sys.stdout.write("\n".join(findings or ["as expected"]) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
