"""The run folder, its metrics and its environment record."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from miles_agents.errors import DataError, RunFolderError
from miles_agents.runs import RunFolder
from miles_agents.runs.environment import git_state
from miles_agents.runs.metrics import MetricRow, merge_by_step
from miles_agents.runs.plot import write_plot
from miles_agents.runs.state import read_overrides, write_overrides


@pytest.fixture
def run(tmp_path: Path):
    with RunFolder.create(tmp_path / "outputs", "first", config="seed: 7\n", seed=7) as run:
        yield run


def test_a_new_run_folder_holds_its_config_and_environment(run: RunFolder) -> None:
    assert run.config_file.read_text() == "seed: 7\n"
    record = json.loads((run.path / "environment.json").read_text())
    assert record["seed"] == 7
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["packages"]["numpy"] == np.__version__
    assert record["cpu_count"] == os.cpu_count()
    assert len(record["run_id"]) == 32


def test_two_runs_started_in_the_same_second_get_two_folders(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        with RunFolder.create(tmp_path, label="python_math") as run:
            names.append(run.name)
    assert len(set(names)) == 3
    assert all(name.startswith("python_math-20") for name in names)


def test_last_is_a_relative_link_to_the_newest_run(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    for name in ("one", "two"):
        RunFolder.create(outputs, name).close()
        assert (outputs / "last").readlink() == Path(name)
        assert RunFolder.open(outputs / "last").path == outputs / name
    RunFolder.create(outputs, run_dir=tmp_path / "elsewhere" / "three").close()
    assert (outputs / "last").readlink() == Path("../elsewhere/three")
    tmp_path.joinpath("outputs").rename(tmp_path / "moved")  # the link to a sibling survives a move of both
    assert sorted(entry.name for entry in (tmp_path / "moved").iterdir()) == ["last", "one", "two"]


def test_a_real_folder_called_last_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "last").mkdir()
    RunFolder.create(tmp_path, "one").close()
    assert not (tmp_path / "last").is_symlink()
    assert "was left alone" in caplog.text


@pytest.mark.parametrize("how", ["name", "run_dir"])
def test_an_existing_run_folder_is_refused_and_untouched(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("keep me")
    place = {"name": "mine"} if how == "name" else {"run_dir": folder}
    with pytest.raises(RunFolderError, match=r"mine exists .* resume=true, or give another run_dir"):
        RunFolder.create(tmp_path, **place)
    assert [(entry.name, entry.read_text()) for entry in folder.iterdir()] == [("notes.txt", "keep me")]
    assert not (tmp_path / "last").exists()


def test_an_empty_folder_may_become_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    RunFolder.create(tmp_path, run_dir=tmp_path / "mine").close()
    assert RunFolder.open(tmp_path / "mine").name == "mine"


def test_of_two_creators_of_one_folder_one_wins(tmp_path: Path) -> None:
    won, lost = [], []
    start = threading.Barrier(8)

    def create() -> None:
        start.wait()
        try:
            won.append(RunFolder.create(tmp_path, "same"))
        except RunFolderError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    won[0].close()


@pytest.mark.parametrize("name", ["last", "", "..", "a/b"])
def test_a_name_that_is_no_plain_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="cannot be a run's name"):
        RunFolder.create(tmp_path, name)


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"cannot make a run folder in .*Not a directory"):
        RunFolder.create(tmp_path, run_dir=tmp_path / "file" / "run")


def test_opening_what_is_no_run_folder_says_which_runs_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        RunFolderError, match=r"no run folder .*last; a run folder is what python -m miles_agents\.train"
    ):
        RunFolder.open(tmp_path / "last")
    RunFolder.create(tmp_path, "good").close()
    with pytest.raises(RunFolderError, match=r"no run folder .*god; runs in .*: good"):
        RunFolder.open(tmp_path / "god")
    with pytest.raises(RunFolderError, match=r"is not a run folder: no config.yaml and no environment.json; .*: good"):
        RunFolder.open(tmp_path)
    (tmp_path / "good").rename(tmp_path / "gone")
    with pytest.raises(RunFolderError, match="a link to good, which is gone"):
        RunFolder.open(tmp_path / "last")
    (tmp_path / "gone" / "environment.json").write_text("{")
    with pytest.raises(RunFolderError, match="is broken"):
        RunFolder.open(tmp_path / "gone")


def test_a_run_that_another_process_writes_cannot_be_resumed_until_that_process_is_dead(run: RunFolder) -> None:
    script = "import sys; from pathlib import Path; from miles_agents.runs import RunFolder\n"
    script += "run = RunFolder.open(Path(sys.argv[1]), writing=True); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(run.path)]
    refused = subprocess.run(command, capture_output=True, text=True, input="")
    assert "is being written by another process" in refused.stderr
    run.close()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(RunFolderError, match="is being written by another process"):
            RunFolder.open(run.path, writing=True)
        RunFolder.open(run.path)  # reading is free
        holder.kill()
        holder.wait()
    RunFolder.open(run.path, writing=True).close()


def test_metrics_are_one_json_object_per_step(run: RunFolder) -> None:
    run.log_metrics(1, {"reward/raw_reward": 0.1 + 0.2, "buffer/groups": 3})
    run.log_metrics(2, {"train/loss": math.nan, "train/grad_norm": math.inf, "time/step_s": np.float32(0.5)})
    assert run.metrics_file.read_text().splitlines() == [
        '{"step": 1, "reward/raw_reward": 0.30000000000000004, "buffer/groups": 3.0}',
        '{"step": 2, "train/loss": "nan", "train/grad_norm": "inf", "time/step_s": 0.5}',
    ]
    first, second = run.read_metrics()
    assert first == MetricRow(1, {"reward/raw_reward": 0.1 + 0.2, "buffer/groups": 3.0})
    assert math.isnan(second.metrics["train/loss"])
    assert second.metrics["train/grad_norm"] == math.inf


@pytest.mark.parametrize("metrics", [{"step": 1.0}, {"train/loss": "low"}, {"train/loss": None}])
def test_a_metric_that_is_no_number_is_refused_before_anything_is_written(run: RunFolder, metrics: dict) -> None:
    with pytest.raises(ValueError, match="metric"):
        run.log_metrics(1, metrics)
    assert run.read_metrics() == []


def test_a_resumed_run_doubles_nothing(run: RunFolder) -> None:
    for step in range(1, 6):
        run.log_metrics(step, {"x": step})
        run.trajectories_file(step).write_text("{}\n")
    run.evaluation_file(5).write_text("{}\n")
    run.evaluation_file(0, "no_tool").write_text("{}\n")
    (run.trajectories_folder / "notes.txt").write_text("mine")
    with run.metrics_file.open("a") as file:
        file.write('{"step": 6, "x"')  # killed while writing
    run.rewind(last_step=3)
    run.log_metrics(4, {"x": 40.0})
    assert [(step, metrics["x"]) for step, metrics in run.read_metrics()] == [(1, 1), (2, 2), (3, 3), (4, 40)]
    assert sorted(path.name for path in run.trajectories_folder.iterdir()) == [
        "eval_step_000000_no_tool.jsonl",
        "notes.txt",
        "step_000001.jsonl",
        "step_000002.jsonl",
        "step_000003.jsonl",
    ]


def test_rewinding_keeps_the_kept_rows_byte_for_byte(run: RunFolder) -> None:
    run.log_metrics(1, {"a": 0.1 + 0.2, "b": math.nan, "c": 1e-300})
    before = run.metrics_file.read_bytes()
    run.log_metrics(2, {"a": 1.0})
    run.rewind(last_step=1)
    assert run.metrics_file.read_bytes() == before


def test_a_step_number_of_seven_digits_is_read_whole(run: RunFolder) -> None:
    for step in (1_000_000, 1_000_001):
        run.trajectories_file(step).write_text("")
    run.rewind(last_step=1_000_000)
    assert [path.name for path in run.trajectories_folder.iterdir()] == ["step_1000000.jsonl"]


def test_an_incomplete_last_line_is_left_out_and_a_broken_one_before_it_is_named(
    run: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    run.metrics_file.write_text('{"step": 1}\n{"st')
    with caplog.at_level(logging.WARNING):
        assert run.read_metrics() == [MetricRow(1, {})]
    assert "last line is incomplete" in caplog.text
    run.metrics_file.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: not a metrics row"):
        run.read_metrics()


def test_metrics_on_a_full_disk_are_a_clear_error(run: RunFolder) -> None:
    run.metrics_file.symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match=r"no space left to write .*metrics\.jsonl.*resume=true"):
        run.log_metrics(1, {"x": 1.0})


def test_the_summary_is_replaced_whole(run: RunFolder) -> None:
    assert run.read_summary() == {}
    run.write_summary({"steps": 60, "accuracy_after": 0.95, "failures_by_cause": {"sandbox": 1}})
    run.write_summary({"steps": 61})
    assert run.read_summary() == {"steps": 61}
    assert not list(run.path.glob(".*tmp*"))


def test_rows_of_one_step_merge_into_one() -> None:
    rows = [MetricRow(2, {"a": 1.0}), MetricRow(1, {"a": 0.0}), MetricRow(2, {"b": 2.0, "a": 3.0})]
    assert merge_by_step(rows) == [MetricRow(1, {"a": 0.0}), MetricRow(2, {"a": 3.0, "b": 2.0})]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_the_commit_is_that_of_the_checkout_which_tracks_the_package(tmp_path: Path) -> None:
    package = tmp_path / "miles_agents"
    package.mkdir()
    assert git_state(package) is None
    git(tmp_path, "init")
    (package / "x.py").write_text("1")
    (tmp_path / "README").write_text("1")
    git(tmp_path, "add", "README")
    git(tmp_path, "commit", "-m", "one")
    assert git_state(package) is None  # an untracked folder, such as a virtual environment
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "two")
    state = git_state(package)
    assert state is not None
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (package / "x.py").write_text("2")
    assert git_state(package) == {"commit": state["commit"], "dirty": True}


@pytest.mark.parametrize(
    "rows", [[], [MetricRow(1, {"eval/accuracy": math.nan})], [MetricRow(0, {"eval/accuracy": 1})]]
)
def test_a_plot_of_little_or_nothing_is_still_a_picture(tmp_path: Path, rows: list[MetricRow]) -> None:
    write_plot(tmp_path / "plot.png", rows, title="costs $5 and \\alpha_$")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_runs_loads_no_torch_and_no_matplotlib() -> None:
    script = "import sys, miles_agents.runs, miles_agents.report\n"
    script += "print([m for m in ('torch', 'matplotlib', 'tensorboard', 'wandb', 'omegaconf') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_a_run_folder_given_as_the_model_is_kept_as_the_checkpoint_it_meant(tmp_path: Path) -> None:
    checkpoint = tmp_path / "before" / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    last = tmp_path / "last"
    last.symlink_to("before")
    for given in (last, last / "checkpoints" / "step_000002", tmp_path / "before"):
        write_overrides(tmp_path, [f"model={given}", "steps=3", "run_dir=x"], model=checkpoint)
        expected = given if given.name == checkpoint.name else checkpoint
        assert Path(read_overrides(tmp_path)[0].removeprefix("model=")).resolve() == expected.resolve()
        assert read_overrides(tmp_path)[1:] == ["steps=3"]
    for word in ("model=starter", f"model={checkpoint}", "model=some/id"):
        write_overrides(tmp_path, [word], model=checkpoint)
        assert read_overrides(tmp_path) == [word]
