"""Every registered environment as Gymnasium's: the checker, eight in a vector, both doors."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from miles_agents import registry
from miles_agents.checks.env import Oracle
from miles_agents.gym import both_doors
from miles_agents.gym.environment import make_env

HERE = Path(__file__).parent
PRESETS = HERE.parent / "configs" / "env"
HOT_COLD = f"{HERE}/foreign_games.py:HotCold"
EXTRAS = {
    "gem": ("gem", "gem"),
    "reasoning_gym": ("reasoning_gym", "reasoning_gym"),
    "search_qa": ("bm25s", "search"),
    "textarena": ("textarena", "textarena"),
}  # environment → the package it needs, and the extra that has it
KEYS: dict[str, dict[str, Any]] = {
    "code": {"train_size": 32},
    "gymnasium_text": {"game": HOT_COLD},
    "judge": {"judge": "rules"},
    "python_math": {"train_size": 64},
    "shapes": {"train_size": 16},
}  # what is needed, and sizes that take less time


class Case(NamedTuple):
    """An environment with keys."""

    name: str  # in the registry, without its version
    keys: dict[str, Any]


def shipped() -> set[str]:
    """Names without versions; what other tests register in this process is not among them."""
    entries = registry.environments._lazy.items()
    return {name.rpartition("-v")[0] for name, place in entries if place.startswith("miles_agents.envs.")}


def cases() -> list[Any]:
    """Every registered environment, every preset, and games and seats that differ."""
    named = {name: Case(name, KEYS.get(name, {})) for name in sorted(shipped())}
    for file in sorted(PRESETS.glob("*.yaml")):
        keys = {key: value for key, value in yaml.safe_load(file.read_text()).items() if key != "defaults"}
        named[file.stem] = Case(str(keys.pop("id")).rpartition("-v")[0], {**KEYS.get(file.stem, {}), **keys})
    named["negotiation"] = Case("self_play", {"game": "negotiation"})
    named["against"] = Case("self_play", {"opponents": {"first": "random"}})
    return [pytest.param(case, id=name, marks=_needed(case.name)) for name, case in sorted(named.items())]


def _needed(name: str) -> list[pytest.MarkDecorator]:
    package, extra = EXTRAS.get(name, ("gymnasium", ""))
    missing = importlib.util.find_spec(package) is None
    reason = f"{package} is not installed: pip install 'miles-agents[{extra}]'"
    return [pytest.mark.sandbox, pytest.mark.skipif(missing, reason=reason)]


CASES = cases()


@pytest.fixture(autouse=True)
def own_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILES_AGENTS_DATA", str(HERE / "data"))  # invented rows in the layouts of the published sets


def _own(case: Case) -> dict[str, Any]:
    """The environment's own keys."""
    return {key: value for key, value in case.keys.items() if key != "opponents"}


def made(case: Case) -> gymnasium.Env[str, str]:
    full = registry.environments.full_name(case.name)
    return gymnasium.make(f"miles_agents/{full}", **case.keys)


def test_every_shipped_environment_and_preset_is_among_the_cases() -> None:
    ids = {case.id for case in CASES}
    assert ids >= shipped() | {file.stem for file in PRESETS.glob("*.yaml")}
    assert ids >= {"python_math", "gsm8k", "aime", "self_play", "textarena", "gem", "code", "search_qa", "wordle"}


@pytest.mark.parametrize("case", CASES)
def test_check_env_has_nothing_to_say(case: Case) -> None:
    env = made(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("case", CASES)
def test_eight_step_together_and_a_seed_gives_the_same_again(case: Case) -> None:
    def played() -> tuple[Any, ...]:
        envs = SyncVectorEnv([lambda: made(case)] * 8)
        envs.action_space.seed(3)
        first, infos = envs.reset(seed=5)
        assert first in envs.observation_space
        assert all(first), "there is something to answer"
        steps = []
        for _ in range(3):  # ended ones are reset by the way
            observations, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
            assert observations in envs.observation_space
            assert np.isfinite(rewards).all()
            steps.append((observations, rewards.tolist(), terminated.tolist(), truncated.tolist()))
        envs.close()
        return first, infos["task_id"].tolist(), steps

    once = played()
    assert once == played()


@pytest.mark.parametrize("case", CASES)
def test_both_doors_show_the_same_and_an_oracle_scores_full_behind_them(case: Case) -> None:
    env = make_env(case.name, _own(case))
    task = next(iter(env.tasks("train" if "train" in env.splits else env.splits[0])))
    knows = isinstance(env, Oracle)
    replies = (lambda: env.oracle(task)) if knows else ["one", "two"]  # type: ignore[attr-defined]
    played = both_doors(lambda: make_env(case.name, _own(case)), task, replies, 1)
    assert played.direct == played.gymnasium
    if knows:
        assert played.direct[-1].terminated
        assert sum(shown.reward for shown in played.direct) == pytest.approx(env.reward_range[1])
