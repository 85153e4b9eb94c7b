"""Checkpoints on disk: written beside and renamed into place, proven complete by a manifest, rotated by one rule.

    checkpoints/step_000010/                model files in Hugging Face format, trainer state: what the writer puts in
    checkpoints/step_000010/manifest.json   written last: every file's size and sha256, the score, the run that wrote it
    checkpoints/.tmp-step_000020/       being written; a crash leaves it behind and the next store removes it

**Rotation.** After a new checkpoint is in place, those *this run* wrote are thinned: the `keep_last` written last stay,
and the `keep_best` with the highest score. Order of writing counts, not the number in the name: a run that saves step
10 into a folder that holds another run's steps 500–700 keeps its step 10. Never deleted: what another run wrote, what
was written just now, the newest complete one, and anything incomplete (it is reported, a person decides).

**Newest.** Steps compare as numbers (9 < 10 < 100). This run's own checkpoints come first; only where it has none are
those of other runs considered.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import re
import shutil
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from miles_agents.errors import CheckpointError, ConfigError
from miles_agents.runs.durable import is_disk_full, sync_file, sync_folder

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_STEP = re.compile(r"step_(\d+)")
_TEMPORARY, _REPLACED, _DELETED = ".tmp-", ".old-", ".del-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose manifest says it is complete."""

    step: int
    path: Path
    score: float | None = None  # higher is better
    run_id: str = ""  # of the run that wrote it
    sequence: int = 0  # 1, 2, 3 … in order of writing


