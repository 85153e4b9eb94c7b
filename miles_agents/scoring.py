"""An evaluation from its configuration to its table: what `python -m miles_agents.evaluate` does."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from miles_agents import assembly
from miles_agents.chat import ChatFormat
from miles_agents.command import EXIT_OK, Invocation
from miles_agents.configs import schema
from miles_agents.contracts import Env, RolloutEngine, SandboxProvider
from miles_agents.errors import ConfigError
from miles_agents.evaluation import Evaluation, EvaluationRow, play_all, row_keys_of, summarize
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.sandbox_meter import SandboxMeter
from miles_agents.runs.durable import write_atomic
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.tables import printable
from miles_agents.runs.tool_figures import Percentiles, ToolFigures, ToolTable
from miles_agents.runs.trajectories import write_trajectories
from miles_agents.training import OUTPUTS, given_folder, label_of, make_model

RESULTS = "results.json"
TIMES = "times.json"  # what differs from one evaluation to the next of the same episodes
_OF_TRAINING_ALONE = {
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.top_k": "top_k",
    "rollout.max_failure_rate": "max_failure_rate",
    "rollout.group_size": "samples",
    "rollout.groups_per_step": "tasks",
    "rollout.max_staleness": "",
    "rollout.retries": "",
}


async def score(invocation: Invocation, env_class: type[Env], *, console: Console | None = None) -> int:
    """Carry out an evaluation.

    Raises:
        UsageError: bad input; nothing was written then.
        FailureRateError: more than `max_failure_rate` of the episodes were lost; the results were written.
    """
    config: schema.EvaluateConfig = invocation.config
    console = console or Console(file=sys.stdout)
    _refuse_training_words(invocation.overrides)
    assembly.check_evaluation(config)
    folder = given_folder(config)
    RunFolder.refuse_existing(folder) if folder else RunFolder.check_writable(OUTPUTS)
    catalogue = assembly.make_environments(config.env, env_class, None)
    tasks = catalogue.tasks(config.split)[: config.tasks]
    model = await make_model(config.model, console)
    assembly.check_tokens(config.rollout, model_context=assembly.model_shape(model).context)
    chat = ChatFormat.from_folder(model)
    async with catalogue.shared():
        assembly.check_prompts(chat, catalogue, tasks, config.rollout.max_tokens)
        sandboxes = await assembly.open_sandboxes(config.sandbox) if assembly.needs_sandbox(catalogue) else None
        pool = assembly.make_environments(config.env, env_class, sandboxes)
        async with sandboxes or nullcontext(), pool.shared(), _engine(config, model, len(tasks)) as engine:
            pool = pool.refusing_tools() if config.refuse_tools else pool
            began = time.perf_counter()
            evaluation = await _play(config, engine, chat, pool, console)
            wall_s = time.perf_counter() - began
    with RunFolder.create(
        OUTPUTS,
        run_dir=folder,
        label=f"eval-{label_of(config.env.id)}",
        config=invocation.yaml,
        seed=config.seed,
        link_last=False,  # outputs/last stays the newest training run
    ) as run:
        results = {"model": str(model), "env": config.env.id, "split": config.split, **evaluation.as_json()}
        write_atomic(run.path / RESULTS, json.dumps(results, indent=2) + "\n")
        times = {"wall_s": wall_s, "tools": evaluation.times_as_json(), "sandbox": _sandbox_figures(sandboxes)}
        write_atomic(run.path / TIMES, json.dumps(times, indent=2) + "\n")
        write_trajectories(run.evaluation_file(0), evaluation.trajectories)
        console.print(results_table(evaluation, title=f"{config.env.id}, {config.split} split, {config.model.name}"))
        console.print(f"results: {run.path / RESULTS}", markup=False, highlight=False, soft_wrap=True)
    evaluation.check_lost(config.max_failure_rate, key="max_failure_rate")
    return EXIT_OK


def _sandbox_figures(sandboxes: SandboxProvider | None) -> dict[str, float]:
    return {name.removeprefix("sandbox/"): value for name, value in SandboxMeter(sandboxes).read().items()}


def _refuse_training_words(overrides: Sequence[str]) -> None:
    """Refuse keys of the rollout group that mean nothing to an evaluation, instead of ignoring them."""
    for key in (word.partition("=")[0] for word in overrides):
        if key in _OF_TRAINING_ALONE:
            own = _OF_TRAINING_ALONE[key]
            hint = f"; an evaluation has its own: write {own}=…" if own else ": leave it out"
            raise ConfigError(f"'{key}' is for training{hint}")


@asynccontextmanager
async def _engine(config: schema.EvaluateConfig, model: Path, tasks: int) -> AsyncIterator[RolloutEngine]:
    from miles_agents.models.loading import load_causal_lm

    engine: Any = assembly.make_engine(
        config.engine,
        assembly.EnginePlan(
            max_tokens=config.rollout.max_tokens,
            concurrency=assembly.evaluation_concurrency_of(config, tasks),
            threads=assembly.engine_threads(config.engine, config.cluster),
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
            concurrency=assembly.evaluation_concurrency_of(config, len(tasks)),
            on_episode=lambda _: bar.advance(line),
        )
    return summarize(environments.catalogue, trajectories, row_keys=row_keys_of(tasks))


def results_table(evaluation: Evaluation, *, title: str) -> Group:
    """The figures as tables that fit into 80 columns: all tasks first, then a row per level, kind and so on; tools."""
    ks = [k for k in sorted(evaluation.total.pass_at_k) if k > 1]
    scores = _table(title, ["accuracy", "95 % interval", *(f"pass@{k}" for k in ks)])
    rates = _table("", ["episodes", "tool use", "tool errors", "malformed", "truncated", "lost"])
    for row in (evaluation.total, *evaluation.rows):
        name = f"{row.name} ({row.tasks})"
        scores.add_row(name, *_score_cells(row, ks))
        rates.add_row(name, *_rate_cells(row))
    called = evaluation.tools.unknown_calls or any(each.calls for each in evaluation.tools.tools.values())
    return Group(scores, rates, *([_tool_table(evaluation.tools)] if called else []))


def _tool_table(tools: ToolTable) -> Table:
    columns = ["calls", "p50", "p90", "p99", "wait p50", "p99"]
    table = _table("Tools: milliseconds of a call, and of the wait before it", columns, first="tool")
    table.add_column("errors", no_wrap=True)
    for name, each in tools.tools.items():
        table.add_row(Text(printable(name)), str(each.calls), *_time_cells(each), _errors(each))
    if tools.unknown_calls:
        table.add_row(Text("(unknown)", style="dim"), str(tools.unknown_calls))
    return table


def _time_cells(tool: ToolFigures) -> list[str]:
    nothing = Percentiles(math.nan, math.nan, math.nan)
    latency, wait = tool.latency or nothing, tool.wait or nothing
    return [_milliseconds(value) for value in (*latency, wait.p50, wait.p99)]


def _milliseconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    return f"{seconds * 1000:,.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def _errors(tool: ToolFigures) -> str:
    return "\n".join(f"{count} {kind}" for kind, count in tool.errors.items()) or "none"


def _table(title: str, columns: list[str], *, first: str = "tasks") -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold", min_width=9)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _score_cells(row: EvaluationRow, ks: list[int]) -> list[str]:
    scored = row.accuracy is not None
    return [
        f"{row.accuracy:.3f}" if scored else "no score",
        f"{row.accuracy_low:.3f}–{row.accuracy_high:.3f}" if scored else "–",
        *(f"{row.pass_at_k[k]:.3f}" if k in row.pass_at_k else "–" for k in ks),
    ]


def _rate_cells(row: EvaluationRow) -> list[str]:
    rates = (row.tool_call_rate, row.tool_error_rate, row.malformed_call_rate, row.truncated_rate)
    return [str(row.episodes), *(f"{rate:.2f}" for rate in rates), str(row.failed)]
