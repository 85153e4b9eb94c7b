"""One registry for everything that is found by name: environments, engines, trainers, algorithms, sandboxes.

An entry is lazy: `"package.module:attribute"` until it is first asked for, so that listing names loads nothing heavy.
Names of environments carry a version, `name-v0`; a bare name means the newest version.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from miles_agents.errors import UnknownNameError, UsageError, did_you_mean

T = TypeVar("T")

_VERSIONED = re.compile(r"^(?P<base>.+)-v(?P<version>\d+)$")


class Registry:
    """Names → classes or factories of one kind.

    Args:
        kind: what the entries are, for messages: `"environment"`.
        entry_point_group: packages elsewhere may add entries under this group, e.g. `"miles_agents.envs"`.
    """

    def __init__(self, kind: str, *, entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._group = entry_point_group
        self._entries: dict[str, Any] = {}
        self._lazy: dict[str, str] = {}
        self._scanned = entry_point_group is None
        self._listeners: list[Callable[[str], None]] = []

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Have `listener` told every registered name, now and whenever one is added; a second time does nothing."""
        if listener not in self._listeners:
            for name in self.names():
                listener(name)
            self._listeners.append(listener)

    def _tell(self, name: str) -> None:
        for listener in self._listeners:
            listener(name)

    def add_lazy(self, name: str, target: str) -> None:
        """Register `"package.module:attribute"` under `name` without importing it."""
        self._refuse_duplicate(name, target)
        self._lazy[name] = target
        self._tell(name)

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: register the class or factory under `name`."""

        def decorate(entry: T) -> T:
            known = self._lazy.get(name)
            if known is not None and known == f"{_module_of(entry)}:{getattr(entry, '__qualname__', '')}":
                return entry  # the module behind a lazy entry, registering itself
            self._refuse_duplicate(name, entry)
            self._entries[name] = entry
            self._tell(name)
            return entry

        return decorate

    def _refuse_duplicate(self, name: str, entry: Any) -> None:
        known = self._entries.get(name, self._lazy.get(name))
        if known is None or known == entry:
            return
        same_class = _module_of(known) == _module_of(entry) and getattr(known, "__qualname__", 0) == getattr(
            entry, "__qualname__", 1
        )
        if not same_class:  # a module imported twice (reload, notebook) registers the same class again
            raise UsageError(f"{self.kind} '{name}' is registered already, as {known!r}; give yours another name")

    def _scan_entry_points(self) -> None:
        if self._scanned:
            return
        self._scanned = True
        for point in entry_points(group=self._group or ""):
            if point.name not in self._entries:
                self._lazy.setdefault(point.name, point.value)

    def names(self) -> list[str]:
        """Every registered name, sorted; loads no entry."""
        self._scan_entry_points()
        return sorted({*self._entries, *self._lazy})

    def __contains__(self, name: str) -> bool:
        return self._resolve(name) is not None

    def _resolve(self, name: str) -> str | None:
        known = self.names()
        if name in known:
            return name
        versions = [
            (int(match["version"]), entry)
            for entry in known
            if (match := _VERSIONED.match(entry)) and match["base"] == name
        ]
        return max(versions)[1] if versions else None

    def full_name(self, name: str) -> str:
        """The registered name behind `name` (`"python_math"` → `"python_math-v0"`).

        Raises:
            UnknownNameError: nothing of that name; the message lists the nearest ones.
        """
        resolved = self._resolve(name)
        if resolved is None:
            bare = {match["base"] if (match := _VERSIONED.match(known)) else known for known in self.names()}
            raise UnknownNameError(f"unknown {self.kind} {name!r}. {did_you_mean(name, bare)}")
        return resolved

    def get(self, name: str) -> Any:
        """The class or factory registered under `name`, imported now if it was lazy.

        Raises:
            UnknownNameError: nothing of that name.
        """
        resolved = self.full_name(name)
        if resolved not in self._entries:
            self._entries[resolved] = load_object(self._lazy[resolved])
        return self._entries[resolved]


def _module_of(entry: Any) -> str:
    return str(getattr(entry, "__module__", ""))


def init_arguments(cls: type[Any]) -> tuple[str, ...]:
    """The names of the arguments a class's `__init__` takes, `self` and `*args`/`**kwargs` left out."""
    if cls.__init__ is object.__init__:
        return ()
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return tuple(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))


