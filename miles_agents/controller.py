"""The training loop.

```
    workers: draw ─► episodes ─► group ──► buffer (bounded staleness, draw order)
                       ▲                      │ take
                 engine.generate              ▼
                       ▲                   collate ─► annotate ─► advantages ─► minibatches ─► trainer.step
                       └──── weight sync: push(version) ◄──────────────────────────────────────────┘
```

The controller consumes groups from the buffer, waits for rollout workers and the trainer, and unblocks the workers
by pushing a new policy version and releasing the groups. Between two steps the state is consistent: that is where
it evaluates, writes checkpoints, and stops when asked to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from miles_agents.contracts import Algorithm, RolloutEngine, SandboxProvider, Trainer, TrajectoryBuffer, WeightSync
from miles_agents.errors import FailureRateError, MilesError, single_error
from miles_agents.evaluation import Evaluation, play_all, summarize
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.ledger import FailureLedger
from miles_agents.rollout.metrics import rollout_metrics
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.sandbox_meter import SandboxMeter
from miles_agents.rollout.workers import GroupWorkers, rollouts
from miles_agents.runs.checkpoints import Checkpoint, CheckpointStore
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.state import read_state, write_state
from miles_agents.runs.trajectories import write_trajectories
from miles_agents.types import Batch, Task, TrajectoryGroup, collate

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """How long and how often."""

    steps: int
    seed: int
    groups_per_step: int
    minibatches: int
    epochs: int
    concurrency: int
    evaluate_every: int  # 0: never
    evaluate_samples: int
    evaluate_max_failure_rate: float
    checkpoint_every: int  # 0: at the end only
    trajectories_every: int  # 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything the loop drives; built by `assembly`."""

    trainer: Trainer
    algorithm: Algorithm
    engine: RolloutEngine
    sync: WeightSync
    buffer: TrajectoryBuffer
    workers: GroupWorkers
    environments: EnvironmentPool
    evaluator: EpisodePlayer
    ledger: FailureLedger
    run: RunFolder
    checkpoints: CheckpointStore
    held_out: Sequence[Task]
    token_pieces: Callable[[Sequence[int]], list[str]]  # for people
    sandboxes: SandboxProvider | None = None  # for its counters


Observer = Callable[[int, Mapping[str, float]], None]
"""Told of each row: metrics after so many training steps; step 0 holds the evaluation before training."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a run has seen so far; saved in every checkpoint."""

    step: int = 0  # training steps done
    max_logprob_abs_diff: float = 0.0
    max_staleness: int = 0
    empty_steps: int = 0
    wall_s: float = 0.0
    accuracy: dict[str, float] = field(default_factory=dict)  # step → held-out accuracy
    accuracy_before: float | None = None  # on the final split, before the first step
    tool_rate_before: float | None = None
    no_tool_accuracy_before: float | None = None  # the same, every tool call refused


class StoppedEarlyError(MilesError):
    """The operator asked the run to stop; the step under way was finished, no other was begun."""


