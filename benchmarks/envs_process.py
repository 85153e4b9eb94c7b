"""One subject of `benchmarks.envs` in a process of its own, and the virtual environments of the peers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.envs_rounds import Plan, Round

ROOT = Path(__file__).parents[1]
PEERS = ("verifiers", "gem", "skyrl-gym")
_SHOWN_CHARS = 300


class UnavailableError(Exception):
    """This subject cannot be measured here; the message is what its row says."""


class SubjectProcess:
    """A subject, started; `stop` at the end.

    Args:
        name: see `envs_rounds.SUBJECTS`.
        python: the interpreter that has what it needs.

    Raises:
        UnavailableError: it does not start.
    """

    def __init__(self, name: str, python: Path) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 — closed by `stop`
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [str(python), "-m", "benchmarks.envs_rounds", name]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=self._log, text=True
            )
        except OSError as error:
            self._log.close()
            raise UnavailableError(str(error)) from error
        try:
            self.description = str(json.loads(self._line())["ready"])
        except UnavailableError:
            self.stop()
            raise

    def round(self, plan: Plan) -> Round:
        """Have a round measured there.

        Raises:
            UnavailableError: it failed; the message is what the process said last.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        return Round(**json.loads(self._line()))

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().decode(errors="backslashreplace").strip().rpartition("\n")[2]
            raise UnavailableError(f"its process ended: {said[:_SHOWN_CHARS]}")
        return line


def python_of(peer: str) -> Path:
    """The interpreter of a peer's virtual environment, which is made if it is not there.

    Raises:
        UnavailableError: it cannot be made; the message is what pip said last.
    """
    folder = ROOT / f".venv-envs-{peer}"
    wanted = ROOT / "benchmarks" / f"envs_peers_{peer}.txt"
    stamp = folder / ".installed"
    python = folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == wanted.read_text():
        return python
    sys.stderr.write(f"setting up {folder.name}: a minute or two\n")
    shutil.rmtree(folder, ignore_errors=True)
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "install", "-r", str(wanted)],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise UnavailableError(f"not installed: {done.stderr.strip().rpartition(chr(10))[2][:_SHOWN_CHARS]}")
    stamp.write_text(wanted.read_text())
    return python
