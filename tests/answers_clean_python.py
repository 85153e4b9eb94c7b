"""An interpreter whose environment has what the answer checker needs, the newer antlr4 runtime, and no Hydra."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

LOCK_FILE = Path(__file__).with_name("answers_clean_venv.txt")
_INSTALL_S = 600


class NoCleanPythonError(Exception):
    """None was given, and none may be made; the message says how to have one."""


def clean_python() -> Path:
    """The interpreter that MILES_AGENTS_CLEAN_ANSWERS_VENV names, or one made once for MILES_AGENTS_TEST_VENVS=1.

    Raises:
        NoCleanPythonError: neither is set.
    """
    if given := os.environ.get("MILES_AGENTS_CLEAN_ANSWERS_VENV"):
        path = Path(given)
        return path / "bin" / "python" if path.is_dir() else path
    if os.environ.get("MILES_AGENTS_TEST_VENVS") != "1":
        raise NoCleanPythonError(
            "MILES_AGENTS_TEST_VENVS=1 makes an environment without Hydra (a minute, once); "
            "MILES_AGENTS_CLEAN_ANSWERS_VENV=python names one"
        )
    return _made()


def _made() -> Path:
    """Made under the user's cache folder, by what is in it; whoever comes second waits for the first."""
    key = hashlib.sha256(LOCK_FILE.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "miles_agents" / "tests"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"answers-{key}"
    with (cache / f"answers-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".installed").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            install = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            for command in ([sys.executable, "-m", "venv", folder], [*install, "-r", LOCK_FILE]):
                subprocess.run(command, check=True, timeout=_INSTALL_S, env=environment)
            (folder / ".installed").touch()
    return folder / "bin" / "python"
