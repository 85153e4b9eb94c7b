"""Wrappers around environments of texts: our own and Gymnasium's."""

from __future__ import annotations

import json
import warnings
from itertools import permutations
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gym_envs import ROLL, Dice, Echo
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward

import miles_agents.gym
from miles_agents.errors import UsageError
from miles_agents.gym import CutText, RecordTrajectory, ScaleReward, TextEnv, TokenBudget


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- TokenBudget ------------------------------------------------------------------------------------------------------


def test_the_action_beyond_the_budget_truncates_and_its_calls_do_not_run() -> None:
    env = TokenBudget(miles_agents.gym.make(Dice), budget=2 * len(ROLL) + 3)
    _, info = env.reset(seed=0)
    assert info["budget_left"] == 2 * len(ROLL) + 3
    assert env.step(ROLL)[4]["budget_left"] == len(ROLL) + 3
    assert not env.step(ROLL)[3]
    rolled = env.unwrapped.env.rolled
    observation, reward, terminated, truncated, info = env.step(ROLL)
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["truncated_by"] == "max_new_tokens"
    assert info["rewards"] == {"right": 0.0, "short": 0.0}, "scored as it stands"
    assert info["budget_left"] == 0
    assert env.unwrapped.env.rolled == rolled
    env.close()


def test_an_action_that_uses_the_budget_up_exactly_still_counts_and_a_reset_gives_it_back() -> None:
    env = TokenBudget(miles_agents.gym.make(Echo), budget=4)
    for _ in range(2):
        env.reset(seed=0)
        assert env.step("stop")[2:4] == (True, False)
    env.close()


def test_an_environment_that_goes_on_after_a_cut_reply_is_ended_and_scored() -> None:
    env = TokenBudget(miles_agents.gym.make(Echo), budget=2)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("three")
    assert (observation, terminated, truncated) == ("you said three", False, True)
    assert reward == 0.75, "0.25 for the turn, 0.5 for what stands"
    assert info["truncated_by"] == "token_budget"
    assert info["rewards"] == {"so far": 0.5}
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    env.close()


def test_tokens_are_counted_as_one_likes() -> None:
    env = TokenBudget(miles_agents.gym.make(Echo), budget=3, count=lambda text: len(text.split()))
    env.reset(seed=0)
    assert env.step("two words")[4]["budget_left"] == 1
    assert env.step("two words")[3]
    env.close()


@pytest.mark.parametrize("made", [lambda env: TokenBudget(env, 0), lambda env: ScaleReward(env, float("nan"))])
def test_a_wrapper_refuses_numbers_that_mean_nothing(made: Any) -> None:
    with pytest.raises(UsageError):
        made(TextEnv(Echo))


# --- the others -------------------------------------------------------------------------------------------------------


def test_rewards_are_scaled_as_often_as_one_wraps() -> None:
    env = TransformReward(ScaleReward(miles_agents.gym.make(Echo), 4.0), lambda reward: reward - 1)
    env.reset(seed=0)
    assert env.step("hi")[1] == 0.0
    env.close()


def test_gymnasiums_time_limit_and_statistics_compose() -> None:
    env = RecordEpisodeStatistics(TimeLimit(miles_agents.gym.make(Echo), 3))
    env.reset(seed=0)
    results = [env.step("hi") for _ in range(3)]
    assert [result[3] for result in results] == [False, False, True]
    assert results[-1][4]["episode"]["r"] == pytest.approx(0.75)
    assert results[-1][4]["episode"]["l"] == 3
    env.close()


def test_the_time_limit_of_make_is_the_stock_wrapper() -> None:
    env = miles_agents.gym.make(Echo, max_episode_steps=1)
    env.reset(seed=0)
    assert env.step("hi")[3] is True
    env.close()


def test_every_wrapper_inside_sees_the_cut_action() -> None:
    seen: list[str] = []

    class Spy(gymnasium.ActionWrapper[str, str, str]):
        def action(self, action: str) -> str:
            seen.append(action)
            return action

    env = TokenBudget(ScaleReward(Spy(miles_agents.gym.make(Echo)), 2.0), budget=2)
    env.reset(seed=0)
    assert env.step("three")[1] == 1.5, "the reward of the end is scaled too"
    assert isinstance(seen[0], CutText)
    env.close()


