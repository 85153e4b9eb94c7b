"""The environments of an evaluation and their episodes: which there are, which are recorded, which are to be played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from miles_agents import assembly
from miles_agents.command import Invocation, load_env_class
from miles_agents.configs import schema
from miles_agents.configs.compose import short_names
from miles_agents.contracts import Env
from miles_agents.errors import ConfigError, RunFolderError
from miles_agents.evaluation.overlap import TaskOverlap, task_overlap
from miles_agents.evaluation.playing import episodes_of
from miles_agents.evaluation.shards import Shard
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.opposed import check_seats
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.runs.json_values import from_json, to_json
from miles_agents.types import Task, Trajectory

Key = tuple[str, int]
"""Of an episode: its task's id and the index of its sample."""


@dataclass(slots=True, kw_only=True)
class Subject:
    """One environment: its tasks, the episodes that are asked for, and the trajectories that there are."""

    name: str  # short, for files and tables
    config: schema.EnvConfig
    env_class: type[Env]
    catalogue: EnvironmentPool  # without sandboxes
    tasks: list[Task]
    episodes: list[EpisodeSpec]
    seats: tuple[str, ...]  # those that are evaluated
    opponents: dict[str, str] = field(default_factory=dict)  # who plays the others
    overlap: TaskOverlap | None = None
    played: dict[Key, list[Trajectory]] = field(default_factory=dict)  # as recorded, by seat

    @property
    def to_play(self) -> list[EpisodeSpec]:
        """Episodes without a record, and lost ones."""
        return [each for each in self.episodes if not _is_kept(self.played.get(_key(each), ()))]

    def trajectories(self) -> list[Trajectory]:
        """In the order of tasks and samples, as they were before rewards that compare samples."""
        return [trajectory for each in self.episodes for trajectory in self.played[_key(each)]]

    def take(self, recorded: Sequence[Trajectory], source: str) -> None:
        """Take recorded episodes of this evaluation; lost ones only if there is no other record.

        Args:
            recorded: in any order.
            source: where they come from, for messages.

        Raises:
            RunFolderError: one is no episode of this evaluation, or its task has changed.
        """
        wanted = {_key(each): each for each in self.episodes}
        found: dict[Key, list[Trajectory]] = {}
        for trajectory in recorded:
            key = (trajectory.task_id, trajectory.sample_index)
            if key not in wanted:
                raise RunFolderError(
                    f"{source}: {trajectory.id} is no episode of this evaluation: other tasks or samples"
                )
            _check_same(trajectory, wanted[key], source)
            found.setdefault(key, []).append(trajectory)
        for key, seats in found.items():
            complete = {each.seat for each in seats} == set(self.seats)
            if complete and not _is_kept(self.played.get(key, ())):
                self.played[key] = sorted(seats, key=lambda each: self.seats.index(each.seat))


def _key(episode: EpisodeSpec) -> Key:
    return episode.task.id, episode.sample_index


def _is_kept(trajectories: Sequence[Trajectory]) -> bool:
    return bool(trajectories) and all(each.status.is_valid for each in trajectories)


def _check_same(trajectory: Trajectory, episode: EpisodeSpec, source: str) -> None:
    task = episode.task
    facts = from_json(to_json({**task.metadata, "answer": task.answer}, f"task {task.id}"))
    alone = trajectory.group_id == episode.group_id
    if trajectory.seed != episode.seed or trajectory.metadata != facts or (alone and trajectory.prompt != task.prompt):
        raise RunFolderError(
            f"{source}: task {task.id} was another when {trajectory.id} was played (its prompt, answer or facts, or "
            "the seed); give another run_dir"
        )


def subjects_of(invocation: Invocation) -> list[Subject]:
    """The environments of an evaluation with their tasks.

    Raises:
        UsageError: no such split, it is empty, or a part of it is.
    """
    config: schema.EvaluateConfig = invocation.config
    subjects = [_subject(name, env, config) for name, env in environments_of(invocation).items()]
    _seat_opponents(subjects, {str(seat): str(who) for seat, who in config.rollout.opponents.items()})
    return subjects


def _seat_opponents(subjects: Sequence[Subject], asked: Mapping[str, str]) -> None:
    """Say who plays which seat of each environment; of several environments each takes those of its own seats.

    Raises:
        ConfigError: a seat that no environment has, or nobody is left to evaluate.
    """
    there = {seat for subject in subjects for seat in subject.catalogue.catalogue.seats}
    for subject in subjects:
        seats = subject.catalogue.catalogue.seats
        own = {seat: who for seat, who in asked.items() if seat in seats or seat not in there}
        check_seats(seats, own, key="rollout.opponents")
        subject.opponents = own
        subject.seats = tuple(seat for seat in seats if seat not in own)


def environments_of(invocation: Invocation) -> Mapping[str, schema.EnvConfig]:
    """The environments' configurations by short name."""
    if invocation.environments:
        return invocation.environments
    given = [word.partition("=")[2].strip("[]'\" ") for word in invocation.overrides if word.startswith("env=")]
    env: schema.EnvConfig = invocation.config.env
    return {short_names(given or [env.id])[0]: env}


def _subject(name: str, env: schema.EnvConfig, config: schema.EvaluateConfig) -> Subject:
    env_class = load_env_class(env.id)
    catalogue = assembly.make_environments(env, env_class, None)
    whole = catalogue.tasks(config.split)[: config.tasks]
    tasks = Shard.parse(config.shard).tasks(whole) if config.shard is not None else whole
    return Subject(
        name=name,
        config=env,
        env_class=env_class,
        catalogue=catalogue,
        tasks=tasks,
        episodes=episodes_of(tasks, samples=config.samples, seed=config.seed),
        seats=tuple(catalogue.catalogue.seats),
        overlap=_overlap(catalogue, tasks, config) if config.contamination else None,
    )


def _overlap(catalogue: EnvironmentPool, tasks: Sequence[Task], config: schema.EvaluateConfig) -> TaskOverlap:
    if config.split == "train":
        raise ConfigError("contamination=true compares with the train split; give another split to evaluate")
    if "train" not in catalogue.catalogue.splits:
        raise ConfigError(
            f"contamination=true: {type(catalogue.catalogue).__name__} has no train split to compare with; leave it out"
        )
    return task_overlap(catalogue.tasks("train"), tasks)
