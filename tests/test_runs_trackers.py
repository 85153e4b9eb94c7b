"""TensorBoard, W&B and trackio behind one interface."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from miles_agents.errors import UnknownNameError, UsageError
from miles_agents.runs import Tracker, Trackers, open_trackers


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    trackers = open_trackers(["tensorboard"], folder=tmp_path, run_name="r")
    trackers.log(1, {"reward/raw_reward": 0.25, "train/loss": 2.0})
    trackers.log(2, {"reward/raw_reward": 0.5})
    assert scalars(tmp_path / "tensorboard", "reward/raw_reward") == [(1, 0.25), (2, 0.5)]  # while the run goes on
    trackers.finish()
    trackers.finish()
    assert scalars(tmp_path / "tensorboard", "train/loss") == [(1, 2.0)]
    assert trackers.failures == {}


def test_a_resumed_run_does_not_show_the_steps_it_lost_twice(tmp_path: Path) -> None:
    first = open_trackers(["tensorboard"], folder=tmp_path, run_name="r")
    for step in (1, 2, 3):
        first.log(step, {"x": 1.0})
    first.finish()
    second = open_trackers(["tensorboard"], folder=tmp_path, run_name="r", resume_step=2)
    second.log(2, {"x": 5.0})
    second.finish()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    assert scalars(tmp_path / "tensorboard", "x") == [(1, 1.0), (2, 5.0)]


def test_tensorboard_files_are_written_without_torch(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from miles_agents.runs import open_trackers\n"
    script += (
        "t = open_trackers(['tensorboard'], folder=Path(sys.argv[1]), run_name='r'); t.log(1, {'x': 1}); t.finish()\n"
    )
    script += "print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_an_unknown_tracker_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        open_trackers(["tensorbord"], folder=tmp_path, run_name="r")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install 'miles-agents\[track\]'"):
        open_trackers([name], folder=tmp_path, run_name="r")


@pytest.mark.parametrize(("key", "mode"), [(None, "offline"), ("secret", None)])
def test_wandb_without_a_key_stays_offline_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, mode: str | None
) -> None:
    started: dict = {}
    logged: list = []
    client = ModuleType("wandb")
    client.init = lambda **arguments: (  # type: ignore[attr-defined]
        started.update(arguments)
        or SimpleNamespace(
            log=lambda metrics, step: logged.append((step, metrics)), finish=lambda: logged.append("end")
        )
    )
    monkeypatch.setitem(sys.modules, "wandb", client)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    trackers = open_trackers(["wandb"], folder=tmp_path, run_name="r", config={"seed": 1})
    trackers.log(3, {"x": 1.0})
    trackers.finish()
    assert started.get("mode") == mode
    assert (started["dir"], started["name"], started["config"]) == (str(tmp_path), "r", {"seed": 1})
    assert logged == [(3, {"x": 1.0}), "end"]


class BreaksAtStep2(Tracker):
    name = "fragile"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls.append(step)
        if step == 2:
            raise ConnectionError("server is gone")

    def finish(self) -> None:
        raise AssertionError("a tracker that was switched off is not called again")


def test_a_tracker_that_breaks_is_switched_off_once_and_named_while_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fragile = BreaksAtStep2()
    sound = open_trackers(["tensorboard"], folder=tmp_path, run_name="r")
    trackers = Trackers([fragile, *sound._open])
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3, 4):
            trackers.log(step, {"x": float(step)})
        trackers.finish()
    assert fragile.calls == [1, 2]
    assert trackers.failures == {"fragile": "ConnectionError: server is gone"}
    assert [record.message for record in caplog.records] == [
        "tracker fragile failed and is switched off; the run goes on"
    ]
    assert [step for step, _ in scalars(tmp_path / "tensorboard", "x")] == [1, 2, 3, 4]