def is_object_spec(text: str) -> bool:
    """True for `file.py:Class` and `package.module:Class`."""
    return bool(re.fullmatch(r"[^:]+:[A-Za-z_]\w*(\.\w+)*", text))


def load_object(spec: str) -> Any:
    """Import `"package.module:attribute"` or `"path/to/file.py:attribute"`.

    Raises:
        UsageError: no such file, module or attribute; the message says which. Errors raised by the module's own
            code while it is imported are not caught.
    """
    where, _, attribute = spec.partition(":")
    module = _load_file(Path(where), spec) if where.endswith(".py") else _load_module(where, spec)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [name for name in vars(module) if not name.startswith("_")]
            raise UnknownNameError(f"'{where}' has no '{attribute}'. {did_you_mean(attribute, public)}")
        found = getattr(found, part)
    return found


def _load_module(name: str, spec: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"'{name}' of '{spec}' is no module name; write package.module:Class or ./file.py:Class")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(f"cannot import module '{name}' of '{spec}': no module named '{error.name}'") from error
        raise


def _load_file(path: Path, spec: str) -> Any:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"no file {path} (from '{spec}'); write it as ./file.py:Class")
    # A private name made from the path: two loads of one file give one module, in every process.
    digest = hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()
    name = f"_miles_agents_file_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    loader_spec = importlib.util.spec_from_file_location(name, path)
    if loader_spec is None or loader_spec.loader is None:
        raise UsageError(f"cannot import {path} (from '{spec}'): not a Python file")
    module = importlib.util.module_from_spec(loader_spec)
    sys.modules[name] = module
    try:
        loader_spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


environments = Registry("environment", entry_point_group="miles_agents.envs")
engines = Registry("engine", entry_point_group="miles_agents.engines")
sandboxes = Registry("sandbox", entry_point_group="miles_agents.sandboxes")
trainers = Registry("trainer", entry_point_group="miles_agents.trainers")
algorithms = Registry("algorithm", entry_point_group="miles_agents.algorithms")
weight_syncs = Registry("weight sync", entry_point_group="miles_agents.weight_syncs")

environments.add_lazy("gem-v0", "miles_agents.envs.gem.env:Gem")
environments.add_lazy("gymnasium_text-v0", "miles_agents.envs.foreign.gymnasium_text:GymnasiumText")
environments.add_lazy("code-v0", "miles_agents.envs.code.env:Code")
environments.add_lazy("guess_number-v0", "miles_agents.envs.guess_number.env:GuessNumber")
environments.add_lazy("self_play-v0", "miles_agents.envs.self_play.env:SelfPlay")
environments.add_lazy("judge-v0", "miles_agents.envs.judge.env:Judged")
environments.add_lazy("python_math-v0", "miles_agents.envs.python_math.env:PythonMath")
environments.add_lazy("reasoning_gym-v0", "miles_agents.envs.reasoning_gym.env:ReasoningGym")
environments.add_lazy("repo_fix-v0", "miles_agents.envs.repo_fix.env:RepoFix")
environments.add_lazy("search_qa-v0", "miles_agents.envs.search_qa.env:SearchQA")
environments.add_lazy("shapes-v0", "miles_agents.envs.shapes.env:Shapes")
environments.add_lazy("textarena-v0", "miles_agents.envs.textarena.env:TextArena")
environments.add_lazy("wordle-v0", "miles_agents.envs.wordle.env:Wordle")
engines.add_lazy("local", "miles_agents.engines.local.engine:LocalEngine")
engines.add_lazy("openai", "miles_agents.engines.openai.model:OpenAIChatModel")
engines.add_lazy("scripted", "miles_agents.engines.scripted:ScriptedEngine")
sandboxes.add_lazy("docker", "miles_agents.tools.sandboxes.docker.sandboxes:DockerSandboxes")
sandboxes.add_lazy("namespace", "miles_agents.tools.sandboxes.namespace:NamespaceSandboxes")
sandboxes.add_lazy("scripted", "miles_agents.tools.sandboxes.scripted:ScriptedSandboxes")
trainers.add_lazy("local", "miles_agents.trainers.local.trainer:LocalTrainer")
algorithms.add_lazy("grpo", "miles_agents.algorithms.grpo:GRPO")
algorithms.add_lazy("supervised", "miles_agents.algorithms.supervised:Supervised")
weight_syncs.add_lazy("memory", "miles_agents.weight_sync.memory:MemoryWeightSync")
