"""What environments there are: each is looked at in a process of its own, which is ended when it takes too long.

Nothing that an environment imports is loaded into this process, and none can hold up the list.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from miles_agents import registry
from miles_agents.assembly import make_env_factory
from miles_agents.command import compose_command, load_env_class
from miles_agents.configs import schema
from miles_agents.configs.compose import Override, config_names, env_id_of, env_schema, to_object
from miles_agents.contracts import Env
from miles_agents.errors import MilesError
from miles_agents.tools.optional import require

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # a list fetches nothing

_VERSION = re.compile(r"-v\d+$")


@dataclass(slots=True)
class Listing:
    """One environment, as far as it is known."""

    name: str  # what to write after env=
    id: str
    description: str = ""  # the first line of its docstring, or of its YAML file
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its YAML file
    tools: Sequence[str] | None = None  # None: not known
    splits: Mapping[str, int] = field(default_factory=dict)  # → number of tasks
    problem: str = ""  # why the rest is missing, and what to type

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def list_environments(*, timeout_s: float, config_dir: Path | None = None) -> list[Listing]:
    """Every registered environment and every YAML file with settings of its own, sorted by name.

    Args:
        timeout_s: of each; what is not known by then stays unknown.
        config_dir: a folder of the user's own with YAML files by group.
    """
    context = multiprocessing.get_context("forkserver")  # warm, and without the threads of this process
    context.set_forkserver_preload([__name__])
    waiting = deque(sorted(_names(config_dir), key=lambda each: each.name))
    listings = list(waiting)
    running: list[_Look] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                running.append(_Look(waiting.popleft(), timeout_s, context, config_dir))
            wait([each.news for each in running], timeout=0.1)
            running = [each for each in running if not each.is_over()]
    finally:
        for each in running:
            each.end()
    return listings


def _names(config_dir: Path | None) -> Iterator[Listing]:
    presets = {name: _preset(name, config_dir) for name in config_names("env", config_dir)}
    shown = {name: each for name, each in presets.items() if each.settings or name != _bare(each.id)}
    yield from shown.values()
    for env_id in registry.environments.names():
        name = _bare(env_id)
        # A YAML file's name goes first, and a name without version is the newest one.
        plain = name not in shown and registry.environments.full_name(name) == env_id
        yield Listing(name=name if plain else env_id, id=env_id)


def _bare(env_id: str) -> str:
    return _VERSION.sub("", env_id)


def _preset(name: str, config_dir: Path | None) -> Listing:
    values = _read_preset(name, config_dir)
    settings = {str(key): value for key, value in values.items() if key not in ("defaults", "id")}
    first = _preset_file(name, config_dir).read_text(encoding="utf-8").partition("\n")[0]
    comment = first.lstrip("# ") if first.startswith("#") else ""
    return Listing(name=name, id=env_id_of(name, config_dir), description=comment, settings=settings)


def _preset_file(name: str, config_dir: Path | None) -> Path:
    folders = [*([config_dir] if config_dir else []), Path(str(files("miles_agents.configs")))]
    return next(path for folder in folders if (path := folder / "env" / f"{name}.yaml").is_file())


def _read_preset(name: str, config_dir: Path | None) -> DictConfig:
    loaded = OmegaConf.load(_preset_file(name, config_dir))
    return loaded if isinstance(loaded, DictConfig) else OmegaConf.create({})


class _Look:
    """A process that looks at one environment and tells what it finds, piece by piece."""

    def __init__(self, listing: Listing, timeout_s: float, context: Any, config_dir: Path | None) -> None:
        self.listing = listing
        self._timeout_s = timeout_s
        self.news, sending = context.Pipe(duplex=False)
        self._process = context.Process(target=_look, args=(listing.name, config_dir, sending), daemon=True)
        self._deadline = time.monotonic() + timeout_s
        self._told = False  # that it has said everything
        self._process.start()
        sending.close()

    def is_over(self) -> bool:
        """Take the news; True if there will be no more."""
        try:
            while self.news.poll():
                self._take(*self.news.recv())
        except (EOFError, OSError):
            self._process.join(self._timeout_s)
            if not self._told and not self.listing.problem:
                self.listing.problem = f"its process ended with exit code {self._process.exitcode}"
            self.end()
            return True
        if time.monotonic() < self._deadline:
            return False
        self.listing.problem = f"not known within {self._timeout_s:g} s; to wait longer, type --timeout-s 60"
        self.end()
        return True

    def _take(self, name: str, value: Any) -> None:
        if name == "end":
            self._told = True
        elif name == "split":
            self.listing.splits = {**self.listing.splits, value[0]: value[1]}
        elif name != "description" or not self.listing.description:
            setattr(self.listing, name, value)

    def end(self) -> None:
        """End the process."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.news.close()


def _look(name: str, config_dir: Path | None, news: Connection) -> None:
    """In the process: say what is found, in the order in which it becomes known."""
    os.environ.update(OFFLINE)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what an environment prints is no part of the list
        os.dup2(nowhere, descriptor)

    def tell(what: str, value: Any) -> None:
        news.send((what, value))

    try:
        _describe(name, config_dir, tell)
    except BaseException as error:  # noqa: BLE001 — seam: whatever an environment raises is a row of the list
        tell("problem", _problem(error))
    tell("end", None)


def _describe(name: str, config_dir: Path | None, tell: Callable[[str, Any], None]) -> None:
    preset = name in config_names("env", config_dir)
    env_class = load_env_class(env_id_of(name, config_dir) if preset else name, config_dir)
    doc = (env_class.__doc__ or "").strip() if "__doc__" in vars(env_class) else ""
    tell("description", doc.splitlines()[0] if doc else "")
    env: Env = make_env_factory(_configuration(name, env_class, preset, config_dir), env_class)()
    problems: list[str] = []
    package = getattr(env_class, "needs_package", "")
    with _noting(problems):
        if package:
            require(package, extra=package, needed_by=f"env={name}")
    with _noting(problems):
        tell("tools", [tool.name for tool in env.all_tools()])
    for split in env.splits:
        with _noting(problems):
            tasks = env.tasks(split)
            tell("split", (split, len(tasks) if isinstance(tasks, Sized) else sum(1 for _ in tasks)))
    if problems:
        tell("problem", problems[0])


def _configuration(name: str, env_class: type[Env], preset: bool, config_dir: Path | None) -> schema.EnvConfig:
    """As a run would compose it; by hand where the YAML file is plain, since that is many times as fast."""
    values = _read_preset(name, config_dir) if preset else OmegaConf.create({"id": name})
    if preset and values.pop("defaults", None) != ["_schema", "_self_"]:
        composed: schema.EnvConfig = to_object(compose_command("evaluate", [Override("env", name)], config_dir)).env
        return composed
    node = OmegaConf.merge(OmegaConf.structured(env_schema(env_class, str(values.id))), values)
    configuration: schema.EnvConfig = to_object(OmegaConf.create({"env": node}))["env"]
    return configuration


@contextlib.contextmanager
def _noting(problems: list[str]) -> Iterator[None]:
    """One thing that cannot be known keeps nothing else from being known."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 — seam: see `_look`
        problems.append(_problem(error))


def _problem(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, MilesError):
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")
