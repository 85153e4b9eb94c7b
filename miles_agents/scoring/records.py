"""The run folder of an evaluation: made with the first episode that ends, gone on with by `resume=true`, merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from miles_agents.command import Invocation
from miles_agents.configs import schema
from miles_agents.configs.compose import changed_keys
from miles_agents.errors import ConfigError, RunFolderError
from miles_agents.evaluation.records import EpisodeLog, read_log, write_log
from miles_agents.runs.durable import write_atomic
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.state import write_overrides
from miles_agents.scoring.policies import EvaluatedModel
from miles_agents.scoring.subjects import Subject
from miles_agents.training import OUTPUTS, given_folder
from miles_agents.types import Trajectory

STATE = "evaluation.json"  # {"model": …}: what was evaluated; a run folder without it is no evaluation's

# What changes no episode: with how much at the same time, how patiently, under which key it is played. The model is
# compared by its folder or its name on the server.
_MAY_CHANGE = frozenset(
    {
        "rollout.concurrency",
        "engine.slots",
        "engine.connections",
        "engine.retries",
        "engine.api_key_env",
        "max_failure_rate",
        "model.name",
        "model.source",
        "dry_run",
    }
)
_OF_PARTS = frozenset({"shard", "merge"})  # in which a run and the runs that it merges differ


class Records:
    """What is recorded of an evaluation, and where more of it goes.

    Args:
        invocation: of the evaluation.
        subjects: its environments; they are given what is recorded already.
        model: what is evaluated.

    Raises:
        RunFolderError: the folder exists and `resume=true` was not given, or does not go with this evaluation.
        ConfigError: other settings than those it was begun with; the keys are named.
    """

    def __init__(self, invocation: Invocation, subjects: Sequence[Subject], model: EvaluatedModel) -> None:
        config: schema.EvaluateConfig = invocation.config
        self._invocation = invocation
        self._subjects = subjects
        self._model = model
        self._folder = given_folder(config)
        self._logs: dict[str, EpisodeLog] = {}
        self._run: RunFolder | None = None
        if config.resume:
            self._run = self._reopened()
        for source in config.merge:
            self._take(Path(source).expanduser(), parts=True)

    @property
    def run(self) -> RunFolder:
        """The run folder, made now if it is not there yet."""
        if self._run is None:
            self._run = self._made()
        return self._run

    @property
    def begun(self) -> bool:
        """The run folder is there."""
        return self._run is not None

    async def append(self, subject: Subject, trajectories: Sequence[Trajectory]) -> None:
        """Write down an episode that has ended; see `EpisodeLog.append`."""
        if subject.name not in self._logs:
            self._logs[subject.name] = EpisodeLog(self._file(self.run, subject))
        await self._logs[subject.name].append(trajectories)

    def rewrite(self, subject: Subject, rewarded: Sequence[Trajectory], alone: Sequence[Trajectory]) -> None:
        """Write an environment's trajectories in order, once each.

        Args:
            subject: the environment.
            rewarded: with the rewards that compare samples.
            alone: without them, in the same order.
        """
        if subject.name in self._logs:
            self._logs.pop(subject.name).close()
        write_log(self._file(self.run, subject), zip(rewarded, alone, strict=True))

    def close(self) -> None:
        """Close the files and give up the folder's lock."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        if self._run is not None:
            self._run.close()

    def _file(self, run: RunFolder, subject: Subject) -> Path:
        return run.evaluation_file(0, subject.name if len(self._subjects) > 1 else "")

    def _made(self) -> RunFolder:
        config: schema.EvaluateConfig = self._invocation.config
        run = RunFolder.create(
            OUTPUTS,
            run_dir=self._folder,
            label=f"eval-{'-'.join(subject.name for subject in self._subjects)[:80]}",
            config=self._invocation.yaml,
            seed=config.seed,
            link_last=False,  # outputs/last stays the newest training run
        )
        write_overrides(run.path, self._invocation.overrides, model=self._model.folder)
        write_atomic(run.path / STATE, json.dumps({"model": self._model.name}) + "\n")
        return run

    def _reopened(self) -> RunFolder:
        assert self._folder is not None, "check_folder() comes before"
        run = RunFolder.open(self._folder, writing=True)
        try:
            self._take(run.path, parts=False)
        except BaseException:
            run.close()
            raise
        return run

    def _take(self, folder: Path, *, parts: bool) -> None:
        """Take the episodes of a run folder that was begun with the same settings."""
        with RunFolder.open(folder) as run:
            model = model_of(run.path)
            changed = changed_keys(run.config_file.read_text(encoding="utf-8"), self._invocation.yaml)
            changed = [key for key in changed if key not in _MAY_CHANGE and not (parts and key in _OF_PARTS)]
            if model != self._model.name:
                changed.insert(0, f"model ({model}, now {self._model.name})")
            if changed:
                raise ConfigError(
                    f"{folder} was begun with other values of: {', '.join(changed)}; give the same, or another run_dir"
                )
            for subject in self._subjects:
                file = self._file(run, subject)
                subject.take(read_log(file), str(file))


def check_folder(config: schema.EvaluateConfig) -> None:
    """Refuse early what cannot be: a folder that exists, none to go on with, one that cannot be made.

    Raises:
        UsageError: what to type instead.
    """
    folder = given_folder(config)
    if config.resume:
        if folder is None:
            raise ConfigError("resume=true goes on with an evaluation: name its folder, run_dir=…")
        with RunFolder.open(folder) as run:
            model_of(run.path)
    elif folder is not None:
        RunFolder.refuse_existing(folder)
    else:
        RunFolder.check_writable(OUTPUTS)


def model_of(run: Path) -> str:
    """What the evaluation in a run folder evaluated: a folder, or a name on a server.

    Raises:
        RunFolderError: the folder holds no evaluation.
    """
    try:
        return str(json.loads((run / STATE).read_text(encoding="utf-8"))["model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{run} holds no evaluation: give the run folder that python -m miles_agents.evaluate left"
        ) from error
