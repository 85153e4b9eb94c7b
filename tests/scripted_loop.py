"""A small training loop for tests: scripted engine, a trainer that only counts; everything else is real."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripted_runs import Adding, Scripted, ScriptedReply

from miles_agents.algorithms.grpo import GRPO
from miles_agents.contracts import Algorithm, Env, EnvResources, RolloutEngine, SandboxProvider, Trainer, WeightSync
from miles_agents.controller import LoopSettings, Parts, TrainingLoop
from miles_agents.engines.scripted import ScriptedEngine
from miles_agents.rollout.buffer import BoundedStalenessBuffer
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.source import TaskSource
from miles_agents.runs.folder import RunFolder
from miles_agents.types import Batch, Episode, GenerateRequest

GROUPS, SIZE = 2, 4
LIMITS: dict[str, Any] = {
    "seed": 0,
    "groups_per_step": GROUPS,
    "minibatches": 1,
    "epochs": 1,
    "concurrency": GROUPS * SIZE,
    "evaluate_samples": 1,
    "evaluate_max_failure_rate": 0.1,
}


class CountingTrainer(Trainer):
    """Has one number for weights: the updates it made. `trained` keeps the versions of each update's tokens."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.updates = 0
        self.begun = 0
        self.trained: list[list[int]] = []
        self.full = False
        self.slow_s = 0.0

    async def start(self) -> None:
        pass

    async def annotate(self, batch: Batch) -> None:
        pass

    async def step(self, minibatch: Batch) -> dict[str, float]:
        self.begun += 1
        await asyncio.sleep(self.slow_s)
        self.updates += 1
        self.trained.append(sorted(set(minibatch.versions[minibatch.mask == 1].tolist())))
        return {"loss": 0.0, "logprob_abs_diff_max": 0.0, "logprob_abs_diff_mean": 0.0, "trained_tokens": 1.0}

    async def save(self, folder: Path) -> None:
        (folder / "updates").write_text(str(self.updates))
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def load(self, folder: Path) -> None:
        self.updates = int((folder / "updates").read_text())

    async def close(self) -> None:
        pass


class VersionSync(WeightSync):
    """Pushes nothing but the version."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.pushed: list[int] = []

    async def connect(self, trainer: Trainer, engine: RolloutEngine) -> None:
        pass

    async def push(self, version: int) -> dict[str, float]:
        self.pushed.append(version)
        self.engine.set_version(version)
        return {"bytes": 0.0}


class SaysOne(Adding):
    """The reward is 1 for saying 1."""

    async def reward(self, episode: Episode) -> dict[str, float]:
        """Whatever the task is."""
        return {"answer": float(episode.final.content == "1")}


class World:
    """A loop and what it drives."""

    def __init__(
        self,
        run: RunFolder,
        script: Callable[[GenerateRequest], ScriptedReply | str],
        *,
        env: type[Env] = SaysOne,
        steps: int = 4,
        max_staleness: int = 0,
        deadline_s: float = 5.0,
        max_failure_rate: float = 1.0,
        checkpoint_every: int = 0,
        evaluate_every: int = 0,
        sandboxes: SandboxProvider | None = None,
        algorithm: Algorithm | None = None,
        token_pieces: Callable[[Sequence[int]], list[str]] = lambda ids: [str(each) for each in ids],
    ) -> None:
        scripted = Scripted(script, deadline_s=deadline_s)
        pool = EnvironmentPool(env, EnvResources(sandboxes=sandboxes))
        workers = scripted.workers(
            pool, group_size=SIZE, concurrency=GROUPS * SIZE, max_failure_rate=max_failure_rate, seed=0
        )
        self.trainer = CountingTrainer(algorithm or GRPO())
        self.sync = VersionSync(scripted.engine)
        self.buffer = BoundedStalenessBuffer(
            TaskSource(Adding().tasks("train"), seed=0),
            groups_per_step=GROUPS,
            max_staleness=max_staleness,
            steps=steps,
        )
        self.ledger = scripted.ledger
        self.engine = scripted.engine
        self.run = run
        parts = Parts(
            trainer=self.trainer,
            algorithm=self.trainer.algorithm,
            engine=scripted.engine,
            sync=self.sync,
            buffer=self.buffer,
            workers=workers,
            environments=pool,
            evaluator=scripted.player,
            ledger=scripted.ledger,
            run=run,
            checkpoints=run.checkpoints(keep_last=2),
            held_out=Adding().tasks("validation")[:2],
            token_pieces=token_pieces,
            sandboxes=sandboxes,
        )
        every = {"evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every, "trajectories_every": 1}
        self.loop = TrainingLoop(parts, LoopSettings(steps=steps, **LIMITS, **every))

    async def train(self) -> None:
        await self.loop.prepare()
        async with asyncio.timeout(20):
            await self.loop.run()

    def rows(self) -> dict[int, Mapping[str, float]]:
        return {row.step: row.metrics for row in self.run.read_metrics()}


def mixed(request: GenerateRequest) -> str:
    """Siblings differ: one in four says what `SaysOne` rewards."""
    return "1" if "/0/" in request.request_id else "7"
