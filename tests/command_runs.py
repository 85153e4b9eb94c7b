"""Running the command lines in tests: in this process, or in one of its own that can be sent signals."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from miles_agents import evaluate, report, train

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train.main,
    "evaluate": evaluate.main,
    "report": report.main,
}
SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=4",
    "eval.tasks=4",
    "eval.final_tasks=4",
    "cluster.threads=1",
)
MAY_DIFFER = ("time/", "throughput/", "sandbox/")  # prefixes of the metrics that tell of the machine

# Its environment asks for no sandbox, and rewards differ between siblings whatever a model says.
PLAIN_ENV = """
import miles_agents as ma

class Plain(ma.ToolEnv):
    max_turns = 2

    @ma.tool
    def echo(self, text: str) -> str:
        '''The same text.'''
        return text

    def tasks(self, split):
        for n in range(6):
            yield ma.Task(id=f"{split}{n}", prompt=(ma.Message.user(f"{n}+1"),), split=split)

    def reward(self, episode):
        return float(len(episode.final.text) % 2)
"""


class Done(NamedTuple):
    """An ended command."""

    code: int
    out: str
    err: str


def command(name: str, *words: str) -> Done:
    """Run `python -m miles_agents.NAME WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = COMMANDS[name](list(words))
    return Done(code, out.getvalue(), err.getvalue())


def metric_rows(run: Path) -> dict[int, dict[str, Any]]:
    """The metrics of each step that do not depend on the machine."""
    rows: dict[int, dict[str, Any]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        step = row.pop("step")
        rows.setdefault(step, {}).update({k: v for k, v in row.items() if not k.startswith(MAY_DIFFER)})
    return rows


def weights(run: Path, step: int) -> bytes:
    """The weights file of a checkpoint."""
    return (run / "checkpoints" / f"step_{step:06d}" / "model.safetensors").read_bytes()


class Running:
    """A command in a process of its own, forked from a server that has the libraries loaded already.

    Args:
        name: the command.
        words: its words.
        cwd: its working directory.
        environment: variables to set.
    """

    def __init__(self, name: str, *words: str, cwd: Path, environment: dict[str, str] | None = None) -> None:
        self.out_file, self.err_file = cwd / f"{name}.out", cwd / f"{name}.err"
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["miles_agents.training", "miles_agents.scoring", "miles_agents.starter.build"])
        self.process = context.Process(
            target=_child, args=(name, list(words), cwd, environment or {}, self.out_file, self.err_file)
        )
        self.process.start()

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float = 40.0) -> None:
        """Poll until the condition holds; the command must still be running then."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.is_alive(), f"it ended too early: {self.err_file.read_text()}"
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.002)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def done(self, *, timeout_s: float = 40.0) -> Done:
        """Wait for its end."""
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"it did not end within {timeout_s} s: {self.err_file.read_text()}")
        return Done(self.process.exitcode, self.out_file.read_text(), self.err_file.read_text())


def _child(name: str, words: list[str], cwd: Path, environment: dict[str, str], out: Path, err: Path) -> None:
    os.chdir(cwd)
    os.environ.update(environment)
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # multiprocessing children may be set to ignore it
    code = COMMANDS[name](words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def logged_steps(run: Path) -> list[int]:
    """Steps whose metrics a run, perhaps under way, has written in full."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return []
    return [json.loads(line)["step"] for line in file.read_text().split("\n")[:-1]]
