"""Datasets of `reasoning-gym`, made without touching the global random generators."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from miles_agents.envs.reasoning_gym.families import ANSWER_IN_METADATA, NOT_OFFERED
from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.tools.optional import library

_OWN_KEYS = ("seed", "size")


class PuzzleSource(NamedTuple):
    """Which dataset of the package: equal sources give equal puzzles."""

    family: str
    settings: str  # JSON of the keys of the family's configuration that were given
    seed: int
    size: int

    def puzzle(self, index: int) -> dict[str, Any]:
        """The entry at a place: `question`, `answer`, `metadata`."""
        return copy.deepcopy(_entry(self, index))

    def score(self, index: int, answer: str) -> float:
        """What the package's own scorer gives an answer, 0 to 1; whatever it raises passes through."""
        with _global_generators_kept():
            return float(_dataset(self).score_answer(answer, self.puzzle(index)))


def family_names() -> tuple[str, ...]:
    """All families that can be asked for, by name.

    Raises:
        UsageError: the package is not installed.
    """
    return tuple(sorted(name for name in _package().factory.DATASETS if name not in NOT_OFFERED))


def checked_settings(family: str, settings: Mapping[str, Any]) -> str:
    """The settings of a family as JSON.

    Raises:
        ConfigError: no such family, no such key, or a value that the family refuses; the message says which.
    """
    if family in NOT_OFFERED:
        raise ConfigError(f"env.family={family}: {NOT_OFFERED[family]}")
    if family not in family_names():
        raise ConfigError(f"env.family={family}: no such family. {did_you_mean(family, family_names())}")
    config = _package().factory.DATASETS[family][1]
    keys = [each.name for each in fields(config) if each.init and each.name not in _OWN_KEYS]
    for key in settings:
        if key not in keys:
            raise ConfigError(f"env.settings.{key}: '{family}' has no such setting. {did_you_mean(str(key), keys)}")
    text = json.dumps(dict(settings), sort_keys=True)
    try:
        _dataset(PuzzleSource(family, text, 0, 1))
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"env.settings={dict(settings)}: '{family}' refuses it: {error or 'out of range'}") from error
    return text


def own_answer(family: str, puzzle: Mapping[str, Any]) -> str | None:
    """The package's own solution; None where it has none."""
    answer = puzzle["answer"]
    if answer is None and family in ANSWER_IN_METADATA:
        answer = puzzle["metadata"][ANSWER_IN_METADATA[family]]
        if not isinstance(answer, str):
            answer = json.dumps(answer)
    return None if answer is None else str(answer)


@functools.lru_cache(maxsize=256)
def _dataset(source: PuzzleSource) -> Any:
    settings = json.loads(source.settings)
    plain = _package().factory.DATASETS[source.family][1]()
    for key, value in settings.items():
        if isinstance(value, list) and isinstance(getattr(plain, key), tuple):
            settings[key] = tuple(value)
    return _package().create_dataset(source.family, **settings, seed=source.seed, size=source.size)


@functools.lru_cache(maxsize=1024)
def _entry(source: PuzzleSource, index: int) -> dict[str, Any]:
    with _global_generators_kept():
        return dict(_dataset(source)[index])


@contextlib.contextmanager
def _global_generators_kept() -> Iterator[None]:
    python, legacy = random.getstate(), np.random.get_state()  # some families seed them
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


@functools.cache
def _package() -> Any:
    library("reasoning_gym", extra="reasoning_gym", needed_by="env=reasoning_gym")
    library("reasoning_gym.factory", extra="reasoning_gym", needed_by="env=reasoning_gym")
    return library("reasoning_gym", extra="reasoning_gym", needed_by="env=reasoning_gym")
