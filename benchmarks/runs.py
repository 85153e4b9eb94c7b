"""Real runs for benchmarks: the command lines' own composition, training and scoring, without their output."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from miles_agents import assembly
from miles_agents.command import Invocation, compose_command, load_env_class
from miles_agents.configs import schema
from miles_agents.configs.compose import parse_overrides, to_object
from miles_agents.contracts import RolloutEngine
from miles_agents.models.loading import load_causal_lm
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.metrics import MetricRow
from miles_agents.runs.trajectories import read_trajectories
from miles_agents.scoring import score
from miles_agents.training import Opened, opened, train
from miles_agents.types import Trajectory

# No scoring on the way, no trackers, no trajectories: what is left of a run is its training steps.
_BARE = (
    "eval.every=0",
    "eval.tasks=1",
    "eval.final_tasks=1",
    "logging.checkpoint_every=0",
    "logging.trajectories_every=0",
    "logging.tensorboard=false",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a finished run left behind."""

    path: Path
    metrics: Sequence[MetricRow]  # a row per step; row 0 is the evaluation before the first
    summary: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read a run folder, or a link to one such as `outputs/last`."""
        with RunFolder.open(path) as run:
            return cls(path=run.path, metrics=run.read_metrics(), summary=run.read_summary())

    def steps(self, *, first: int = 1) -> list[Mapping[str, float]]:
        """The metrics of the training steps from the `first`-th on."""
        return [row.metrics for row in self.metrics if row.step >= max(1, first)]


def invocation_of(command: str, words: Sequence[str]) -> Invocation:
    """The composed configuration of a command line, as `miles_agents.command` makes it."""
    composed = compose_command(command, parse_overrides(words))
    return Invocation(to_object(composed), OmegaConf.to_yaml(composed), tuple(words))


async def train_run(words: Sequence[str], run_dir: Path) -> RunRecord:
    """Carry out `python -m miles_agents.train WORDS run_dir=RUN_DIR` in this process, silently.

    Args:
        words: the command line.
        run_dir: absolute; made.
    """
    invocation = invocation_of("train", [*words, "logging.progress=off", f"run_dir={run_dir}"])
    with aside():
        await train(invocation, load_env_class(invocation.config.env.id), console=silent())
    return RunRecord.read(run_dir)


async def score_run(words: Sequence[str], run_dir: Path) -> list[Trajectory]:
    """Carry out `python -m miles_agents.evaluate WORDS run_dir=RUN_DIR`, silently; the episodes come back.

    Args:
        words: the command line.
        run_dir: absolute; made.
    """
    invocation = invocation_of("evaluate", [*words, f"run_dir={run_dir}"])
    with aside():
        await score(invocation, console=silent())
    with RunFolder.open(run_dir) as run:
        return read_trajectories(run.evaluation_file(0))


async def bare_run(words: Sequence[str]) -> RunRecord:
    """A training run of which only the steps count; its folder is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return await train_run([*_BARE, *words], Path(folder) / "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A model, its environments and sandboxes, for measuring one part alone."""

    config: schema.TrainConfig
    opened: Opened

    @property
    def environments(self) -> EnvironmentPool:
        """Lends environments, with sandboxes."""
        return self.opened.environments

    def player(self, engine: RolloutEngine) -> EpisodePlayer:
        """Plays episodes as a training run does."""
        rollout, deadline_s = self.config.rollout, self.config.engine.request_deadline_s
        return assembly.make_player(engine, self.opened.chat, rollout, rollout, deadline_s)

    @asynccontextmanager
    async def engine(self, **changes: Any) -> AsyncIterator[RolloutEngine]:
        """A started engine that decodes from a copy of the model; `changes` to the keys of `engine`."""
        config, shape = self.config, self.config.rollout
        for name, value in changes.items():
            setattr(config.engine, name, value)
        plan = assembly.EnginePlan(
            max_tokens=shape.max_tokens,
            concurrency=assembly.concurrency_of(config),
            threads=assembly.engine_threads(config.engine, config.cluster),
            dtype=config.model.dtype,
        )
        engine: Any = assembly.make_engine(config.engine, plan)
        try:
            await engine.start()
            await engine.adopt(load_causal_lm(self.opened.model), version=0)
            yield engine
        finally:
            await engine.close()


@asynccontextmanager
async def ground(words: Sequence[str]) -> AsyncIterator[Ground]:
    """Open what a training run with these words would open."""
    config: schema.TrainConfig = invocation_of("train", words).config
    async with opened(config, load_env_class(config.env.id), silent()) as parts:
        yield Ground(config=config, opened=parts)


def silent() -> Console:
    """A console whose output nobody sees."""
    return Console(file=io.StringIO(), width=120)


@contextmanager
def aside() -> Iterator[None]:
    """Another working directory for a while: `outputs/last` of this one stays what it is."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield
