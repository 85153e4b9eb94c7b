"""A training run from its configuration to its report: what `python -m miles_agents.train` does.

Order: check the sums → open model, environment and sandbox → make the run folder → score before → train → score
after, also with tools refused → before/after table, summary, plot, report. Nothing is written before the checks
have passed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from miles_agents import assembly
from miles_agents.chat import ChatFormat
from miles_agents.chat.settings import make_chat
from miles_agents.command import EXIT_INTERRUPTED, EXIT_OK, Invocation
from miles_agents.configs import schema
from miles_agents.configs.compose import changed_keys
from miles_agents.contracts import Algorithm, Env, RolloutEngine, SandboxProvider, Trainer, WeightSync
from miles_agents.controller import LoopSettings, Parts, StoppedEarlyError, TrainingLoop
from miles_agents.errors import CheckpointError, RunFolderError
from miles_agents.evaluation import Evaluation
from miles_agents.interruption import StopOnSignals
from miles_agents.opponents import opponents
from miles_agents.rollout.buffer import BoundedStalenessBuffer
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.ledger import FailureLedger
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.policy import Policy
from miles_agents.rollout.source import TaskSource
from miles_agents.rollout.workers import GroupWorkers
from miles_agents.runs.environment import answer_checker
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.html_report import write_report
from miles_agents.runs.plot import write_plot
from miles_agents.runs.progress import Progress
from miles_agents.runs.state import write_overrides
from miles_agents.runs.tables import (
    Row,
    before_after_table,
    end_banner,
    episodes_side_by_side,
    next_commands,
    pair_episodes,
    print_commands,
    start_banner,
)
from miles_agents.runs.trackers import Trackers, open_trackers
from miles_agents.runs.trajectories import read_trajectories, write_trajectories
from miles_agents.types import Task, Trajectory

OUTPUTS = Path("outputs")
_SHOWN_EPISODES = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What is opened and checked before a run folder is made."""

    model: Path
    chat: ChatFormat
    environments: EnvironmentPool
    others: Mapping[str, Policy]  # by seat, who is not trained
    sandboxes: SandboxProvider | None
    train_tasks: Sequence[Task]
    held_out: Sequence[Task]
    final: Sequence[Task]


class _Machines(NamedTuple):
    trainer: Trainer
    algorithm: Algorithm
    engine: RolloutEngine
    sync: WeightSync


async def train(invocation: Invocation, env_class: type[Env], *, console: Console | None = None) -> int:
    """Carry out a training run; the exit code comes back.

    Raises:
        UsageError: bad input; nothing was written then.
        FailureRateError: too many episodes were lost.
    """
    config: schema.TrainConfig = invocation.config
    console = console or Console(file=sys.stdout)
    async with opened(config, env_class, console) as opened_parts, _machines(config, opened_parts.model) as machines:
        with _run_folder(invocation, opened_parts.model) as run:
            return await _Run(invocation, run, opened_parts, machines, console).carry_out()


@asynccontextmanager
async def opened(config: schema.TrainConfig, env_class: type[Env], console: Console) -> AsyncIterator[Opened]:
    """Check the sums and open model, environment and sandbox; what is open is closed at the end."""
    assembly.check_training(config)
    plan = assembly.plan_batch(config)
    if (folder := given_folder(config)) and not config.resume:
        RunFolder.refuse_existing(folder)
    tasks = assembly.make_environments(config.env, env_class, None)
    assembly.check_modalities(tasks.catalogue)
    train_tasks = tasks.tasks("train")
    held_out = tasks.tasks(config.eval.split)[: config.eval.tasks]
    final = tasks.tasks(config.eval.final_split)[: config.eval.final_tasks]
    TaskSource(train_tasks, seed=config.seed)  # refuses tasks it cannot draw from
    model = await make_model(config.model, console)
    plan.check(model_context=assembly.model_shape(model).context)
    chat = make_chat(config.model, model)
    async with tasks.shared():
        assembly.check_prompts(chat, tasks, [*train_tasks, *held_out, *final], config.rollout.max_tokens)
        sandboxes = await assembly.open_sandboxes(config.sandbox) if assembly.needs_sandbox(tasks) else None
        environments = assembly.make_environments(config.env, env_class, sandboxes)
        seated = opponents(config, tasks.catalogue, concurrency=assembly.concurrency_of(config))
        async with sandboxes or nullcontext(), environments.shared(), seated as others:
            yield Opened(
                model=model,
                chat=chat,
                environments=environments,
                others=others,
                sandboxes=sandboxes,
                train_tasks=train_tasks,
                held_out=held_out,
                final=final,
            )


@asynccontextmanager
async def _machines(config: schema.TrainConfig, model: Path) -> AsyncIterator[_Machines]:
    """Load the model into a trainer and start an engine; both are closed at the end."""
    algorithm = assembly.make_algorithm(config.algorithm)
    trainer = assembly.make_trainer(config, model, algorithm)
    engine = assembly.make_engine(
        config.engine,
        assembly.EnginePlan(
            max_tokens=config.rollout.max_tokens,
            concurrency=assembly.concurrency_of(config),
            threads=assembly.engine_threads(config.engine, config.cluster),
            dtype=config.model.dtype,
        ),
    )
    sync = assembly.make_weight_sync(config)
    try:
        await trainer.start()
        await engine.start()
        await sync.connect(trainer, engine)
        yield _Machines(trainer, algorithm, engine, sync)
    finally:
        await engine.close()
        await trainer.close()


async def make_model(config: schema.ModelConfig, console: Console) -> Path:
    """The model's folder, made in a thread; if the operator interrupts, the making ends at its next report."""
    interrupted = threading.Event()
    tell = model_progress(console, config.name)

    def on_progress(text: str) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        tell(text)

    try:
        return await asyncio.to_thread(assembly.resolve_model, config, on_progress=on_progress)
    except asyncio.CancelledError:
        interrupted.set()
        raise


def model_progress(console: Console, name: str) -> Callable[[str], None]:
    """Tells the operator what is going on while a model is made: a changing line, or a line every ten seconds."""
    last = [0.0]

    def tell(text: str) -> None:
        if console.is_terminal and not os.environ.get("CI"):
            console.print(f"making the {name} model: {text}", end="\r", soft_wrap=True, markup=False, highlight=False)
        elif time.monotonic() - last[0] > 10:
            last[0] = time.monotonic()
            console.print(f"making the {name} model: {text}", markup=False, highlight=False)

    return tell


def _run_folder(invocation: Invocation, model: Path) -> RunFolder:
    config: schema.TrainConfig = invocation.config
    if config.resume:
        return RunFolder.open(given_folder(config) or OUTPUTS / "last", writing=True)
    run = RunFolder.create(
        OUTPUTS,
        run_dir=given_folder(config),
        label=label_of(config.env.id),
        config=invocation.yaml,
        seed=config.seed,
    )
    write_overrides(run.path, invocation.overrides, model=model)
    return run


def given_folder(config: schema.TrainConfig | schema.EvaluateConfig) -> Path | None:
    """The run folder that the operator asked for."""
    return Path(config.run_dir).expanduser() if config.run_dir else None


def label_of(env_id: str) -> str:
    """The environment's short name, for folders and tables."""
    return env_id.rsplit(":", 1)[-1].rsplit("-v", 1)[0]


class _Run:
    """One run's course; holds what its phases share."""

    def __init__(
        self, invocation: Invocation, run: RunFolder, opened: Opened, machines: _Machines, console: Console
    ) -> None:
        self._invocation = invocation
        config = self._config = invocation.config
        self._run = run
        self._opened = opened
        self._machines = machines
        self._console = console
        self._store = run.checkpoints(keep_last=config.logging.keep_last, keep_best=config.logging.keep_best)

    async def carry_out(self) -> int:
        """Score, train, score, report."""
        started = time.perf_counter()
        loop = TrainingLoop(self._parts(), self._settings())
        if self._config.resume:
            await self._take_checkpoint(loop)
            self._keep_words(loop)
        said = "stopping: writing a checkpoint of the last finished step (again to stop at once)"
        with StopOnSignals(loop.stop, said=said), self._trackers(loop) as trackers:
            return await self._phases(loop, trackers, started - loop.counters.wall_s)

    async def _phases(self, loop: TrainingLoop, trackers: Trackers, started: float) -> int:
        self._print_start()
        try:
            await loop.prepare()
            before = await self._score_before(loop)
            with self._progress(loop) as progress:
                loop.observers = [progress.update, trackers.log]
                await loop.run()
            after = await loop.evaluate(self._opened.final)
            without_tools = await self._score_without_tools(loop)
        except StoppedEarlyError as stopped:
            await loop.checkpoint()
            self._console.print(
                f"{stopped}. Go on with:\n  python -m miles_agents.train resume=true run_dir={self._shown_path}",
                markup=False,
                highlight=False,
            )
            return EXIT_INTERRUPTED
        self._conclude(loop, _Scores(before, after, without_tools), time.perf_counter() - started, trackers)
        return EXIT_OK

    @contextmanager
    def _trackers(self, loop: TrainingLoop) -> Iterator[Trackers]:
        logging_config = self._config.logging
        trackers = open_trackers(
            [name for name in ("tensorboard", "wandb", "trackio") if getattr(logging_config, name)],
            folder=self._run.path,
            run_name=self._run.name,
            project=logging_config.project,
            config=asdict(self._config),
            resume_step=loop.counters.step + 1 if self._config.resume else None,
        )
        try:
            yield trackers
        finally:
            trackers.finish()

    async def _take_checkpoint(self, loop: TrainingLoop) -> None:
        checkpoint = self._store.latest_complete()
        if checkpoint is None and (self._store.scan().complete or self._store.scan().damaged):
            raise CheckpointError(f"{self._run.path} has no undamaged checkpoint to go on from; see the warnings")
        if checkpoint is None:
            self._console.print("the run had no checkpoint yet: it starts again from its first step", highlight=False)
            self._run.rewind(last_step=-1)
            return
        if checkpoint.step > self._config.steps:
            raise RunFolderError(f"the run is at step {checkpoint.step} already; give steps={checkpoint.step} or more")
        await loop.resume(checkpoint)

    def _keep_words(self, loop: TrainingLoop) -> None:
        words, yaml = self._invocation.overrides, self._invocation.yaml
        write_overrides(self._run.path, words)
        if changed := changed_keys(self._run.config_file.read_text(encoding="utf-8"), yaml):
            self._run.renew_config(yaml, last_step=loop.counters.step)
            self._console.print(f"going on with other values of: {', '.join(changed)}", highlight=False)

    async def _score_before(self, loop: TrainingLoop) -> Scored:
        file = self._run.evaluation_file(0)
        if loop.counters.accuracy_before is not None:
            episodes = read_trajectories(file) if file.is_file() else []
            return Scored(loop.counters.accuracy_before, loop.counters.tool_rate_before or 0.0, episodes)
        evaluation = await loop.evaluate(self._opened.final)
        without_tools = await self._score_without_tools(loop)
        write_trajectories(file, evaluation.trajectories, decode=self._pieces)
        scored = Scored.of(evaluation)
        loop.counters.accuracy_before = scored.accuracy
        loop.counters.tool_rate_before = scored.tool_call_rate
        refused = ""
        if without_tools is not None:
            loop.counters.no_tool_accuracy_before = without_tools.total.accuracy
            refused = f", {without_tools.total.accuracy or 0.0:.3f} with tool calls refused"
        total = evaluation.total
        self._console.print(
            f"held-out accuracy before training: {scored.accuracy:.3f}{refused} "
            f"({total.tasks} {self._config.eval.final_split} tasks, temperature {self._config.eval.temperature:g})",
            markup=False,
            highlight=False,
        )
        return scored

    async def _score_without_tools(self, loop: TrainingLoop) -> Evaluation | None:
        pool = self._opened.environments
        if not pool.tools():
            return None
        evaluation = await loop.evaluate(self._opened.final, environments=pool.refusing_tools())
        write_trajectories(
            self._run.evaluation_file(loop.counters.step, "no_tool"), evaluation.trajectories, decode=self._pieces
        )
        return evaluation

    def _conclude(self, loop: TrainingLoop, scores: _Scores, wall_s: float, trackers: Trackers) -> None:
        step = loop.counters.step
        write_trajectories(self._run.evaluation_file(step), scores.after.trajectories, decode=self._pieces)
        total = scores.after.total
        no_tool = scores.without_tools.total.accuracy if scores.without_tools else None
        summary = {
            "steps": step,
            "seed": self._config.seed,
            "wall_s": round(wall_s, 3),
            "accuracy_before": scores.before.accuracy,
            "accuracy_after": total.accuracy,
            "accuracy_after_low": total.accuracy_low,
            "accuracy_after_high": total.accuracy_high,
            "no_tool_accuracy_before": loop.counters.no_tool_accuracy_before,
            "no_tool_accuracy_after": no_tool,
            "tool_call_rate_before": scores.before.tool_call_rate,
            "tool_call_rate_after": total.tool_call_rate,
            "max_logprob_abs_diff": loop.counters.max_logprob_abs_diff,
            "max_staleness": loop.counters.max_staleness,
            "empty_steps": loop.counters.empty_steps,
            "episodes": self._ledger.episodes,
            "failures_by_cause": self._ledger.failures,
            "retried_episodes": self._ledger.retried,
            "discarded_groups": self._buffer.discarded,
            "restarted_groups": self._buffer.restarted,
            "final_split": self._config.eval.final_split,
            "final_tasks": total.tasks,
            "tracker_failures": trackers.failures,
        }
        self._run.write_summary(summary)
        write_plot(self._run.plot_file, self._run.read_metrics(), title=self._run.name)
        write_report(self._run)
        self._print_end(scores, summary)

    def _settings(self) -> LoopSettings:
        config = self._config
        return LoopSettings(
            steps=config.steps,
            seed=config.seed,
            groups_per_step=config.rollout.groups_per_step,
            minibatches=config.trainer.minibatches,
            epochs=config.trainer.epochs,
            concurrency=assembly.concurrency_of(config),
            evaluate_every=config.eval.every,
            evaluate_samples=config.eval.samples,
            evaluate_max_failure_rate=config.eval.max_failure_rate,
            checkpoint_every=config.logging.checkpoint_every,
            trajectories_every=config.logging.trajectories_every,
        )

    def _parts(self) -> Parts:
        config, opened = self._config, self._opened
        trainer, algorithm, engine, sync = self._machines
        self._ledger = FailureLedger(max_failure_rate=config.rollout.max_failure_rate)
        self._buffer = BoundedStalenessBuffer(
            TaskSource(opened.train_tasks, seed=config.seed),
            groups_per_step=config.rollout.groups_per_step,
            max_staleness=config.rollout.max_staleness,
            steps=config.steps,
        )
        return Parts(
            trainer=trainer,
            algorithm=algorithm,
            engine=engine,
            sync=sync,
            buffer=self._buffer,
            workers=GroupWorkers(
                player=self._player(config.rollout),
                environments=opened.environments,
                ledger=self._ledger,
                group_size=config.rollout.group_size,
                concurrency=assembly.concurrency_of(config),
                retries=config.rollout.retries,
                seed=config.seed,
            ),
            environments=opened.environments,
            evaluator=self._player(config.eval),
            ledger=self._ledger,
            run=self._run,
            checkpoints=self._store,
            held_out=opened.held_out,
            token_pieces=self._pieces,
            sandboxes=opened.sandboxes,
        )

    def _player(self, sampling: schema.RolloutConfig | schema.EvalConfig) -> EpisodePlayer:
        config, opened, engine = self._config, self._opened, self._machines.engine
        deadline_s = config.engine.request_deadline_s
        return assembly.make_player(engine, opened.chat, config.rollout, sampling, deadline_s, others=opened.others)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._piece(int(each)) for each in ids]

    @lru_cache(maxsize=100_000)  # noqa: B019 — one run, one process
    def _piece(self, token: int) -> str:
        return self._opened.chat.decode([token])

    @property
    def _shown_path(self) -> Path:
        path = self._run.path
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path

    def _progress(self, loop: TrainingLoop) -> Progress:
        return Progress(
            self._config.steps, self._console, mode=self._config.logging.progress, first_step=loop.counters.step
        )

    def _print_start(self) -> None:
        config = self._config
        plan = assembly.plan_batch(config)
        sandbox = self._opened.sandboxes.description if self._opened.sandboxes else "none needed"
        facts = {
            "environment": f"{config.env.id}, {len(self._opened.train_tasks):,} train tasks",
            "model": f"{config.model.name}, {assembly.model_shape(self._opened.model).parameters:,} parameters",
            "sandbox": sandbox,
            "answers": answer_checker(),
            "batch": f"{plan.groups_per_step} tasks × {plan.group_size} episodes, {plan.updates} updates a step",
            "steps": f"{config.steps}, staleness at most {plan.max_staleness}, seed {config.seed}",
        }
        self._console.print(start_banner(self._shown_path, facts))

    def _print_end(self, scores: _Scores, summary: Mapping[str, Any]) -> None:
        total, no_tool = scores.after.total, summary["no_tool_accuracy_after"]
        rows = [
            Row("accuracy", scores.before.accuracy, total.accuracy),
            Row("tool-call rate", scores.before.tool_call_rate, total.tool_call_rate),
        ]
        if no_tool is not None:
            rows.append(Row("accuracy, tools refused", summary["no_tool_accuracy_before"], no_tool))
        title = f"{total.tasks} held-out tasks ({summary['final_split']} split)"
        self._console.print(before_after_table(rows, title=title))
        pairs = pair_episodes(scores.before.trajectories, scores.after.trajectories, limit=_SHOWN_EPISODES)
        self._console.print(episodes_side_by_side(pairs, width=self._console.width))
        folder = self._shown_path
        facts = {
            "accuracy": f"{scores.before.accuracy:.3f} → {total.accuracy or 0.0:.3f}",
            "wall time": f"{summary['wall_s']:.0f} s",
            "report": str(folder / "report.html"),
        }
        self._console.print(end_banner(folder, facts))
        commands = next_commands(folder, self._invocation.overrides, split=summary["final_split"])
        print_commands(self._console, commands)


@dataclass(frozen=True, slots=True)
class Scored:
    """Held-out figures and their episodes."""

    accuracy: float
    tool_call_rate: float
    trajectories: Sequence[Trajectory]

    @classmethod
    def of(cls, evaluation: Evaluation) -> Scored:
        """From an evaluation."""
        total = evaluation.total
        return cls(total.accuracy or 0.0, total.tool_call_rate, evaluation.trajectories)


@dataclass(frozen=True, slots=True)
class _Scores:
    before: Scored
    after: Evaluation
    without_tools: Evaluation | None
