"""`python -m miles_agents.train` from end to end: what it prints, what it leaves, what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from command_runs import PLAIN_ENV, SMALL, Done, command, metric_rows, weights

import miles_agents
from miles_agents.runs.trajectories import read_trajectories
from miles_agents.tools.sandboxes import probe, refusal

FOUND = probe()
needs_sandbox = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]
REPOSITORY = Path(miles_agents.__file__).parents[1]
SUMMARY = (
    "steps seed wall_s accuracy_before accuracy_after no_tool_accuracy_after max_logprob_abs_diff max_staleness "
    "episodes failures_by_cause"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN_ENV)
    return tmp_path


def _plain(tiny_model: Path) -> list[str]:
    return ["env=./plain.py:Plain", f"model={tiny_model}", *SMALL, "rollout.max_new_tokens=12", "steps=3"]


# ---------------------------------------------------------------------- the main job, small


@pytest.fixture(scope="class")
def main_job(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """One small run of the main job, in a folder of its own."""
    place = tmp_path_factory.mktemp("main_job")
    before = Path.cwd()
    os.chdir(place)
    try:
        words = ["steps=3", "eval.every=2", "logging.trajectories_every=1", "logging.checkpoint_every=2"]
        return place / "outputs" / "last", command("train", "env=python_math", *SMALL, *words)
    finally:
        os.chdir(before)


class TestTheMainJob:
    pytestmark = needs_sandbox

    def test_it_says_where_its_run_folder_is_at_start_and_end_and_what_to_type_next(
        self, main_job: tuple[Path, Done]
    ) -> None:
        run, done = main_job
        assert done.code == 0, done.err
        name = f"outputs/{run.resolve().name}"
        lines = done.out.splitlines()
        assert any(name in line for line in lines[:4])
        assert any(name in line for line in lines[-10:])
        assert f"python -m miles_agents.report {name}" in done.out
        assert f"python -m miles_agents.evaluate env=python_math model={name} split=test samples=8" in done.out
        assert "held-out accuracy before training" in done.out
        assert [line[:8] for line in lines if line.startswith("step ")] == [f"step {step}/3" for step in range(4)]
        assert "accuracy, tools refused" in done.out

    def test_its_run_folder_is_complete(self, main_job: tuple[Path, Done]) -> None:
        run, _ = main_job
        files = {str(path.relative_to(run.resolve())) for path in run.resolve().rglob("*") if path.is_file()}
        assert {
            "config.yaml",
            "environment.json",
            "metrics.jsonl",
            "plot.png",
            "report.html",
            "summary.json",
            "trajectories/step_000001.jsonl",
            "trajectories/step_000002.jsonl",
            "trajectories/step_000003.jsonl",
            "trajectories/eval_step_000000.jsonl",
            "trajectories/eval_step_000003.jsonl",
            "trajectories/eval_step_000003_no_tool.jsonl",
            "checkpoints/step_000002/manifest.json",
            "checkpoints/step_000003/model.safetensors",
        } <= files
        assert not [name for name in files if ".tmp" in name]
        config = (run / "config.yaml").read_text()
        assert "id: python_math-v0" in config
        assert "steps: 3" in config
        environment = json.loads((run / "environment.json").read_text())
        assert environment["seed"] == 0
        assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")
        report = (run / "report.html").read_text()
        assert "level3/train" in report
        assert 'src="http' not in report

    def test_its_summary_has_every_figure(self, main_job: tuple[Path, Done]) -> None:
        run, _ = main_job
        summary = json.loads((run / "summary.json").read_text())
        assert set(SUMMARY.split()) <= set(summary)
        assert (summary["steps"], summary["seed"], summary["episodes"]) == (3, 0, 24)
        assert sum(summary["failures_by_cause"].values()) == 0
        assert summary["tracker_failures"] == {}
        for name in ("accuracy_before", "accuracy_after", "no_tool_accuracy_after"):
            assert 0.0 <= summary[name] <= 1.0

    def test_trainer_and_engine_agree_on_every_logprob_of_every_step(self, main_job: tuple[Path, Done]) -> None:
        run, _ = main_job
        rows = metric_rows(run)
        trained = [row for row in rows.values() if row.get("train/kept_samples", 0) > 0]
        assert trained
        diffs = [row["train/train_rollout_logprob_abs_diff"] for row in trained]
        assert all(0.0 <= diff <= 1e-4 for diff in diffs), diffs
        summary = json.loads((run / "summary.json").read_text())
        assert summary["max_logprob_abs_diff"] == max(diffs)
        assert summary["max_staleness"] == 0

    def test_its_metrics_are_in_tensorboard_too(self, main_job: tuple[Path, Done]) -> None:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        run, _ = main_job
        [file] = (run / "tensorboard").iterdir()
        shown = {
            (event.step, value.tag): value.simple_value
            for event in LegacyEventFileLoader(str(file)).Load()
            for value in event.summary.value
        }
        for step, row in metric_rows(run).items():
            for name, value in row.items():
                assert shown[step, name] == pytest.approx(value, rel=1e-6, abs=1e-12)

    def test_its_rows_tell_of_its_tool_and_its_sandboxes(self, main_job: tuple[Path, Done]) -> None:
        run, _ = main_job
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        sandboxes_used = 0
        for row in rows[1:]:
            played = read_trajectories(run / "trajectories" / f"step_{row['step']:06d}.jsonl")
            ran = [event for each in played for event in each.tool_events() if event.call.name == "python"]
            sandboxes_used += sum(any(event.duration_s for event in each.tool_events()) for each in played)
            assert row["tool/python/calls"] == len(ran)
            failed = sum(value for name, value in row.items() if name.startswith("tool/python/errors/"))
            assert failed == sum(not event.ok for event in ran)
            if ran:
                assert 0 < row["time/tool/python/latency_p50_s"] <= row["time/tool/python/latency_p99_s"] < 60
        assert sum(row["sandbox/starts"] for row in rows[1:]) >= sandboxes_used > 0
        assert 0 < rows[1]["sandbox/start_mean_s"] < 60

    def test_its_episodes_are_readable_with_masks_and_logprobs(self, main_job: tuple[Path, Done]) -> None:
        run, _ = main_job
        file = run / "trajectories" / "step_000002.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(records) == 8
        for record in records:
            for turn in record["turns"]:
                count = len(turn["prompt_new_ids"]) + len(turn["completion_ids"])
                assert len(turn["mask"]) == len(turn["tokens"]) == count
                assert sum(turn["mask"]) == len(turn["completion_ids"]) == len(turn["logprobs"])
                assert {version for version, _, _ in turn["versions"]} == {1}
                assert "".join(turn["tokens"][-len(turn["completion_ids"]) :]) == turn["text"]
        kept = metric_rows(run)[2]
        assert kept["reward/raw_reward"] == pytest.approx(np.mean([record["reward"] for record in records]))
        refused = read_trajectories(run / "trajectories" / "eval_step_000003_no_tool.jsonl")
        assert not any(event.ok for trajectory in refused for event in trajectory.tool_events())

    def test_transformers_loads_its_checkpoints_and_gets_the_logprobs_that_were_sampled(
        self, main_job: tuple[Path, Done]
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        run, _ = main_job
        checkpoint = run / "checkpoints" / "step_000002"
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        text = tokenizer.apply_chat_template([{"role": "user", "content": "2+3?"}], tokenize=False)
        assert "2+3?" in text
        # What step 3 trained on was sampled with the weights after step 2.
        for trajectory in read_trajectories(run / "trajectories" / "step_000003.jsonl")[:4]:
            turn = trajectory.turns[-1]
            ids = np.concatenate([turn.prompt_ids, turn.completion_ids])
            with torch.no_grad():
                logits = model(torch.from_numpy(ids[None].astype(np.int64))).logits[0, :-1].float()
            table = torch.log_softmax(logits, -1).numpy()
            start = len(turn.prompt_ids)
            found = table[np.arange(start - 1, len(ids) - 1), ids[start:]]
            assert np.abs(found - turn.logprobs).max() <= 1e-4

    def test_the_report_is_made_again_by_its_own_command(self, main_job: tuple[Path, Done]) -> None:
        run, _ = main_job
        for name in ("report.html", "plot.png"):
            (run / name).unlink()
        done = command("report", str(run))
        assert done.code == 0, done.err
        assert (run / "report.html").is_file()
        assert (run / "plot.png").is_file()

    def test_H05_the_same_seed_gives_the_same_run_and_another_seed_another(
        self, main_job: tuple[Path, Done], folder: Path
    ) -> None:
        # case H05, of the whole run: metrics and weights, whatever else differs
        run, _ = main_job
        words = ["env=python_math", *SMALL, "steps=3", "eval.every=2"]
        assert command("train", *words, "run_dir=again", "rollout.concurrency=4", "engine.slots=8").code == 0
        assert metric_rows(folder / "again") == metric_rows(run)
        assert weights(folder / "again", 3) == weights(run, 3)
        assert command("train", *words, "run_dir=other", "seed=1").code == 0
        assert weights(folder / "other", 3) != weights(run, 3)
        ids = [
            {trajectory.task_id for trajectory in read_trajectories(each / "trajectories" / "step_000003.jsonl")}
            for each in (run, folder / "other")
        ]
        assert ids[0] != ids[1]


# ---------------------------------------------------------------------- without a sandbox


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_observed_staleness_is_never_above_its_bound(tiny_model: Path, folder: Path, bound: int) -> None:
    words = [*_plain(tiny_model), f"rollout.max_staleness={bound}", "run_dir=run"]
    words[words.index("steps=3")] = "steps=5"
    done = command("train", *words)
    assert done.code == 0, done.err
    rows = metric_rows(folder / "run")
    observed = [rows[step]["buffer/staleness_max"] for step in range(1, 6)]
    assert all(stale <= bound for stale in observed)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["max_staleness"] == max(observed)
    assert bound == 0 or max(observed) > 0  # the modes differ


def test_an_engine_in_bfloat16_samples_from_a_copy_of_the_trainers_weights(tiny_model: Path, folder: Path) -> None:
    done = command("train", *_plain(tiny_model), "model.dtype=bfloat16", "run_dir=run")
    assert done.code == 0, done.err
    row = metric_rows(folder / "run")[3]
    assert row["sync/bytes"] > 0
    assert 0 < row["train/train_rollout_logprob_abs_diff"] < 0.2


def test_a_run_with_equal_rewards_everywhere_ends_well_and_changes_no_weight(tiny_model: Path, folder: Path) -> None:
    (folder / "plain.py").write_text(PLAIN_ENV.replace("float(len(episode.final.text) % 2)", "0.5"))
    done = command("train", *_plain(tiny_model), "run_dir=run")
    assert done.code == 0, done.err
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["empty_steps"] == 3
    from safetensors.numpy import load_file

    after = load_file(folder / "run" / "checkpoints" / "step_000003" / "model.safetensors")
    before = load_file(tiny_model / "model.safetensors")
    assert all(np.array_equal(after[name], before[name]) for name in before)


def test_an_environment_whose_every_episode_is_lost_stops_the_run_and_says_why(tiny_model: Path, folder: Path) -> None:
    source = PLAIN_ENV.replace("return float(", "raise KeyError('no such city')\n        return float(")
    (folder / "plain.py").write_text(source)
    done = command("train", *_plain(tiny_model), "run_dir=run")
    assert done.code == 1
    assert "4 of 4 evaluation episodes were lost" in done.err
    assert "grader" in done.err
    assert "no such city" in done.err
    assert "held-out accuracy" not in done.out
    assert "Traceback" not in done.err


def test_a_bug_in_the_project_keeps_its_traceback(
    tiny_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miles_agents.controller.collate", lambda groups: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command("train", *_plain(tiny_model), "run_dir=run")


@pytest.mark.parametrize("words", [["rollout.concurrency=1"], ["engine.slots=2"], ["trainer.packing=padded"]])
def test_how_work_is_laid_out_does_not_change_what_is_sampled(tiny_model: Path, folder: Path, words: list[str]) -> None:
    assert command("train", *_plain(tiny_model), "run_dir=a", "logging.trajectories_every=1").code == 0
    assert command("train", *_plain(tiny_model), "run_dir=b", "logging.trajectories_every=1", *words).code == 0
    first, second = (read_trajectories(folder / name / "trajectories" / "step_000001.jsonl") for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert (one.id, one.seed, one.reward) == (other.id, other.seed, other.reward)
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert turn.completion_ids.tolist() == same.completion_ids.tolist()
            assert turn.logprobs.tobytes() == same.logprobs.tobytes()


def test_an_environment_of_twenty_lines_in_a_file_of_ones_own_is_trained_from_another_folder(
    starter: Path, tmp_path: Path
) -> None:
    source = (REPOSITORY / "examples" / "my_env.py").read_text()
    (tmp_path / "my_env.py").write_text(source)
    line = [sys.executable, "-m", "miles_agents.train", "env=./my_env.py:Weekdays", *SMALL, "steps=2"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "run finished" in done.stdout
    assert f"antlr4 {version('antlr4-python3-runtime')}" in done.stdout  # case H07: in the run's header
    assert json.loads((tmp_path / "outputs" / "last" / "summary.json").read_text())["steps"] == 2
    assert (tmp_path / "outputs" / "last").resolve().name.startswith("Weekdays-")
