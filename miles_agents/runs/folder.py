"""The run folder: `outputs/<name>/` and the link `outputs/last`. docs/run-folder.md lists every file."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from miles_agents.errors import RunFolderError
from miles_agents.runs.checkpoints import CheckpointStore
from miles_agents.runs.durable import write_atomic
from miles_agents.runs.environment import environment_record
from miles_agents.runs.json_values import dumps, for_people
from miles_agents.runs.metrics import MetricRow, append_metrics, read_metrics, truncate_metrics

logger = logging.getLogger(__name__)

LAST = "last"
_CONFIG = "config.yaml"
_ENVIRONMENT = "environment.json"


class RunFolder:
    """One run's files. Made by `create` or `open`; `close` (or leaving the `with`) gives up the write lock."""

    def __init__(self, path: Path, *, run_id: str, lock: IO[str] | None) -> None:
        self.path = path
        self.run_id = run_id
        self._lock = lock

    @classmethod
    def create(
        cls,
        root: Path,
        name: str | None = None,
        *,
        run_dir: Path | None = None,
        label: str = "run",
        config: str = "",
        seed: int = 0,
        link_last: bool = True,
    ) -> RunFolder:
        """Make a new run folder, write config.yaml and environment.json, renew `root/last`, hold the write lock.

        Args:
            root: the folder of runs, `outputs`.
            name: the folder's name below `root`; default `<label>-<date>-<time>`, made unique.
            run_dir: the run folder itself, anywhere; wins over `name`. It may exist if it is empty.
            label: what a default name starts with, e.g. the environment's name.
            config: the composed configuration, as YAML text.
            seed: the run's seed, for environment.json.
            link_last: renew `root/last`.

        Raises:
            RunFolderError: the folder exists with something in it, or cannot be made. Nothing is overwritten.
        """
        path = _make_folder(root, name, run_dir, label)
        run_id = uuid.uuid4().hex
        run = cls(path, run_id=run_id, lock=_lock(path))
        try:
            with run.config_file.open("x", encoding="utf-8") as file:
                file.write(config)
        except FileExistsError:
            run.close()
            raise _exists(path) from None
        _write_json(path / _ENVIRONMENT, environment_record(seed=seed, run_id=run_id))
        run.trajectories_folder.mkdir()
        if link_last:
            run.link_last(root)
        return run

    @staticmethod
    def refuse_existing(path: Path) -> None:
        """Refuse early what `create` would refuse: a run folder that has something in it or cannot be made.

        Raises:
            RunFolderError: it has, or it cannot.
        """
        if path.exists() and (not path.is_dir() or any(entry.name != ".lock" for entry in path.iterdir())):
            raise _exists(path)
        RunFolder.check_writable(path)

    @staticmethod
    def check_writable(path: Path) -> None:
        """Refuse a folder that nothing can be written into; it need not exist yet.

        Raises:
            RunFolderError: it, or the nearest folder above it that exists, takes no new entry.
        """
        nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            why = os.strerror(errno.EACCES if nearest.is_dir() else errno.ENOTDIR)
            raise RunFolderError(f"cannot make a run folder in {path}: {nearest}: {why}; set run_dir to another")

    @classmethod
    def open(cls, path: Path, *, writing: bool = False) -> RunFolder:
        """Open a run folder, or a link to one such as `outputs/last`.

        Args:
            path: the folder.
            writing: hold the write lock, for `resume=true`.

        Raises:
            RunFolderError: no run folder, or another process is writing it.
        """
        if not path.is_dir():
            dangling = f" (a link to {path.readlink()}, which is gone)" if path.is_symlink() else ""
            raise RunFolderError(f"no run folder {path}{dangling}; {_known_runs(path.parent)}")
        missing = [name for name in (_CONFIG, _ENVIRONMENT) if not (path / name).is_file()]
        if missing:
            raise RunFolderError(f"{path} is not a run folder: no {' and no '.join(missing)}; {_known_runs(path)}")
        try:
            run_id = json.loads((path / _ENVIRONMENT).read_text(encoding="utf-8"))["run_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path / _ENVIRONMENT} is broken ({error}): not a run folder") from error
        real = path.resolve()
        return cls(real, run_id=str(run_id), lock=_lock(real) if writing else None)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The composed configuration."""
        return self.path / _CONFIG

    @property
    def metrics_file(self) -> Path:
        """One JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def trajectories_folder(self) -> Path:
        """Episodes as JSONL."""
        return self.path / "trajectories"

    @property
    def tensorboard_folder(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def plot_file(self) -> Path:
        """Reward, held-out accuracy and tool-call rate over the steps."""
        return self.path / "plot.png"

    @property
    def report_file(self) -> Path:
        """The self-contained HTML report."""
        return self.path / "report.html"

    def trajectories_file(self, step: int) -> Path:
        """Where the episodes that step `step` trained on go."""
        return self.trajectories_folder / f"step_{step:06d}.jsonl"

    def evaluation_file(self, step: int, label: str = "") -> Path:
        """Where the held-out episodes played after `step` updates go; `label` tells a variant, e.g. `no_tool`."""
        return self.trajectories_folder / f"eval_step_{step:06d}{'_' + label if label else ''}.jsonl"

    def checkpoints(self, *, keep_last: int = 2, keep_best: int = 1) -> CheckpointStore:
        """The checkpoints of this run (rotation touches no other run's)."""
        return CheckpointStore(self.path / "checkpoints", keep_last=keep_last, keep_best=keep_best, run_id=self.run_id)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row to metrics.jsonl and flush it."""
        append_metrics(self.metrics_file, step, metrics)

    def read_metrics(self) -> list[MetricRow]:
        """The rows of metrics.jsonl, in file order."""
        return read_metrics(self.metrics_file)

    def rewind(self, *, last_step: int) -> None:
        """Forget what was logged after `last_step`, so that a resumed run doubles nothing.

        Metric rows and trajectory files of later steps go; −1 forgets everything.
        """
        dropped = truncate_metrics(self.metrics_file, last_step=last_step)
        for path in sorted(self.trajectories_folder.iterdir()):
            step = step_of(path)
            if step is not None and step > last_step:
                path.unlink()
                dropped += 1
        if dropped:
            logger.info("resuming after step %d: %d later metric rows and trajectory files dropped", last_step, dropped)

    def renew_config(self, config: str, *, last_step: int) -> None:
        """Write the configuration a resumed run goes on with; the former one is kept as `config_until_step_….yaml`."""
        former = self.config_file.read_text(encoding="utf-8")
        write_atomic(self.path / f"config_until_step_{last_step:06d}.yaml", former)
        write_atomic(self.config_file, config)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, atomically. Numbers that are not finite become "nan", "inf", "-inf".

        Raises:
            DataError: a value is no JSON value.
        """
        _write_json(self.path / "summary.json", dict(summary))

    def read_summary(self) -> dict[str, Any]:
        """summary.json; {} if the run has not ended."""
        return _read_json(self.path / "summary.json")

    def read_environment(self) -> dict[str, Any]:
        """environment.json."""
        return _read_json(self.path / _ENVIRONMENT)

    def link_last(self, root: Path) -> None:
        """Make `root/last` a relative link to this run, atomically."""
        root.mkdir(parents=True, exist_ok=True)
        link = root / LAST
        if link.is_dir() and not link.is_symlink():
            logger.warning("%s is a real folder, not a link: it was left alone", link)
            return
        temporary = root / f".{LAST}.tmp-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(self.path, root.resolve()))
        temporary.replace(link)

    def close(self) -> None:
        """Give up the write lock. May be called twice."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def step_of(path: Path) -> int | None:
    """The step in the name of a trajectory file (`step_000010.jsonl`, `eval_step_000010_no_tool.npz`)."""
    match = re.fullmatch(r"(?:eval_)?step_(\d+)(?:_\w+)?\.(?:jsonl|npz)", path.name)
    return int(match[1]) if match else None


def _make_folder(root: Path, name: str | None, run_dir: Path | None, label: str) -> Path:
    try:
        if run_dir is not None or name is not None:
            return _make_named(_child(root, name) if run_dir is None and name is not None else Path(run_dir or root))
        stamp = datetime.now(UTC).astimezone().strftime("%Y%m%d-%H%M%S")
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            path = root / (f"{label}-{stamp}" + (f"-{number}" if number > 1 else ""))
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path.resolve()
        raise RunFolderError(f"{root} holds 1000 runs named {label}-{stamp}; set run_dir")
    except OSError as error:
        where = run_dir or root
        raise RunFolderError(
            f"cannot make a run folder in {where}: {error.strerror}; set run_dir to another"
        ) from error


def _child(root: Path, name: str) -> Path:
    if name in ("", ".", "..", LAST) or "/" in name:
        raise RunFolderError(f"{name!r} cannot be a run's name: give a plain name, or a path with run_dir")
    return root / name


def _make_named(path: Path) -> Path:
    RunFolder.refuse_existing(path)
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def _exists(path: Path) -> RunFolderError:
    return RunFolderError(
        f"run folder {path} exists and is not empty; go on with run_dir={path} resume=true, or give another run_dir"
    )


def _known_runs(root: Path) -> str:
    found = sorted(entry.parent.name for entry in root.glob(f"*/{_ENVIRONMENT}") if not entry.parent.is_symlink())
    if not found:
        return "a run folder is what python -m miles_agents.train leaves, e.g. outputs/last"
    return f"runs in {root}: {', '.join(found[-5:])}"


def _lock(path: Path) -> IO[str]:
    """A POSIX lock: the kernel frees it when the process dies, and forked children do not inherit it."""
    file = (path / ".lock").open("a", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.close()
            raise RunFolderError(
                f"{path} is being written by another process; wait for it, or give another run_dir"
            ) from error
        logger.warning("%s cannot be locked (%s): do not start a second run in it", path, error.strerror)
    return file


def _write_json(path: Path, value: Any) -> None:
    write_atomic(path, dumps(for_people(value, path.stem), indent=2) + "\n")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{path} is broken: {error}") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path} is broken: not a JSON object")
    return value
