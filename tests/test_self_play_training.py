"""Training and scoring one seat against a model whose weights stay as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_runs import Done, command
from safetensors.numpy import load_file

from miles_agents.engines.local.engine import LocalEngine
from miles_agents.runs.trajectories import read_trajectories

# `right` speaks first, `left` hears it and answers; left's reward differs between siblings whatever a model says.
DUEL = """
import miles_agents as ma
from miles_agents.contracts import ResetResult, StepResult

class Duel(ma.Env):
    seats = ("left", "right")

    def tasks(self, split):
        return [ma.Task(id=f"{split}{n}", prompt=(ma.Message.user(f"{n}+1"),), split=split) for n in range(4)]

    async def reset(self, *, seed=None, options=None):
        self.heard = []
        return ResetResult(options["task"].prompt, {"seat": "right"})

    async def step(self, action):
        self.heard.append(action.text)
        if len(self.heard) == 1:
            told = (ma.Message.user(f"right said {len(action.text)} letters"),)
            return StepResult(told, 0.0, False, False, {"seat": "left"})
        rewards = {"left": float(len(action.text) % 2), "right": 0.0}
        return StepResult((), rewards["left"], True, False, {"seat_rewards": rewards})
"""
FEW = ("rollout.groups_per_step=2", "rollout.group_size=4", "cluster.threads=1", "rollout.max_new_tokens=12")
NO_SCORES = ("eval.every=0", "eval.tasks=1", "eval.final_tasks=1")
WEIGHT = "model.embed_tokens.weight"


class Closed(list[tuple[int, np.ndarray]]):
    """Version and a weight of every engine, as they were when it was closed."""


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Closed:
    seen, close = Closed(), LocalEngine.close

    async def noting(self: LocalEngine) -> None:
        read = await self.read_weights([WEIGHT], lambda tensor: tensor.detach().clone().numpy())
        seen.append((self.version, read[WEIGHT]))
        await close(self)

    monkeypatch.setattr(LocalEngine, "close", noting)
    return seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "duel.py").write_text(DUEL)
    return tmp_path


def train(*words: str) -> Done:
    done = command("train", *FEW, *NO_SCORES, "logging.trajectories_every=1", "run_dir=run", *words)
    assert done.code == 0, done.err
    return done


def trajectories(folder: Path, pattern: str) -> list[Any]:
    return [each for file in sorted((folder / "run").glob(pattern)) for each in read_trajectories(file)]


def test_a_frozen_opponent_keeps_its_weights_while_the_policy_learns_from_the_same_ones(
    starter: Path, folder: Path, closed: Closed
) -> None:
    train("env=./duel.py:Duel", f"model={starter}", f"rollout.opponents={{right: {starter}}}", "steps=2")
    begun = load_file(starter / "model.safetensors")[WEIGHT]
    frozen, policy = sorted(closed, key=lambda each: each[0])
    assert (frozen[0], policy[0]) == (0, 2), "one engine each; only the policy's gets new versions"
    assert np.array_equal(frozen[1], begun)
    assert not np.array_equal(policy[1], begun), "the rewards taught something"
    assert json.loads((folder / "run/summary.json").read_text())["empty_steps"] == 0


def test_only_the_seat_that_is_trained_has_trajectories_and_it_hears_what_the_frozen_one_said(
    starter: Path, folder: Path
) -> None:
    train("env=./duel.py:Duel", "model=starter", "rollout.opponents={right: starter}", "steps=1")
    played = trajectories(folder, "trajectories/step_000001.jsonl")
    assert len(played) == 8
    assert {(each.seat, each.policy) for each in played} == {("left", "policy")}
    heard = {each.prompt[0].text for each in played}
    assert all(text.startswith("right said ") for text in heard)
    assert len(heard) > 1, "it is sampled: siblings meet different words"
    assert all(each.turns[0].versions[0].version == 0 for each in played)


def test_self_play_is_trained_against_the_starter_model(starter: Path, folder: Path, closed: Closed) -> None:
    train("env=self_play", "model=starter", "rollout.opponents={first: starter}", "rollout.max_tokens=600", "steps=1")
    assert sorted(version for version, _ in closed) == [0, 1]
    played = trajectories(folder, "trajectories/step_000001.jsonl")
    assert {each.seat for each in played} == {"second"}
    assert all("You are O." in each.prompt[0].text for each in played if each.turns)
    assert any(each.turns for each in played)
    assert {each.reward for each in played} <= {0.0, 0.5, 1.0}


def test_a_policy_is_scored_against_the_starter_model_and_against_a_perfect_player(
    starter: Path, folder: Path, closed: Closed
) -> None:
    words = ("env=self_play", "model=starter", "split=test", "tasks=4", "samples=1", "cluster.threads=1")
    budget = ("rollout.max_tokens=600", "rollout.max_new_tokens=12")
    done = command("evaluate", *words, *budget, "rollout.opponents={second: starter}", "run_dir=run")
    assert done.code == 0, done.err
    assert len(closed) == 2, "the policy's engine and the opponent's"
    done = command("evaluate", *words, *budget, "rollout.opponents={second: perfect}", "run_dir=other")
    assert done.code == 0, done.err
    assert len(closed) == 3, "a scripted player needs no engine"
    for name in ("run", "other"):
        total = json.loads((folder / name / "results.json").read_text())["total"]
        assert (total["scored"], total["failed"]) == (4, 0)


def test_an_opponent_that_is_no_player_and_no_model_is_refused_before_anything_is_written(folder: Path) -> None:
    words = ("env=self_play", "model=starter", "rollout.opponents={second: perfekt}", "rollout.max_tokens=600")
    done = command("train", *words, "run_dir=run")
    assert done.code == 2
    assert "rollout.opponents: no player or model folder 'perfekt'. Did you mean 'perfect'" in done.err
    assert not (folder / "run").exists()