def test_wrapped_environments_pass_the_checker_and_can_be_made_again(tmp_path: Path) -> None:
    env = RecordTrajectory(ScaleReward(TokenBudget(miles_agents.gym.make(Dice), 1000), 0.5), tmp_path / "all.jsonl")
    assert env.spec is not None
    assert [each.name for each in env.spec.additional_wrappers] == ["TokenBudget", "ScaleReward", "RecordTrajectory"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env)
    again = gymnasium.make(env.spec)
    again.reset(seed=1)
    again.close()
    env.close()


LAYERS: dict[str, Any] = {
    "limit": lambda env, path: TimeLimit(env, 3),
    "budget": lambda env, path: TokenBudget(env, 100, count=lambda text: len(text.split())),
    "scale": lambda env, path: ScaleReward(env, 4.0),
    "record": lambda env, path: RecordTrajectory(env, path),
}


def layered(order: tuple[str, ...], path: Path) -> gymnasium.Env[str, str]:
    env = miles_agents.gym.make(Echo)
    for layer in order:
        env = LAYERS[layer](env, path)
    return env


@pytest.mark.parametrize("order", list(permutations(LAYERS)), ids="-".join)
def test_wrappers_compose_in_any_order(order: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = layered(order, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env)
    begun = len(lines(path))
    env.reset(seed=0)  # ended by the environment
    assert env.step("a b c")[:4] == ("you said a b c", 1.0, False, False)
    assert env.step("stop")[:4] == ("you said stop", 1.0, True, False)
    env.reset(seed=0)  # by the budget
    _, reward, terminated, truncated, info = env.step("word " * 101)
    assert (reward, terminated, truncated, info["truncated_by"]) == (3.0, False, True, "token_budget")
    env.reset(seed=0)  # by the limit
    ends = [env.step("hi")[3] for _ in range(3)]
    assert ends == [False, False, True]
    env.close()
    scaled = order.index("scale") < order.index("record")
    written = lines(path)[begun:]
    assert [line["reward"] for line in written[-3:]] == [each * (4 if scaled else 1) for each in (0.5, 0.75, 0.75)]
    within = order.index("limit") < order.index("record")
    assert [(line["terminated"], line["truncated"]) for line in written[-3:]] == [
        (True, False),
        (False, True),
        (False, within),  # a limit around it is not seen inside: the episode was left
    ]


# --- RecordTrajectory -------------------------------------------------------------------------------------------------


def test_every_episode_becomes_one_line_with_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "episodes.jsonl"
    env = RecordTrajectory(miles_agents.gym.make(Dice), path)
    env.reset(seed=3, options={"task": "train/1"})
    rolled = env.step("<think>hm</think>" + ROLL)[0]
    assert not path.exists(), "it is written when it ends"
    env.step(rolled.removeprefix("rolled "))
    (line,) = lines(path)
    assert (line["task_id"], line["seed"], line["rewards"], line["reward"]) == ("train/1", 3, [0.0, 1.0], 1.0)
    assert (line["terminated"], line["truncated"], line["truncated_by"]) == (True, False, "")
    assert [message["role"] for message in line["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert line["messages"][2]["reasoning"] == "hm"
    assert line["messages"][2]["tool_calls"][0]["name"] == "roll"
    assert line["messages"][3] == {"role": "tool", "content": rolled, "tool_call_id": "call_0", "name": "roll"}
    env.close()
    assert len(lines(path)) == 1


def test_a_truncated_episode_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    env = RecordTrajectory(miles_agents.gym.make(Dice, max_turns=1), path)
    env.reset(seed=0)
    env.step(ROLL)
    (line,) = lines(path)
    assert (line["terminated"], line["truncated"], line["truncated_by"]) == (False, True, "max_turns")
    env.close()


def test_what_is_left_unfinished_is_written_too_and_files_grow(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for _ in range(2):
        env = RecordTrajectory(miles_agents.gym.make(Echo), path)
        env.reset(seed=0)
        env.step("größer\n🚀")
        env.reset(seed=0)
        env.close()
        env.close()
    written = lines(path)
    assert [len(line["messages"]) for line in written] == [3, 1, 3, 1]
    assert written[0]["messages"][1]["content"] == "größer\n🚀"
    assert not any(line["terminated"] or line["truncated"] for line in written)


def test_only_our_own_environments_can_be_recorded() -> None:
    with pytest.raises(UsageError, match="not CartPoleEnv"):
        RecordTrajectory(gymnasium.make("CartPole-v1"), "x.jsonl")  # type: ignore[arg-type]