class Scan(NamedTuple):
    """What a checkpoint folder holds."""

    complete: list[Checkpoint]  # ascending by step
    skipped: dict[str, str]  # folder name → what is wrong with it

    @property
    def damaged(self) -> list[str]:
        """What is wrong with each skipped one that had been finished once."""
        return [f"{name}: {why}" for name, why in sorted(self.skipped.items()) if not name.startswith(_TEMPORARY)]


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: where they lie; made when the first one is written.
        keep_last: how many of the last written ones to keep, at least 1.
        keep_best: how many of the best ones to keep besides, by `score`.
        run_id: names the run; checkpoints with another id are never deleted. Default: an id of this store alone.
    """

    def __init__(self, folder: Path, *, keep_last: int, keep_best: int, run_id: str | None = None) -> None:
        if keep_last < 1 or keep_best < 0:
            raise ConfigError(f"keep_last must be ≥ 1 and keep_best ≥ 0; got {keep_last} and {keep_best}")
        self.folder = folder
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.run_id = run_id or uuid.uuid4().hex

    @asynccontextmanager
    async def writing(self, step: int, *, score: float | None = None) -> AsyncIterator[Path]:
        """Give a temporary folder to write step `step` into; on leaving, make it the checkpoint and rotate.

        Hashing and fsync run in a thread. If the body raises (or is cancelled) the temporary folder is removed and
        the error goes on. Once the body is through, a cancellation waits until the checkpoint is in place.

        Raises:
            CheckpointError: the disk is full, or the body wrote nothing. Former checkpoints are intact.
        """
        temporary = self.folder / f"{_TEMPORARY}{step_name(step)}"
        try:
            await asyncio.to_thread(self._begin, temporary)
            yield temporary
            await _finish(asyncio.to_thread(self._commit, temporary, step, score))
        except BaseException as error:
            full = self.folder.is_dir() and is_disk_full(error, self.folder)  # before its space is freed again
            await asyncio.to_thread(shutil.rmtree, temporary, ignore_errors=True)
            if full and isinstance(error, Exception) and not isinstance(error, CheckpointError):
                raise self._disk_full(step) from error
            raise
        await _finish(asyncio.to_thread(self._rotate, step))

    def scan(self) -> Scan:
        """Every complete checkpoint (any run's) and what is wrong with the others. Looks at sizes, not content."""
        return scan_checkpoints(self.folder)

    def latest_complete(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all there with their recorded content; None if there is none.

        Incomplete and corrupt ones are skipped and logged as warnings.
        """
        return newest_complete(self.folder, run_id=self.run_id)

    def best(self) -> Checkpoint | None:
        """This run's complete checkpoint with the highest score (the newest of equals); None if none has a score."""
        return max((c for c in self._own() if c.score is not None), key=_by_score, default=None)

    def _own(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.scan().complete if checkpoint.run_id == self.run_id]

    def _begin(self, temporary: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clean()
        temporary.mkdir()

    def _clean(self) -> None:
        """Remove what a killed process left half done, and put back what it was about to replace."""
        for left in self.folder.glob(f"{_REPLACED}*"):
            place = self.folder / left.name.removeprefix(_REPLACED)
            if place.exists():
                shutil.rmtree(left)
            else:
                left.replace(place)
        for prefix in (_TEMPORARY, _DELETED):
            for left in self.folder.glob(f"{prefix}*"):
                shutil.rmtree(left)

    def _commit(self, temporary: Path, step: int, score: float | None) -> None:
        files = {path.relative_to(temporary).as_posix(): path for path in temporary.rglob("*") if path.is_file()}
        if not files:
            raise CheckpointError(f"checkpoint {step_name(step)}: nothing was written into it")
        if MANIFEST in files:
            raise CheckpointError(f"checkpoint {step_name(step)}: {MANIFEST} is the store's own file")
        manifest = {
            "format": 1,
            "step": step,
            "score": score if score is not None and math.isfinite(score) else None,
            "run_id": self.run_id,
            "sequence": 1 + max((checkpoint.sequence for checkpoint in self.scan().complete), default=0),
            "files": {name: _describe(path) for name, path in sorted(files.items())},
        }
        for path in files.values():
            sync_file(path)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        sync_file(temporary / MANIFEST)
        for folder in (*(path for path in temporary.rglob("*") if path.is_dir()), temporary):
            sync_folder(folder)
        self._put_in_place(temporary, self.folder / step_name(step))

    def _put_in_place(self, temporary: Path, place: Path) -> None:
        replaced = self.folder / f"{_REPLACED}{place.name}"
        if place.exists():
            place.replace(replaced)
        temporary.replace(place)
        sync_folder(self.folder)
        if replaced.exists():
            shutil.rmtree(replaced)

    def _rotate(self, written: int) -> None:
        own = self._own()
        last = sorted(own, key=lambda checkpoint: checkpoint.sequence)[-self.keep_last :]
        scored = sorted((c for c in own if c.score is not None), key=_by_score, reverse=True)
        best = scored[: self.keep_best]
        keep = {checkpoint.step for checkpoint in (*last, *best, *own[-1:])} | {written}
        for checkpoint in own:
            if checkpoint.step not in keep:
                # Renamed first: a process killed while deleting leaves no half checkpoint under a checkpoint's name.
                doomed = self.folder / f"{_DELETED}{checkpoint.path.name}"
                checkpoint.path.replace(doomed)
                shutil.rmtree(doomed)

    def _disk_full(self, step: int) -> CheckpointError:
        former = newest_complete(self.folder, run_id=self.run_id)
        intact = f"the former checkpoint {former.path.name} is intact" if former else "there is no former checkpoint"
        free_mb = shutil.disk_usage(self.folder).free / 1e6
        return CheckpointError(
            f"no space left to write checkpoint {step_name(step)} in {self.folder} ({free_mb:.0f} MB free); {intact}. "
            f"Free some space, then go on with run_dir={self.folder.parent} resume=true"
        )


def step_name(step: int) -> str:
    """The folder's name: `step_000010`."""
    return f"step_{step:06d}"


def scan_checkpoints(folder: Path) -> Scan:
    """See `CheckpointStore.scan`."""
    complete: list[Checkpoint] = []
    skipped: dict[str, str] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.is_dir():
            continue
        if path.name.startswith(_TEMPORARY):
            skipped[path.name] = "was being written when the process ended"
        # A crash between the two renames of a replacement leaves the old one under this name only.
        name = path.name.removeprefix(_REPLACED)
        if not (match := _STEP.fullmatch(name)) or (name != path.name and (folder / name).exists()):
            continue
        checkpoint = _read(path, int(match[1]))
        if isinstance(checkpoint, str):
            skipped[path.name] = checkpoint
        else:
            complete.append(checkpoint)
    return Scan(sorted(complete, key=lambda checkpoint: checkpoint.step), skipped)


def newest_complete(folder: Path, *, run_id: str | None = None) -> Checkpoint | None:
    """The newest complete checkpoint in `folder`, preferably of run `run_id`; logs the ones it skips."""
    complete, skipped = scan_checkpoints(folder)
    for name, reason in sorted(skipped.items()):
        logger.warning("skipped checkpoint %s: %s", folder / name, reason)
    for checkpoint in sorted(complete, key=lambda c: (c.run_id == run_id, c.step), reverse=True):
        wrong = _corrupt_file(checkpoint.path)
        if wrong is None:
            return checkpoint
        logger.warning("skipped checkpoint %s: %s", checkpoint.path, wrong)
    return None


def resolve_model_folder(path: Path) -> Path:
    """The folder that `model=PATH` means: a Hugging Face folder.

    Args:
        path: a run folder or its `checkpoints` folder (→ its newest complete checkpoint), a checkpoint, or a plain
            Hugging Face folder.

    Raises:
        CheckpointError: nothing of that kind is there, or the checkpoint is incomplete.
    """
    if not path.is_dir():
        raise CheckpointError(f"no folder {path}: give a run folder, a checkpoint or a Hugging Face model folder")
    for folder in (path / "checkpoints", path):
        if scan_checkpoints(folder) != ([], {}):
            newest = newest_complete(folder, run_id=_run_id(folder.parent))
            if newest is None:
                raise CheckpointError(f"{folder} holds no complete checkpoint ({_reasons(folder)})")
            return newest.path
    if _STEP.fullmatch(path.name) or (path / MANIFEST).exists():
        return _checked(path)
    if (path / "config.json").is_file():
        return path
    if (path / "config.yaml").is_file():
        raise CheckpointError(f"run {path} has no checkpoint yet; give a run that saved one, or a model's name")
    raise CheckpointError(f"{path} is neither a run folder, a checkpoint, nor a Hugging Face folder (no config.json)")


def _checked(path: Path) -> Path:
    match = _STEP.fullmatch(path.name)
    checkpoint = _read(path, int(match[1]) if match else None)
    wrong = checkpoint if isinstance(checkpoint, str) else _corrupt_file(path)
    if wrong is None:
        return path
    raise CheckpointError(
        f"checkpoint {path} is incomplete: {wrong}; give the run folder to take its newest complete one"
    )


def _run_id(run: Path) -> str | None:
    try:
        return str(json.loads((run / "environment.json").read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _reasons(folder: Path) -> str:
    skipped = scan_checkpoints(folder).skipped
    return "; ".join(f"{name}: {reason}" for name, reason in sorted(skipped.items())) or "their content is damaged"


def _read(path: Path, step: int | None) -> Checkpoint | str:
    """The checkpoint in `path`, or what is wrong with it. `step`: what its name says."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        checkpoint = Checkpoint(
            step=int(manifest["step"]),
            path=path,
            score=manifest["score"],
            run_id=str(manifest["run_id"]),
            sequence=int(manifest["sequence"]),
        )
        sizes = {name: int(entry["size"]) for name, entry in files.items()}
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} is broken ({error})"
    if step is not None and step != checkpoint.step:
        return f"{MANIFEST} is of step {checkpoint.step}"
    for name, size in sizes.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes instead of {size}"
    return checkpoint


def _corrupt_file(path: Path) -> str | None:
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    for name, entry in manifest["files"].items():
        try:
            if _describe(path / name) != entry:
                return f"the content of {name} is not what was written"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _by_score(checkpoint: Checkpoint) -> tuple[float, int]:
    return (checkpoint.score if checkpoint.score is not None else -math.inf, checkpoint.sequence)


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await `work`; if cancelled meanwhile, see it through all the same, then let the cancellation go on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and task.exception() is None:
        raise cancelled
    task.result()