class TrainingLoop:
    """One run's loop. `run` once.

    Args:
        parts: what it drives.
        settings: how long and how often.
        observers: told of each step.
    """

    def __init__(self, parts: Parts, settings: LoopSettings, observers: Sequence[Observer] = ()) -> None:
        self._parts = parts
        self._settings = settings
        self.observers = observers
        self.counters = Counters()
        self.stop = asyncio.Event()
        self._metered = (time.perf_counter(), 0)  # when, and how many tokens had been sampled
        self._sandbox_meter = SandboxMeter(parts.sandboxes)
        self._tools = [tool.name for tool in parts.environments.tools()]
        self._started = time.perf_counter()
        self._saved_step = -1
        self._in_step = False  # the trainer may be ahead of `counters`

    async def resume(self, checkpoint: Checkpoint) -> None:
        """Take the state of a checkpoint; before `run`."""
        state = read_state(checkpoint.path)
        await self._parts.trainer.load(checkpoint.path)
        self._parts.buffer.load_state_dict(state["buffer"])
        self._parts.ledger.load_state_dict(state["ledger"])
        self.counters = Counters(**state["counters"])
        self._parts.run.rewind(last_step=self.counters.step)
        self._saved_step = self.counters.step
        self._started = time.perf_counter() - self.counters.wall_s

    async def prepare(self) -> None:
        """Push the first weights: before anything is sampled. `parts.sync` is connected."""
        await self._parts.sync.push(self.counters.step)

    async def run(self) -> None:
        """Train until `settings.steps` steps are done; `prepare` first.

        Raises:
            StoppedEarlyError: `stop` was set; the state is that after the last finished step: `checkpoint` saves it.
            FailureRateError: too many episodes were lost; unless that was within a step, its state was saved.
        """
        parts, settings = self._parts, self._settings
        try:
            await self._evaluate_if_missing()
            async with rollouts(parts.workers, parts.buffer):
                while self.counters.step < settings.steps:
                    await self._train_step(self.counters.step)
        except BaseExceptionGroup as group:
            error = single_error(group)
            if isinstance(error, FailureRateError) and not self._in_step:
                await self.checkpoint()  # the one under way was cancelled, or none was due
            raise error from None
        await self.checkpoint()

    async def _evaluate_if_missing(self) -> None:
        """Evaluate before the first step, and after a resume if the run was stopped before it could."""
        step = self.counters.step
        if self._due(self._settings.evaluate_every) and str(step) not in self.counters.accuracy:
            self._log(step, await self._evaluate(step))

    async def _train_step(self, step: int) -> None:
        parts, clock = self._parts, _Clock()
        groups = await self._unless_stopped(parts.buffer.take(self._settings.groups_per_step))
        clock.lap("time/wait_for_rollouts")
        metrics, batch = await asyncio.to_thread(self._digest, groups, step)
        for group in groups:
            parts.ledger.count(group)
        metrics |= self._observe_staleness(groups, step)
        self._in_step = True
        metrics |= await self._train(batch, step, clock)
        metrics |= {f"sync/{name}": value for name, value in (await parts.sync.push(step + 1)).items()}
        clock.lap("time/push_weights")
        await parts.buffer.release(groups, version=step + 1)
        self.counters.step, self._in_step = step + 1, False
        try:
            await self._write_trajectories(groups)
            metrics |= await self._evaluate(step + 1) if self._due(self._settings.evaluate_every) else {}
        finally:
            clock.lap("time/evaluate")
            self._log(step + 1, metrics | clock.times() | self._throughput() | self._sandbox_meter.read())
        if self._due(self._settings.checkpoint_every):
            await self.checkpoint()

    def _digest(self, groups: Sequence[TrajectoryGroup], step: int) -> tuple[dict[str, float], Batch]:
        return rollout_metrics(groups, trainer_version=step, tools=self._tools), collate(groups)

    async def _train(self, batch: Batch, step: int, clock: _Clock) -> dict[str, float]:
        parts, settings = self._parts, self._settings
        metrics, kept = await asyncio.to_thread(self._weigh, batch)
        if kept is None:
            # Every group was dropped (all rewards equal): a counted no-op, never a NaN.
            self.counters.empty_steps += 1
            return metrics
        await parts.trainer.annotate(kept)
        rng = np.random.default_rng([settings.seed, step])
        updates: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            for minibatch in await asyncio.to_thread(kept.minibatches, settings.minibatches, rng=rng):
                updates.append(await parts.trainer.step(minibatch))
        clock.lap("time/train")
        return metrics | self._summarize_updates(updates)

    def _weigh(self, batch: Batch) -> tuple[dict[str, float], Batch | None]:
        """Fill in the advantages; the samples to train on come back."""
        algorithm = self._parts.algorithm
        metrics = {f"train/{name}": value for name, value in algorithm.advantages(batch).items()}
        kept = algorithm.keeps(batch)
        metrics["train/kept_samples"] = float(len(kept) if kept is not None else 0)
        return metrics, kept

    def _summarize_updates(self, updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
        # Before its first update the trainer has the very weights that sampled (at staleness 0): there, and only
        # there, its logprobs must equal the engine's.
        first = next((update for update in updates if update["trained_tokens"]), None)
        names = sorted({name for update in updates for name in update} - {"logprob_abs_diff_max"})
        summed = {"trained_tokens", "packs", "empty_steps"}
        metrics = {}
        for name in names:
            values = [update[name] for update in updates if name in update]
            metrics[f"train/{name}"] = float(np.sum(values) if name in summed else np.mean(values))
        if first is not None:
            diff = metrics["train/train_rollout_logprob_abs_diff"] = first["logprob_abs_diff_max"]
            metrics["train/train_rollout_logprob_abs_diff_mean"] = first["logprob_abs_diff_mean"]
            self.counters.max_logprob_abs_diff = max(self.counters.max_logprob_abs_diff, diff)
        return metrics

    def _observe_staleness(self, groups: Sequence[TrajectoryGroup], step: int) -> dict[str, float]:
        oldest = [step - trajectory.min_version for group in groups for trajectory in group.valid]
        self.counters.max_staleness = max(self.counters.max_staleness, *oldest)
        return {"buffer/staleness_max": float(max(oldest)), "buffer/staleness_mean": float(np.mean(oldest))}

    async def _evaluate(self, step: int) -> dict[str, float]:
        evaluation = await self.evaluate(self._parts.held_out, samples=self._settings.evaluate_samples)
        total = evaluation.total
        accuracy = self.counters.accuracy[str(step)] = total.accuracy or 0.0
        return {
            "eval/accuracy": accuracy,
            "eval/accuracy_low": total.accuracy_low or 0.0,
            "eval/accuracy_high": total.accuracy_high or 0.0,
            "eval/reward": total.mean_reward or 0.0,
            "eval/tool_call_rate": total.tool_call_rate,
            "eval/tool_error_rate": total.tool_error_rate,
            "eval/turns": total.turns,
            "eval/failed": float(total.failed),
        }

    async def evaluate(
        self, tasks: Sequence[Task], *, samples: int = 1, environments: EnvironmentPool | None = None
    ) -> Evaluation:
        """Play held-out tasks with the engine's weights; the seeds are the same each time.

        Raises:
            FailureRateError: too many episodes were lost to say how good the policy is.
        """
        pool = environments or self._parts.environments
        trajectories = await self._unless_stopped(
            play_all(
                self._parts.evaluator,
                pool,
                tasks,
                samples=samples,
                seed=self._settings.seed,
                concurrency=self._settings.concurrency,
            )
        )
        evaluation = summarize(self._parts.environments.catalogue, trajectories)
        evaluation.check_lost(self._settings.evaluate_max_failure_rate, key="eval.max_failure_rate")
        return evaluation

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, or leave it when the run is asked to stop; if it was before, nothing is begun."""
        if self.stop.is_set():  # work that is ready at once would win every time
            work.close()
            raise self._stopped()
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
        raise self._stopped()

    def _stopped(self) -> StoppedEarlyError:
        return StoppedEarlyError(f"stopped after step {self.counters.step}, as asked")

    async def checkpoint(self) -> None:
        """Save the state after the last finished step, unless that is done; between steps only.

        Raises:
            CheckpointError: the disk is full; former checkpoints are intact.
        """
        parts, step = self._parts, self.counters.step
        if step == self._saved_step:
            return
        self.counters.wall_s = time.perf_counter() - self._started
        score = self.counters.accuracy.get(str(step))
        state = {
            "buffer": parts.buffer.state_dict(),
            "ledger": parts.ledger.state_dict(),
            "counters": {name: getattr(self.counters, name) for name in Counters.__dataclass_fields__},
        }
        async with parts.checkpoints.writing(step, score=score) as folder:
            await parts.trainer.save(folder)
            write_state(folder, state)
        self._saved_step = step

    def _throughput(self) -> dict[str, float]:
        """Tokens sampled since the last row, for training and evaluation, by the seconds since then.

        The next step's episodes are already played while this one trains and evaluates, so a step's own tokens over
        its own seconds would say nothing.
        """
        now, tokens = time.perf_counter(), self._parts.workers.sampled_tokens + self._parts.evaluator.sampled_tokens
        rate = (tokens - self._metered[1]) / (now - self._metered[0])
        self._metered = now, tokens
        return {
            "throughput/sampled_tokens_per_s": rate,
            "throughput/tokens_per_gpu_per_second": rate,  # one device; on a CPU the machine counts as one
        }

    def _due(self, every: int) -> bool:
        step = self.counters.step
        return every > 0 and (step % every == 0 or step == self._settings.steps)

    async def _write_trajectories(self, groups: Sequence[TrajectoryGroup]) -> None:
        if self._settings.trajectories_every and self._due(self._settings.trajectories_every):
            trajectories = [trajectory for group in groups for trajectory in group.trajectories]
            file = self._parts.run.trajectories_file(self.counters.step)
            await asyncio.to_thread(write_trajectories, file, trajectories, decode=self._parts.token_pieces)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._parts.run.log_metrics(step, metrics)
        for observer in self.observers:
            observer(step, metrics)


class _Clock:
    """Lap times of one step."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._last
        self._last = now

    def times(self) -> dict[str, float]:
        return {**self._laps, "time/step": self._last - self._start - self._laps.get("time/evaluate", 0.0)}
