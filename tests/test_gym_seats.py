"""Environments of several seats behind Gymnasium: played in turn, or against opponents."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gym_envs import Duel
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

import miles_agents.gym
from miles_agents.envs.self_play import SelfPlay
from miles_agents.errors import EpisodeError, UsageError
from miles_agents.gym import RecordTrajectory, TextEnv, both_doors

EMPTY_BOARD_IN = next(
    split for split in SelfPlay.splits if any(task.id.endswith("." * 9) for task in SelfPlay().tasks(split))
)


def against(who: Any, **keys: Any) -> TextEnv:
    return TextEnv(Duel, opponents={"black": who}, **keys)


# --- in turn ----------------------------------------------------------------------------------------------------------


def test_without_opponents_one_plays_all_seats_in_turn() -> None:
    env = TextEnv(Duel)
    observation, info = env.reset(options={"task": "train-1"})
    assert (observation, info["seat"]) == ("duel 1", "white")
    step = env.step("three")
    assert (step.observation, step.reward, step.info["seat"]) == ("three", 5.0, "black")
    end = env.step("stop")
    assert (end.observation, end.reward, end.terminated) == ("black, it is over", 4.0, True)
    assert end.info["seat_rewards"] == {"white": 0.0, "black": 4.0}
    assert end.info["seat_components"]["white"] == {"letters": 5.0}
    env.close()


def test_tic_tac_toe_is_played_by_name_and_both_doors_show_the_same() -> None:
    env = SelfPlay()
    task = next(iter(env.tasks("train")))
    played = both_doors("self_play", task, lambda: env.oracle(task), 0)
    assert played.direct == played.gymnasium
    assert played.direct[-1].reward == 1.0
    assert len(played.direct) > 2


# --- against opponents ------------------------------------------------------------------------------------------------


def test_an_opponent_answers_within_the_step_and_one_gets_ones_own_reward() -> None:
    env = against("parrot")
    observation, info = env.reset(options={"task": "train-0"})
    assert (observation, info["seat"], info["opponents"]) == ("duel 0", "white", ())
    step = env.step("three")
    assert (step.observation, step.reward, step.info["seat"]) == ("three", 5.0, "white")
    assert step.info["opponents"] == (("black", "three"),)
    end = env.step("stop")
    assert (end.observation, end.reward, end.terminated) == ("white, it is over", 4.0, True)
    assert end.info["rewards"] == {"letters": 9.0}
    assert not {"seat", "seat_rewards", "seat_components"} & set(end.info), "there is one seat left"
    env.close()


def test_an_opponent_that_is_first_to_act_has_acted_when_the_reset_is_over() -> None:
    env = TextEnv(Duel, opponents={"black": lambda text, rng: f"heard {text}"}, first="black")
    observation, info = env.reset(options={"task": "train-2"})
    assert (observation, info["opponents"]) == ("heard duel 2", (("black", "heard duel 2"),))
    assert env.step("hi").observation == "heard hi"
    env.close()


def test_what_ends_the_episode_is_seen_in_info_where_the_opponent_did_it() -> None:
    env = against(lambda text, rng: "stop")
    env.reset(seed=0)
    end = env.step("hello")
    assert (end.observation, end.reward, end.terminated) == ("", 5.0, True)
    assert end.info["opponents"] == (("black", "stop"),)
    assert end.info["rewards"] == {"letters": 5.0}
    env.close()


def test_an_opponent_that_ends_the_episode_before_ones_turn_loses_it() -> None:
    env = TextEnv(Duel, opponents={"black": lambda text, rng: "stop"}, first="black")
    with pytest.raises(EpisodeError, match="ended before white could act"):
        env.reset(seed=0)
    env.close()


def test_an_episode_ended_from_outside_pays_ones_own_seat() -> None:
    env = against("parrot")
    env.reset(seed=0)
    env.step("hi")
    end = env.truncate("deadline")
    assert (end.reward, end.truncated, end.info["truncated_by"]) == (1.0, True, "deadline")
    assert end.info["rewards"] == {"cut": 1.0}
    env.close()


def test_an_episode_the_opponent_breaks_is_lost_and_the_next_begins_anew() -> None:
    env = against(lambda text, rng: "crash" if text == "break it" else "fine")
    env.reset(seed=0)
    with pytest.raises(EpisodeError, match="the table broke"):
        env.step("break it")
    env.reset(seed=0)
    assert env.step("hi").observation == "fine"
    env.close()


def test_what_an_opponent_draws_follows_from_the_seed() -> None:
    env = against("dice")
    drawn = []
    for seed in (3, 4, 3):
        env.reset(seed=seed)
        drawn.append([env.step("hi").observation for _ in range(3)])
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]
    assert len(set(drawn[0])) == 3
    env.close()


def test_best_play_wins_at_tic_tac_toe_against_the_random_player_only() -> None:
    best = SelfPlay().opponents["perfect"]

    def rewards(who: str) -> list[float]:
        env = TextEnv("self_play", opponents={"second": who})
        board, _ = env.reset(options={"task": "tic_tac_toe/board-.........", "split": EMPTY_BOARD_IN})
        got = []
        for number in range(12):
            board, _ = env.reset(seed=number, options={"task": env.task})
            mine, over = np.random.default_rng(number), False
            while not over:
                board, reward, over, _, _ = env.step(best(board, mine))
            got.append(reward)
        env.close()
        return got

    assert set(rewards("perfect")) == {0.5}, "best play of both sides is a draw"
    assert set(rewards("random")) <= {0.5, 1.0}
    assert 1.0 in rewards("random")


@pytest.mark.parametrize(
    ("opponents", "said"),
    [
        ({"blak": "parrot"}, "no seat 'blak'.*Did you mean 'black'"),
        ({"black": "parot"}, "no scripted player 'parot'.*Did you mean 'parrot'"),
        ({"black": "parrot", "white": "parrot"}, "takes all seats"),
    ],
)
def test_opponents_that_cannot_play_are_refused_when_the_environment_is_made(opponents: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TextEnv(Duel, opponents=opponents)


# --- what Gymnasium asks of it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponents", [None, {"black": "dice"}])
def test_check_env_has_nothing_to_say_and_eight_of_them_step_together(opponents: Any) -> None:
    env = miles_agents.gym.make(Duel, opponents=opponents)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    env.close()
    envs = SyncVectorEnv([lambda: miles_agents.gym.make(Duel, opponents=opponents)] * 8)
    envs.reset(seed=1)
    told, rewards, terminated, _, infos = envs.step(("hi",) * 8)
    assert rewards.tolist() == [2.0] * 8
    assert (len(set(told)) == 8) is (opponents is not None), "each opponent draws by its own seed"
    assert not terminated.any()
    assert set(infos["seat"]) == {"white" if opponents else "black"}
    envs.close()


def test_the_recorded_conversation_is_ones_own(tmp_path: Path) -> None:
    env = RecordTrajectory(miles_agents.gym.make(Duel, opponents={"black": "parrot"}), tmp_path / "x.jsonl")
    env.reset(seed=0)
    env.step("hi")
    env.step("stop")
    env.close()
    line = json.loads((tmp_path / "x.jsonl").read_text())
    assert [message["content"] for message in line["messages"][1:]] == ["hi", "hi", "stop", "white, it is over"]
    assert line["reward"] == 6.0
