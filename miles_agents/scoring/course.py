"""An evaluation from its configuration to its tables: what `python -m miles_agents.evaluate` does.

Order: check the words → find environments, tasks and model → see what is recorded → play the rest, writing down each
episode as it ends → figures, files, tables. Nothing is written before the first episode has ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import Progress as Bar

from miles_agents import assembly
from miles_agents.command import EXIT_OK, Invocation
from miles_agents.configs import schema
from miles_agents.contracts import SandboxProvider
from miles_agents.errors import ConfigError
from miles_agents.evaluation import IntervalKind, Summing, play_episodes, row_keys_of, summarize
from miles_agents.evaluation.playing import with_rewards_of_groups
from miles_agents.evaluation.votes import grouped_answers
from miles_agents.opponents import opponents
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.policy import Policy
from miles_agents.rollout.sandbox_meter import SandboxMeter
from miles_agents.scoring.policies import EvaluatedModel, evaluated_policy, find_model
from miles_agents.scoring.records import Records, check_folder
from miles_agents.scoring.results import RESULTS, Played, Scored, write_results, write_times
from miles_agents.scoring.subjects import Subject, subjects_of
from miles_agents.scoring.tables import subject_block
from miles_agents.types import Trajectory

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


async def score(invocation: Invocation, *, console: Console | None = None) -> int:
    """Carry out an evaluation.

    Raises:
        UsageError: bad input; nothing was written then.
        FailureRateError: more than `max_failure_rate` of the episodes of an environment were lost; the results were
            written.
    """
    config: schema.EvaluateConfig = invocation.config
    console = console or Console(file=sys.stdout)
    _refuse_training_words(invocation.overrides)
    assembly.check_evaluation(config)
    check_folder(config)
    subjects = subjects_of(invocation)
    model = await find_model(config, console)
    async with AsyncExitStack() as stack:
        for subject in subjects:
            await stack.enter_async_context(subject.catalogue.shared())
            if model.chat is not None:
                assembly.check_prompts(model.chat, subject.catalogue, subject.tasks, config.rollout.max_tokens)
                _say_if_tools_are_not_shown(model, subject, console)
        records = stack.enter_context(closing(Records(invocation, subjects, model)))
        evaluation = _Evaluation(config, subjects, records, console)
        try:
            await evaluation.play(model)
        except asyncio.CancelledError:
            evaluation.say_how_to_go_on()
            raise
        scored = await evaluation.conclude(model)
    for each in scored:
        each.evaluation.check_lost(config.max_failure_rate, key="max_failure_rate")
    return EXIT_OK


def _refuse_training_words(overrides: Sequence[str]) -> None:
    """Refuse keys of the rollout group that mean nothing to an evaluation, instead of ignoring them."""
    for key in (word.partition("=")[0] for word in overrides):
        if key in _OF_TRAINING_ALONE:
            own = _OF_TRAINING_ALONE[key]
            hint = f"; an evaluation has its own: write {own}=…" if own else ": leave it out"
            raise ConfigError(f"'{key}' is for training{hint}")


def _say_if_tools_are_not_shown(model: EvaluatedModel, subject: Subject, console: Console) -> None:
    tools = [tool.name for tool in subject.catalogue.tools()]
    if tools and model.chat is not None and not model.chat.shows_tools:
        console.print(
            f"{subject.name}: the model's chat template puts no tools into the prompt; what the model is to know of "
            f"{', '.join(tools)} has to be in the task's messages",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


class _Evaluation:
    """One evaluation's course; holds what its phases share."""

    def __init__(
        self, config: schema.EvaluateConfig, subjects: Sequence[Subject], records: Records, console: Console
    ) -> None:
        self._config = config
        self._subjects = subjects
        self._records = records
        self._console = console
        self._played: dict[str, Played] = {}
        self._sandbox_figures: dict[str, float] = {}

    async def play(self, model: EvaluatedModel) -> None:
        """Play what is not recorded; without such episodes no model is loaded and no sandbox started."""
        waiting = [subject for subject in self._subjects if subject.to_play]
        self._say_what_is_recorded()
        if not waiting:
            return
        concurrency = max(self._concurrency(subject) for subject in waiting)
        needs_sandbox = any(assembly.needs_sandbox(subject.catalogue) for subject in waiting)
        sandboxes = await assembly.open_sandboxes(self._config.sandbox) if needs_sandbox else None
        with Bar(console=self._console, transient=True, disable=not self._console.is_terminal) as bar:
            async with (
                sandboxes or nullcontext(),
                evaluated_policy(self._config, model, concurrency=concurrency) as policy,
                AsyncExitStack() as stack,
            ):
                # All of them before the first episode: one that is not there is no reason to lose hours of playing.
                others = [await stack.enter_async_context(self._opponents(subject)) for subject in waiting]
                for subject, seated in zip(waiting, others, strict=True):
                    line = bar.add_task(subject.name, total=len(subject.to_play))
                    player = EpisodePlayer(
                        policy=policy, deadline_s=self._config.rollout.episode_deadline_s, others=seated
                    )
                    await self._play_subject(subject, player, sandboxes, partial(bar.advance, line))
        meter = SandboxMeter(sandboxes).read()
        self._sandbox_figures = {name.removeprefix("sandbox/"): value for name, value in meter.items()}

    async def _play_subject(
        self,
        subject: Subject,
        player: EpisodePlayer,
        sandboxes: SandboxProvider | None,
        advance: Callable[[], None],
    ) -> None:
        episodes, policy = subject.to_play, player.policy

        async def on_episode(trajectories: Sequence[Trajectory]) -> None:
            await self._records.append(subject, trajectories)
            advance()

        pool = assembly.make_environments(subject.config, subject.env_class, sandboxes)
        before, began = policy.sampled_tokens, time.perf_counter()
        async with pool.shared():
            played = await play_episodes(
                player,
                pool.refusing_tools() if self._config.refuse_tools else pool,
                episodes,
                concurrency=self._concurrency(subject),
                on_episode=on_episode,
            )
        wall_s = time.perf_counter() - began
        subject.take(played, subject.name)
        self._played[subject.name] = Played(len(episodes), wall_s, policy.sampled_tokens - before)

    def _opponents(self, subject: Subject) -> AbstractAsyncContextManager[dict[str, Policy]]:
        config = replace(self._config, rollout=replace(self._config.rollout, opponents=subject.opponents))
        return opponents(config, subject.catalogue.catalogue, concurrency=self._concurrency(subject))

    def _concurrency(self, subject: Subject) -> int:
        return assembly.evaluation_concurrency_of(self._config, len(subject.tasks))

    async def conclude(self, model: EvaluatedModel) -> list[Scored]:
        """Work out the figures, write the files, print the tables."""
        config = self._config
        scored = [await self._scored(subject) for subject in self._subjects]
        facts: dict[str, Any] = {"model": model.name, "split": config.split}
        if config.shard is not None:
            facts["shard"] = config.shard
        run = self._records.run
        write_results(run.path, scored, facts=facts)
        write_times(run.path, scored, sandbox=self._sandbox_figures)
        name = model.name if model.folder is None else config.model.name
        for each in scored:
            self._console.print(subject_block(each, split=config.split, model=name))
        self._console.print(f"results: {run.path / RESULTS}", markup=False, highlight=False, soft_wrap=True)
        return scored

    async def _scored(self, subject: Subject) -> Scored:
        config, env = self._config, subject.catalogue.catalogue
        alone = subject.trajectories()
        rewarded = await with_rewards_of_groups(env, alone)
        self._records.rewrite(subject, rewarded, alone)
        shared = subject.overlap.contaminated if subject.overlap is not None else frozenset()
        clean = frozenset(task.id for task in subject.tasks) - shared
        evaluation = summarize(
            env,
            rewarded,
            Summing(
                row_keys=row_keys_of(subject.tasks),
                groups={"contaminated": shared, "not contaminated": clean} if shared else {},
                interval=IntervalKind(config.interval),
                seed=config.seed,
                answers=await grouped_answers(rewarded) if config.samples > 1 else {},
            ),
        )
        return Scored(
            name=subject.name,
            env_id=subject.config.id,
            evaluation=evaluation,
            overlap=subject.overlap,
            opponents=subject.opponents,
            played=self._played.get(subject.name, Played(0, 0.0, 0)),
        )

    def _say_what_is_recorded(self) -> None:
        config = self._config
        if not config.resume and not config.merge:
            return
        total = sum(len(subject.episodes) for subject in self._subjects)
        missing = sum(len(subject.to_play) for subject in self._subjects)
        rest = f"{missing} are played now" if missing else "none is left to play"
        self._console.print(f"{total - missing} of {total} episodes are recorded; {rest}", highlight=False)

    def say_how_to_go_on(self) -> None:
        """After an interruption: what is kept, and the words that go on from there."""
        if self._records.begun:
            self._console.print(
                "what was played is recorded. Go on with:\n  python -m miles_agents.evaluate resume=true "
                f"run_dir={self._records.run.path}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
