"""Stopping a run by force or by hand, and going on: nothing is lost, nothing repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_runs import PLAIN_ENV, SMALL, Done, Running, command, logged_steps, metric_rows, weights

from miles_agents.tools.sandboxes import probe, refusal

FOUND = probe()
needs_sandbox = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN_ENV)
    return tmp_path


def _tokens(run: Path, step: int) -> list[object]:
    lines = (run / "trajectories" / f"step_{step:06d}.jsonl").read_text().splitlines()
    return [
        [(turn["prompt_new_ids"], turn["completion_ids"], turn["logprobs"]) for turn in json.loads(line)["turns"]]
        for line in lines
    ]


def _same_rest(run: Path, reference: Path, *, steps: int) -> None:
    assert sorted(metric_rows(run)) == list(range(steps + 1))
    assert metric_rows(run) == metric_rows(reference)
    assert weights(run, steps) == weights(reference, steps)
    summary, expected = (json.loads((each / "summary.json").read_text()) for each in (run, reference))
    for record in (summary, expected):
        del record["wall_s"], record["restarted_groups"]  # a resume begins unfinished groups again, and says so
    assert summary == expected


# ---------------------------------------------------------------------- kill -9, the real thing


MATH = ("env=python_math", *SMALL, "steps=6", "seed=3", "eval.every=2", "logging.checkpoint_every=2")


class TestKillNine:
    pytestmark = needs_sandbox

    def test_a_killed_run_goes_on_bit_for_bit_as_if_it_had_never_been_killed(self, starter: Path, folder: Path) -> None:
        words = [*MATH, "logging.trajectories_every=1"]
        run = folder / "killed"
        line = [sys.executable, "-m", "miles_agents.train", *words, f"run_dir={run}"]
        process = subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            # The checkpoint of step 2 is there, steps 3 (and perhaps 4) are under way.
            deadline = time.monotonic() + 60
            while 3 not in logged_steps(run):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.002)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL
        assert not (run / "summary.json").exists()
        assert (run / "checkpoints" / "step_000002").is_dir()
        assert not (run / "checkpoints" / "step_000006").exists()

        assert command("train", *words, f"run_dir={folder / 'whole'}").code == 0
        (folder / "outputs").mkdir(exist_ok=True)
        (folder / "outputs" / "last").unlink(missing_ok=True)
        (folder / "outputs" / "last").symlink_to("../killed")
        done = command("train", "resume=true")  # everything else comes from the run folder
        assert done.code == 0, done.err
        _same_rest(run, folder / "whole", steps=6)
        for step in range(1, 7):
            assert _tokens(run, step) == _tokens(folder / "whole", step)
        assert not [path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")]


# ---------------------------------------------------------------------- stopping by hand


def _plain(tiny_model: Path) -> list[str]:
    return [
        "env=./plain.py:Plain",
        f"model={tiny_model}",
        *SMALL,
        "rollout.max_new_tokens=12",
        "eval.every=2",
        "logging.checkpoint_every=50",
    ]


def _stopped(running: Running, run: Path, *, at: int, by: signal.Signals) -> Done:
    running.wait_for(lambda: at in logged_steps(run))
    running.send(by)
    return running.done()


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_writes_a_checkpoint_says_how_to_go_on_and_ends_as_if_never_stopped(
    tiny_model: Path, folder: Path, by: signal.Signals
) -> None:
    run = folder / "stopped"
    words = [*_plain(tiny_model), "steps=16"]
    done = _stopped(Running("train", *words, f"run_dir={run}", cwd=folder), run, at=3, by=by)
    assert done.code == 130, done.err
    assert "Traceback" not in done.err
    assert "again to stop at once" in done.err
    assert "python -m miles_agents.train resume=true run_dir=stopped" in done.out
    step = max(logged_steps(run))
    assert 3 <= step < 16
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step_{step:06d}"]

    assert command("train", *words, "run_dir=whole").code == 0
    done = command("train", "resume=true", "run_dir=stopped")
    assert done.code == 0, done.err
    _same_rest(run, folder / "whole", steps=16)


def test_a_run_stopped_while_it_is_scored_before_training_goes_on_from_its_first_step(
    tiny_model: Path, folder: Path
) -> None:
    words = [*_plain(tiny_model), "steps=2"]
    running = Running("train", *words, "run_dir=early", "rollout.concurrency=1", cwd=folder)
    running.wait_for(lambda: "run folder" in running.out_file.read_text() if running.out_file.exists() else False)
    running.send(signal.SIGINT)
    done = running.done()
    assert done.code == 130, done.err
    assert "resume=true run_dir=early" in done.out
    assert [path.name for path in (folder / "early" / "checkpoints").iterdir()] == ["step_000000"]
    assert command("train", *words, "run_dir=whole").code == 0
    done = command("train", "resume=true", "run_dir=early", "rollout.concurrency=8")
    assert done.code == 0, done.err
    _same_rest(folder / "early", folder / "whole", steps=2)


def test_a_run_killed_before_its_first_checkpoint_starts_again_in_its_folder(tiny_model: Path, folder: Path) -> None:
    words = [*_plain(tiny_model), "steps=12"]
    running = Running("train", *words, "run_dir=killed", cwd=folder)
    running.wait_for(lambda: 2 in logged_steps(folder / "killed"))
    running.send(signal.SIGKILL)
    assert running.done().code == -signal.SIGKILL
    assert not (folder / "killed" / "checkpoints").exists()
    assert command("train", *words, "run_dir=whole").code == 0
    done = command("train", "resume=true", "run_dir=killed")
    assert done.code == 0, done.err
    assert "no checkpoint yet" in done.out
    _same_rest(folder / "killed", folder / "whole", steps=12)


SLOW_ENV = PLAIN_ENV.replace(
    "    def tasks",
    "    async def step(self, action):\n        import asyncio\n        await asyncio.sleep(600)\n\n    def tasks",
)


def test_a_second_interrupt_ends_the_run_at_once(tiny_model: Path, folder: Path) -> None:
    # The tool of one environment never yields to a stop that is only asked for: training is under way all the time.
    (folder / "plain.py").write_text(SLOW_ENV)
    running = Running("train", *_plain(tiny_model), "steps=2", "run_dir=twice", cwd=folder)
    running.wait_for(lambda: running.out_file.exists() and "run folder" in running.out_file.read_text())
    running.send(signal.SIGINT)
    running.wait_for(lambda: "again to stop at once" in running.err_file.read_text())
    running.send(signal.SIGINT)
    began = time.monotonic()
    done = running.done(timeout_s=15)
    assert time.monotonic() - began < 10
    assert done.code == 130
    assert "Traceback" not in done.err


def test_an_interrupt_while_the_starter_model_is_made_ends_soon_and_leaves_nothing(folder: Path) -> None:
    running = Running(
        "train", *SMALL, "sandbox=auto", cwd=folder, environment={"MILES_AGENTS_CACHE": str(folder / "cache")}
    )
    cache = folder / "cache"
    running.wait_for(lambda: cache.is_dir() and bool(list(cache.glob(".starter-*/model/tokenizer.json"))))
    running.send(signal.SIGINT)
    began = time.monotonic()
    done = running.done(timeout_s=30)
    assert time.monotonic() - began < 20
    assert done.code == 130, done.err
    assert "Traceback" not in done.err
    assert list(cache.iterdir()) == []
    assert not (folder / "outputs").exists()


# ---------------------------------------------------------------------- going on


def test_a_finished_run_goes_on_to_more_steps_as_if_it_had_been_asked_for_them_at_once(
    tiny_model: Path, folder: Path
) -> None:
    # A linear schedule ends with the run, so more steps stretch it: only a constant one is the same for both.
    words = [*_plain(tiny_model), "eval.every=1", "trainer.schedule=constant"]
    words.remove("eval.every=2")
    assert command("train", *words, "steps=2", "run_dir=short").code == 0
    assert command("train", *words, "steps=4", "run_dir=whole").code == 0
    done = command("train", "resume=true", "run_dir=short", "steps=4")
    assert done.code == 0, done.err
    _same_rest(folder / "short", folder / "whole", steps=4)
    again = command("train", "resume=true", "run_dir=short", "steps=4")  # nothing left to do
    assert again.code == 0, again.err
    _same_rest(folder / "short", folder / "whole", steps=4)


def test_going_on_needs_a_run_at_most_its_own_steps_and_nobody_else_writing(tiny_model: Path, folder: Path) -> None:
    for words in (["resume=true"], ["resume=true", "run_dir=nowhere"]):
        done = command("train", *words)
        assert (done.code, done.out) == (2, "")
        assert "no run folder" in done.err
    assert not (folder / "outputs").exists()
    assert not (folder / "nowhere").exists()

    assert command("train", *_plain(tiny_model), "steps=2", "run_dir=run").code == 0
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    done = command("train", "resume=true", "run_dir=run", "steps=1")
    assert done.code == 2
    assert "step 2 already" in done.err
    done = command("train", *_plain(tiny_model), "steps=2", "run_dir=run")
    assert done.code == 2
    assert "exists and is not empty" in done.err
    assert "resume=true" in done.err
    assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == before


def test_a_damaged_last_checkpoint_is_passed_over_and_a_run_with_no_other_is_not_begun_again(
    tiny_model: Path, folder: Path
) -> None:
    words = [*_plain(tiny_model), "logging.checkpoint_every=1", "logging.keep_last=2"]
    words.remove("logging.checkpoint_every=50")
    assert command("train", *words, "steps=3", "run_dir=run").code == 0
    whole = weights(folder / "run", 3)
    rows = metric_rows(folder / "run")
    file = folder / "run" / "checkpoints" / "step_000003" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1  # the size is right, the content is not
    file.write_bytes(content)
    done = command("train", "resume=true", "run_dir=run")
    assert done.code == 0, done.err
    assert weights(folder / "run", 3) == whole
    assert metric_rows(folder / "run") == rows
    for damaged in (folder / "run" / "checkpoints").glob("step_*/run_state.json"):
        damaged.write_text("{}")
    done = command("train", "resume=true", "run_dir=run")
    assert done.code == 2
    assert "no undamaged checkpoint" in done.err
    assert metric_rows(folder / "run") == rows


def test_a_run_at_staleness_2_goes_on_after_a_kill_within_its_bound(tiny_model: Path, folder: Path) -> None:
    words = [*_plain(tiny_model), "logging.checkpoint_every=1", "rollout.max_staleness=2", "steps=16"]
    words.remove("logging.checkpoint_every=50")
    running = Running("train", *words, "run_dir=killed", cwd=folder)
    running.wait_for(lambda: 4 in logged_steps(folder / "killed"))
    running.send(signal.SIGKILL)
    running.done()
    done = command("train", "resume=true", "run_dir=killed")
    assert done.code == 0, done.err
    assert sorted(metric_rows(folder / "killed")) == list(range(17))
    summary = json.loads((folder / "killed" / "summary.json").read_text())
    assert summary["max_staleness"] <= 2
    assert summary["steps"] == 16
    assert summary["episodes"] == 16 * 8  # each group was counted once


def test_going_on_works_from_any_folder(tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word for word in _plain(tiny_model) if not word.startswith("env=")]
    assert command("train", f"env={folder / 'plain.py'}:Plain", *words, "steps=1", "run_dir=run").code == 0
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    done = command("train", "resume=true", f"run_dir={os.path.relpath(folder / 'run', elsewhere)}", "steps=2")
    assert done.code == 0, done.err
    assert sorted(metric_rows(folder / "run")) == [0, 1, 2]
    assert list(elsewhere.iterdir()) == []


def test_a_run_from_the_last_runs_model_goes_on_with_that_model_as_its_reference(
    tiny_model: Path, folder: Path
) -> None:
    assert command("train", *_plain(tiny_model), "steps=1").code == 0
    first = (folder / "outputs" / "last").resolve()
    words = [*_plain(folder / "outputs" / "last"), "algorithm.kl_coefficient=0.1", "trainer.schedule=constant"]
    assert command("train", *words, "steps=2", "run_dir=whole").code == 0
    (folder / "outputs" / "last").unlink()
    (folder / "outputs" / "last").symlink_to(first.name)
    assert command("train", *words, "steps=1").code == 0
    done = command("train", "resume=true", "steps=2")
    assert done.code == 0, done.err
    assert metric_rows(folder / "outputs" / "last")[2] == metric_rows(folder / "whole")[2]
    assert weights(folder / "outputs" / "last", 2) == weights(folder / "whole", 2)


def test_what_is_changed_when_going_on_is_said_kept_and_goes_on_the_next_time(tiny_model: Path, folder: Path) -> None:
    assert command("train", *_plain(tiny_model), "trainer.schedule=constant", "steps=2", "run_dir=run").code == 0
    former = (folder / "run" / "config.yaml").read_text()
    done = command("train", "resume=true", "run_dir=run", "steps=3", "trainer.lr=1e-5")
    assert done.code == 0, done.err
    assert "going on with other values of: steps, trainer.lr" in done.out
    assert (folder / "run" / "config_until_step_000002.yaml").read_text() == former
    assert "lr: 1.0e-05" in (folder / "run" / "config.yaml").read_text()
    done = command("train", "resume=true", "run_dir=run")
    assert done.code == 0, done.err
    assert "other values" not in done.out
    assert metric_rows(folder / "run")[3]["train/lr"] == pytest.approx(1e-5)
    # A default that a newer version of this package has changed is said too.
    config = (folder / "run" / "config.yaml").read_text()
    (folder / "run" / "config.yaml").write_text(config.replace("eps: 1.0e-08", "eps: 1.0e-06"))
    done = command("train", "resume=true", "run_dir=run")
    assert "going on with other values of: trainer.eps" in done.out
