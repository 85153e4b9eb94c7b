"""The environment record: enough to run the same thing again, nothing that names a person or a host."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "miles-agents",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "hydra-core",
    "omegaconf",
    "pydantic",
    "gymnasium",
    "sympy",
    "latex2sympy2_extended",
    "antlr4-python3-runtime",  # Hydra decides its version, and the LaTeX parser of the answer checker runs on it
    "pyarrow",
    "tensorboard",
    "matplotlib",
    "rich",
    "sglang-router",
    "vllm-router",
    "megatron-core",
    "ray",
    "wandb",
    "trackio",
)


def environment_record(*, seed: int, run_id: str) -> dict[str, Any]:
    """Versions, machine size, seed and commit. Imports none of the packages it names."""
    return {
        "run_id": run_id,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{platform.system()}-{platform.release()}-{platform.machine()}",
        "cpu_count": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in os.environ},
        "byte_order": sys.byteorder,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "git": git_state(Path(__file__).resolve().parents[1]),
    }


def answer_checker() -> str:
    """What verdicts on answers may depend on, for people: the checker's libraries with their versions."""
    names = {"sympy": "sympy", "latex2sympy2_extended": "latex2sympy2", "antlr4-python3-runtime": "antlr4"}
    return ", ".join(f"{short} {_version(package) or 'missing'}" for package, short in names.items())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """`{"commit": …, "dirty": …}` of the checkout that tracks `folder`; None outside one.

    A package installed in a virtual environment that happens to lie inside some other checkout is not tracked by it.
    """
    if not _git(folder, "ls-files", "--", "."):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if commit is None or changes is None:
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603  (fixed arguments)
            ["git", "-C", str(folder), *arguments],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
