"""The code in docs/gymnasium.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/gymnasium.md").read_text(encoding="utf-8"), re.S)


def test_the_document_shows_code() -> None:
    assert len(BLOCKS) == 5


@pytest.mark.sandbox
@pytest.mark.parametrize("number", range(5))
def test_the_code_of_the_document_runs(number: int, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[number]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    if "RecordTrajectory" in BLOCKS[number]:
        assert len((tmp_path / "outputs/played.jsonl").read_text().splitlines()) == 1
