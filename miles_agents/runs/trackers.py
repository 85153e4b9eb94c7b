"""Trackers: where metrics go besides metrics.jsonl. TensorBoard event files, Weights & Biases, trackio.

A tracker is a convenience: one that raises while the run goes on is warned about once, switched off, and named in
`Trackers.failures` for the summary; the run and metrics.jsonl go on. One that cannot be *opened* is an error at once.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from miles_agents.errors import UnknownNameError, UsageError, did_you_mean

logger = logging.getLogger(__name__)


class Tracker(ABC):
    """Takes metrics of a run."""

    name: str

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""

    @abstractmethod
    def finish(self) -> None:
        """Flush and close."""


class TensorBoardTracker(Tracker):
    """TensorBoard event files, written through the `tensorboard` package alone (no torch, no thread).

    Args:
        folder: where the event file goes.
        resume_step: a resumed run's first step: what an earlier event file says from there on is not shown.
    """

    name = "tensorboard"

    def __init__(self, folder: Path, *, resume_step: int | None = None) -> None:
        protos = _load("tensorboard.compat.proto.event_pb2", self.name)
        records = _load("tensorboard.summary.writer.record_writer", self.name)
        self._event = protos.Event
        folder.mkdir(parents=True, exist_ok=True)
        taken = len(list(folder.glob("events.out.tfevents.*")))
        # The name's number part orders the files of a resumed run; it holds no host name.
        self._file = (folder / f"events.out.tfevents.{int(time.time()):010d}.{taken:04d}").open("xb")
        self._writer = records.RecordWriter(self._file)
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_step is not None:
            start = protos.SessionLog(status=protos.SessionLog.START)
            self._write(self._event(wall_time=time.time(), step=resume_step, session_log=start))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics as scalars."""
        event = self._event(wall_time=time.time(), step=step)
        for name, value in metrics.items():
            event.summary.value.add(tag=name, simple_value=float(value))
        self._write(event)

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()


class ClientTracker(Tracker):
    """Weights & Biases or trackio, which share `init`, `log` and `finish`.

    Without a W&B key nothing is uploaded: the run is kept offline in the run folder (`wandb sync` sends it later).
    trackio keeps its data on this machine by itself.
    """

    def __init__(self, name: str, *, folder: Path, run_name: str, project: str, config: Mapping[str, Any]) -> None:
        self.name = name
        client = _load(name, name)
        arguments: dict[str, Any] = {"project": project, "name": run_name, "config": dict(config), "resume": "allow"}
        if name == "wandb":
            offline = not os.environ.get("WANDB_API_KEY") and "WANDB_MODE" not in os.environ
            folder.mkdir(parents=True, exist_ok=True)
            arguments |= {"id": run_name, "dir": str(folder)} | ({"mode": "offline"} if offline else {})
        self._run = client.init(**arguments)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics."""
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        """End the run at the client."""
        self._run.finish()


class Trackers:
    """Several trackers as one. `failures` maps the name of each one that was switched off to its error."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._open = list(trackers)
        self.failures: dict[str, str] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of one step to every tracker that still works."""
        for tracker in list(self._open):
            self._try(tracker, partial(tracker.log, step, metrics))

    def finish(self) -> None:
        """Close them all. May be called twice."""
        trackers, self._open = self._open, []
        for tracker in trackers:
            self._try(tracker, tracker.finish)

    def _try(self, tracker: Tracker, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._open = [other for other in self._open if other is not tracker]
            self.failures[tracker.name] = f"{type(error).__name__}: {error}"
            logger.warning("tracker %s failed and is switched off; the run goes on", tracker.name, exc_info=True)


_NAMES = ("tensorboard", "wandb", "trackio")


def open_trackers(
    names: Sequence[str],
    *,
    folder: Path,
    run_name: str,
    project: str = "miles_agents",
    config: Mapping[str, Any] | None = None,
    resume_step: int | None = None,
) -> Trackers:
    """Open the named trackers.

    Args:
        names: of "tensorboard", "wandb", "trackio".
        folder: the run folder; TensorBoard writes into `tensorboard/`, W&B into `wandb/` below it.
        run_name: the run's name at W&B and trackio.
        project: its project there.
        config: plain data shown with it there.
        resume_step: a resumed run's first step.

    Raises:
        UnknownNameError: no tracker of that name.
        UsageError: its package is not installed; the message has the pip line.
    """
    for name in names:
        if name not in _NAMES:
            raise UnknownNameError(f"unknown tracker {name!r}. {did_you_mean(name, _NAMES)}")
    opened: list[Tracker] = []
    for name in dict.fromkeys(names):
        if name == "tensorboard":
            opened.append(TensorBoardTracker(folder / name, resume_step=resume_step))
        else:
            opened.append(ClientTracker(name, folder=folder, run_name=run_name, project=project, config=config or {}))
    return Trackers(opened)


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        extra = "tensorboard" if package == "tensorboard" else "'miles-agents[track]'"
        raise UsageError(
            f"tracker {package} needs the package {package}: pip install {extra}, or set logging.{package}=false"
        ) from error
