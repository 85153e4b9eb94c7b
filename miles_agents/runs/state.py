"""The loop's own state inside a checkpoint: one JSON file beside the model and the trainer state."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from miles_agents.errors import CheckpointError
from miles_agents.runs.durable import write_atomic

STATE_FILE = "run_state.json"
OVERRIDES_FILE = "overrides.json"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state (JSON values) into a checkpoint folder."""
    write_atomic(folder / STATE_FILE, json.dumps(state))


def read_state(folder: Path) -> dict[str, Any]:
    """Read it back.

    Raises:
        CheckpointError: the folder holds a model but no state of a run.
    """
    file = folder / STATE_FILE
    if not file.is_file():
        raise CheckpointError(f"{folder} has no {STATE_FILE}: a model, not a run's checkpoint; use model={folder}")
    state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return state


def write_overrides(run: Path, overrides: Sequence[str], *, model: Path | None = None) -> None:
    """Keep the words of a run's command line, so that `resume=true` alone goes on with them.

    Args:
        run: the run folder.
        overrides: the words.
        model: the folder that a word such as `model=outputs/last` means now; later it would mean another one.
    """
    kept = [word for word in overrides if not word.startswith(("run_dir=", "resume="))]
    if model is not None:
        kept = [f"model={model.resolve()}" if _is_link_to(word, model) else word for word in kept]
    write_atomic(run / OVERRIDES_FILE, json.dumps(kept, indent=1))


def _is_link_to(word: str, model: Path) -> bool:
    key, _, value = word.partition("=")
    given = Path(value).expanduser()
    return key == "model" and given.exists() and given.absolute() != model.resolve()


def read_overrides(run: Path) -> list[str]:
    """The words a run was started with; none if it was not started from a command line."""
    file = run / OVERRIDES_FILE
    return [str(word) for word in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []
