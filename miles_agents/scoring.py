"""An evaluation from its configuration to its table: what `python -m miles_agents.evaluate` does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from miles_agents import assembly
from miles_agents.chat import ChatFormat
from miles_agents.command import EXIT_FAILED, EXIT_OK, Invocation
from miles_agents.configs import schema
from miles_agents.contracts import Env, RolloutEngine
from miles_agents.errors import ConfigError
from miles_agents.evaluation import Evaluation, EvaluationRow, play_all, row_keys_of, summarize
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.runs.durable import write_atomic
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.trajectories import write_trajectories
from miles_agents.training import OUTPUTS, label_of, model_progress

RESULTS = "results.json"


async def score(invocation: Invocation, env_class: type[Env], *, console: Console | None = None) -> int:
    """Carry out an evaluation.

    Returns 0, or 1 if more than `max_failure_rate` of the episodes were lost.

    Raises:
        UsageError: bad input; nothing was written then.
    """
    config: schema.EvaluateConfig = invocation.config
    console = console or Console(file=sys.stdout)
    _check(config)
    if config.run_dir:
        RunFolder.refuse_existing(Path(config.run_dir))
    catalogue = assembly.make_environments(config.env, env_class, None)
    tasks = catalogue.tasks(config.split)[: config.tasks]
    model = await asyncio.to_thread(
        assembly.resolve_model, config.model, on_progress=model_progress(console, config.model.name)
    )
    chat = ChatFormat.from_folder(model)
    assembly.check_prompts(chat, catalogue, tasks, config.rollout.max_tokens)
    sandboxes = await assembly.open_sandboxes(config.sandbox) if assembly.needs_sandbox(catalogue) else None
    async with sandboxes or nullcontext(), _engine(config, model, len(tasks)) as engine:
        pool = assembly.make_environments(config.env, env_class, sandboxes)
        evaluation = await _play(config, engine, chat, pool.refusing_tools() if config.refuse_tools else pool, console)
    with RunFolder.create(
        OUTPUTS,
        run_dir=Path(config.run_dir) if config.run_dir else None,
        label=f"eval-{label_of(config.env.id)}",
        config=invocation.yaml,
        seed=config.seed,
        link_last=False,  # outputs/last stays the newest training run
    ) as run:
        results = {"model": str(model), "env": config.env.id, "split": config.split, **evaluation.as_json()}
        write_atomic(run.path / RESULTS, json.dumps(results, indent=2) + "\n")
        write_trajectories(run.evaluation_file(0), evaluation.trajectories)
        console.print(results_table(evaluation, title=f"{config.env.id}, {config.split} split, {config.model.name}"))
        console.print(f"results: {run.path / RESULTS}", markup=False, highlight=False, soft_wrap=True)
    lost = evaluation.total.failed / evaluation.total.episodes
    if lost > config.max_failure_rate:
        sys.stderr.write(
            f"{evaluation.total.failed} of {evaluation.total.episodes} episodes were lost "
            f"({evaluation.failures_by_cause}), more than max_failure_rate={config.max_failure_rate:g}\n"
        )
        return EXIT_FAILED
    return EXIT_OK


def _check(config: schema.EvaluateConfig) -> None:
    if config.samples < 1 or config.tasks < 1:
        raise ConfigError(f"samples={config.samples} and tasks={config.tasks} must be at least 1")
    if config.temperature == 0 and config.samples > 1:
        raise ConfigError(f"temperature=0 makes all {config.samples} samples of a task equal; give samples=1")


@asynccontextmanager
async def _engine(config: schema.EvaluateConfig, model: Path, tasks: int) -> AsyncIterator[RolloutEngine]:
    from miles_agents.models.loading import load_causal_lm

    concurrency = config.rollout.concurrency or tasks * config.samples
    engine: Any = assembly.make_engine(
        config.engine,
        assembly.EnginePlan(
            max_tokens=config.rollout.max_tokens,
            concurrency=concurrency,
            threads=assembly.threads_of(config.engine, config.cluster),
            dtype=config.model.dtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopt(await asyncio.to_thread(load_causal_lm, model), version=0)
        yield engine
    finally:
        await engine.close()


async def _play(
    config: schema.EvaluateConfig,
    engine: RolloutEngine,
    chat: ChatFormat,
    environments: EnvironmentPool,
    console: Console,
) -> Evaluation:
    player = assembly.make_player(engine, chat, config.rollout, config, config.engine.request_deadline_s)
    tasks = environments.tasks(config.split)[: config.tasks]
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("playing", total=len(tasks) * config.samples)
        trajectories = await play_all(
            player,
            environments,
            tasks,
            samples=config.samples,
            seed=config.seed,
            concurrency=config.rollout.concurrency or len(tasks) * config.samples,
            on_episode=lambda _: bar.advance(line),
        )
    return summarize(environments.env_class, trajectories, row_keys=row_keys_of(tasks))


def results_table(evaluation: Evaluation, *, title: str) -> Table:
    """The figures as a table: all tasks first, then a row per level, kind and so on."""
    ks = sorted(evaluation.total.pass_at_k)
    table = Table(title=title, title_justify="left")
    table.add_column("tasks")
    columns = ["episodes", "accuracy", "95 % interval", *(f"pass@{k}" for k in ks if k > 1)]
    for column in [*columns, "tool use", "tool errors", "malformed", "truncated", "lost"]:
        table.add_column(column, justify="right")
    for row in (evaluation.total, *evaluation.rows):
        table.add_row(*_cells(row, [k for k in ks if k > 1]))
    return table


def _cells(row: EvaluationRow, ks: list[int]) -> list[str]:
    scored = row.accuracy is not None
    return [
        f"{row.name} ({row.tasks})",
        str(row.episodes),
        f"{row.accuracy:.3f}" if scored else "no score",
        f"{row.accuracy_low:.3f}–{row.accuracy_high:.3f}" if scored else "–",
        *(f"{row.pass_at_k[k]:.3f}" if k in row.pass_at_k else "–" for k in ks),
        f"{row.tool_call_rate:.2f}",
        f"{row.tool_error_rate:.2f}",
        f"{row.malformed_call_rate:.2f}",
        f"{row.truncated_rate:.2f}",
        str(row.failed),
    ]
