"""Text environments of others as ours: their seeds, randomness, printing, blocking and failing."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import sys
from typing import Any

import numpy as np
import pytest
from foreign_games import Rude, RudeGame

from miles_agents.checks.env import check_env, play
from miles_agents.command import compose_command, load_env_class
from miles_agents.configs.compose import parse_overrides, to_object
from miles_agents.envs.foreign.gymnasium_text import GymnasiumText
from miles_agents.errors import ConfigError, EpisodeError, FailureCause, GraderError, UsageError
from miles_agents.gym import both_doors
from miles_agents.types import Reply, Role

HOT_COLD = f"{__file__.removesuffix('test_foreign_envs.py')}foreign_games.py:HotCold"


def installed(package: str, extra: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'miles-agents[{extra}]'")


needs_textarena = installed("textarena", "textarena")
needs_gem = installed("gem", "gem")


def task_of(env: Any, split: str = "train", number: int = 0) -> Any:
    return list(env.tasks(split))[number]


async def started(env: Any, seed: int = 0, number: int = 0) -> str:
    begun = await env.reset(seed=seed, options={"task": task_of(env, number=number)})
    return str(begun.observation[-1].text)


async def said(env: Any, *words: str) -> list[str]:
    return [(await env.step(Reply.of(word))).observation[0].text for word in words]


# --- tasks are seeds --------------------------------------------------------------------------------------------------


def test_each_split_has_seeds_of_its_own() -> None:
    env = Rude()
    seeds = {split: [task.metadata["seed"] for task in env.tasks(split)] for split in env.splits}
    assert seeds == {
        "train": [0, 1, 2, 3, 4],
        "validation": [10_000_000, 10_000_001, 10_000_002],
        "test": [20_000_000, 20_000_001],
    }
    assert task_of(env, "test", 1).id == "rude/test/1"
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        env.tasks("tset")


async def test_a_task_is_one_game_whatever_the_episodes_seed() -> None:
    env = Rude()
    first = await started(env, seed=1)
    assert await started(env, seed=2) == first
    assert await started(env, seed=1, number=3) != first


async def test_what_a_game_draws_later_follows_from_the_episodes_seed() -> None:
    env = Rude()
    drawn = []
    for seed in (1, 2, 1):
        await started(env, seed=seed)
        drawn.append(await said(env, "draw", "draw"))
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]
    assert drawn[0][0] != drawn[0][1]


async def test_two_games_at_once_draw_as_if_they_were_alone() -> None:
    async def alone(seed: int) -> list[str]:
        env = Rude()
        await started(env, seed=seed)
        return await said(env, *["draw"] * 5)

    together = await asyncio.gather(*(alone(seed) for seed in range(6)))
    assert together == [await alone(seed) for seed in range(6)]


# --- what foreign code may not do to us -------------------------------------------------------------------------------


async def test_the_global_generators_are_left_as_they_were() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    env = Rude()
    await started(env)
    await said(env, "draw", "draw")
    await env.close()
    assert (random.random(), np.random.random()) == expected


async def test_what_a_game_prints_goes_to_the_log_and_nobody_elses_words_do(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "miles_agents.envs.foreign")
    former = sys.stdout, sys.stderr
    env = Rude(arguments={"seconds": 0.4})
    await started(env)
    move = asyncio.create_task(env.step(Reply.of("block")))
    await asyncio.sleep(0.2)
    print("said meanwhile")
    await move
    assert (sys.stdout, sys.stderr) == former
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("said meanwhile\n", "")
    assert "LOADING" in caplog.text
    assert "COMPLAINING" in caplog.text
    assert "MOVED block" in caplog.text


async def test_the_event_loop_goes_on_while_a_game_blocks() -> None:
    env = Rude(arguments={"seconds": 0.4})
    await started(env)
    move = asyncio.create_task(env.step(Reply.of("block")))
    ticks = 0
    while not move.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 10


async def test_a_game_that_does_not_come_back_loses_the_episode_and_holds_up_the_next_for_its_limit_only() -> None:
    env, other = Rude(step_timeout_s=0.3, arguments={"seconds": 1.5}), Rude(step_timeout_s=0.3)
    await started(env)
    await started(other)
    with pytest.raises(EpisodeError, match=r"a move of rude took more than 0\.3 s"):
        await env.step(Reply.of("block"))
    assert not env.reusable
    with pytest.raises(EpisodeError, match="another game's call does not come back"):
        await other.step(Reply.of("hi"))
    with pytest.raises(UsageError):
        await env.step(Reply.of("hi"))
    await asyncio.sleep(1.5)  # it came back after all
    assert await started(Rude()) == await started(Rude())


async def test_waiting_for_other_games_does_not_count_as_ones_own_time() -> None:
    envs = [Rude(step_timeout_s=0.5, arguments={"seconds": 0.2}) for _ in range(5)]
    for env in envs:
        await started(env)
    results = await asyncio.gather(*(env.step(Reply.of("block")) for env in envs))  # 1 s in all
    assert [result.observation[0].text for result in results] == ["go on"] * 5


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        ("raise", EpisodeError, "a move of rude raised KeyError: 'lost'"),
        ("exit", EpisodeError, "SystemExit: 3"),
        ("number", EpisodeError, "an observation of type int"),
        ("nan", GraderError, "the reward nan"),
    ],
)
async def test_what_a_game_does_wrong_loses_the_episode_with_a_cause(
    action: str, kind: type[EpisodeError], words: str
) -> None:
    env = Rude()
    await started(env)
    with pytest.raises(kind, match=words) as caught:
        await env.step(Reply.of(action))
    assert caught.value.cause is (FailureCause.GRADER if kind is GraderError else FailureCause.FRAMEWORK)


async def test_a_first_text_that_is_no_text_loses_the_episode() -> None:
    class Silent(RudeGame):
        def reset(self, seed: int) -> str:
            return None  # type: ignore[return-value]

    class SilentEnv(Rude):
        def make_game(self) -> RudeGame:
            return Silent()

    with pytest.raises(EpisodeError, match="type NoneType"):
        await started(SilentEnv())


# --- how episodes end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "observation", "terminated", "truncated_by", "reward"),
    [
        ("both", "over", True, "", 0.5),
        ("cut", "no more", False, "env", 0.5),
        ("empty", None, True, "", 0.25),
    ],
)
async def test_the_last_text_is_kept_and_the_rewards_are_summed(
    action: str, observation: str | None, terminated: bool, truncated_by: str, reward: float
) -> None:
    env = Rude()
    await started(env)
    await said(env, "hi")
    end = await env.step(Reply.of(action))
    assert [message.text for message in end.observation] == ([] if observation is None else [observation])
    assert (end.terminated, end.truncated, end.info["truncated_by"]) == (terminated, not terminated, truncated_by)
    assert (end.reward, end.info["rewards"]) == (reward, {"game": 0.25 + reward})
    assert env.games[-1].closed
    with pytest.raises(UsageError):
        await env.step(Reply.of("hi"))


async def test_turns_tokens_and_outside_limits_truncate_with_what_was_earned() -> None:
    env = Rude()
    await started(env)
    await said(env, *["hi"] * 5)
    end = await env.step(Reply.of("hi"))
    assert (end.truncated, end.info) == (True, {"rewards": {"game": 1.5}, "truncated_by": "max_turns"})
    await started(env)
    await said(env, "hi")
    end = await env.step(Reply(text="raise", content="raise", truncated=True))
    assert (end.reward, end.info) == (0.0, {"rewards": {"game": 0.25}, "truncated_by": "max_new_tokens"})
    await started(env)
    end = await env.truncate("context")
    assert (end.truncated, end.info["truncated_by"]) == (True, "context")


async def test_only_the_content_of_a_reply_is_the_move() -> None:
    env = Rude()
    await started(env)
    result = await env.step(Reply(text="<think>raise</think> empty ", reasoning="raise", content=" empty "))
    assert result.terminated


async def test_a_system_prompt_comes_first() -> None:
    env = Rude(system_prompt="Play well.")
    begun = await env.reset(seed=0, options={"task": task_of(env)})
    assert [message.role for message in begun.observation] == [Role.SYSTEM, Role.USER]


@pytest.mark.parametrize(
    "keys",
    [{"reward_low": 1.0}, {"step_timeout_s": 0}, {"reward_high": float("nan")}, {"step_timeout_s": float("inf")}],
)
def test_settings_out_of_range_are_refused(keys: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"env.{'reward_low' if 'reward' in str(keys) else 'step_timeout_s'}"):
        Rude(**keys)


async def test_a_task_of_another_environment_is_refused() -> None:
    from miles_agents import Message, Task

    with pytest.raises(UsageError, match="one of tasks"):
        await Rude().reset(options={"task": Task(id="x", prompt=(Message.user("y"),))})


# --- gymnasium_text ---------------------------------------------------------------------------------------------------


async def bisected(env: Any, task: Any, low: int, high: int, written: str, seed: int = 0) -> Any:
    """Play by halving what is left; `written` is how a guess is written."""
    await env.reset(seed=seed, options={"task": task})
    while True:
        guess = (low + high) // 2
        result = await env.step(Reply.of(written.format(guess)))
        if result.terminated or result.truncated:
            return result
        if "higher" in result.observation[0].text.lower():
            low = guess + 1
        else:
            high = guess - 1


def hot_cold(**keys: Any) -> GymnasiumText:
    return GymnasiumText(game=HOT_COLD, train_size=20, validation_size=5, test_size=5, **keys)


async def test_a_gymnasium_env_of_texts_keeps_our_contract() -> None:
    await check_env(hot_cold(max_turns=8), tasks_per_split=2)


async def test_halving_solves_the_gymnasium_game_and_junk_earns_nothing() -> None:
    env = hot_cold()
    for number in range(5):
        end = await bisected(env, task_of(env, "test", number), 1, 8, "{}")
        assert (end.terminated, end.info["rewards"]) == (True, {"game": 1.0})
    junk = await play(env, task_of(env), [Reply.of("I do not know")] * 70, seed=0)
    assert "is not an action here" in junk[0].observation[0].text
    assert "0123456789" in junk[0].observation[0].text
    assert (junk[-1].truncated, junk[-1].info) == (True, {"rewards": {"game": 0.0}, "truncated_by": "max_turns"})


async def test_its_own_truncation_and_arguments_are_kept() -> None:
    env = hot_cold(arguments={"high": 900, "turns": 2})
    results = await play(env, task_of(env), [Reply.of("1"), Reply.of("2"), Reply.of("3")], seed=0)
    assert [result.truncated for result in results] == [False, True]
    assert results[-1].info["truncated_by"] == "env"


def test_a_foreign_gymnasium_env_goes_through_both_doors() -> None:
    env = hot_cold()
    played = both_doors(hot_cold, task_of(env), [str(number) for number in range(1, 9)], 0)
    assert played.direct == played.gymnasium
    assert len(played.direct) > 2


async def test_an_environment_of_ours_behind_gymnasium_comes_back_through_the_adapter() -> None:
    env = GymnasiumText(game="miles_agents.gym:miles_agents/python_math-v0", arguments={"level": 1}, train_size=2)
    task = task_of(env)
    begun = await env.reset(seed=0, options={"task": task})
    assert begun.observation[0].text.endswith("?")
    end = await env.step(Reply.of("\\boxed{0}"))
    assert (end.terminated, end.reward) == (True, 0.0)
    await env.close()


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("CartPol-v1", "Did you mean: `CartPole`"),
        ("no_such_module:Env-v0", "no_such_module"),
        (HOT_COLD.replace("HotCold", "Counting"), "observations are int, not texts"),
        (HOT_COLD.replace("HotCold", "HotColt"), "Did you mean 'HotCold'"),
        (HOT_COLD.replace("HotCold", "RudeGame"), "not a gymnasium.Env"),
        ("CartPole-v1", "observations are ndarray, not texts"),
    ],
)
async def test_what_cannot_be_played_is_refused_before_the_first_episode(game: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await GymnasiumText(game=game).open_shared()


def test_the_command_line_sets_the_game_and_its_arguments() -> None:
    words = ["env=gymnasium_text", "env.game=pkg:Env-v0", "env.arguments={high: 9, name: x}", "env.train_size=7"]
    config = to_object(compose_command("train", parse_overrides(words))).env
    assert (config.game, config.arguments, config.train_size) == ("pkg:Env-v0", {"high": 9, "name": "x"}, 7)
    with pytest.raises(ConfigError, match=r"env\.game is not given"):
        GymnasiumText()


# --- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "package", "extra"), [("textarena", "textarena", "textarena"), ("gem", "gem", "gem")])
async def test_a_missing_library_is_told_with_what_to_type(
    env: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"pip install 'miles-agents\[{extra}\]'"):
        await load_env_class(env)(game="GuessTheNumber-v0").open_shared()  # type: ignore[call-arg]


@needs_textarena
async def test_a_textarena_game_keeps_our_contract_and_halving_solves_it() -> None:
    env_class = load_env_class("textarena")
    env = env_class(game="GuessTheNumber-v0", train_size=4, validation_size=2, test_size=4)  # type: ignore[call-arg]
    await check_env(env)
    for task in env.tasks("test"):
        end = await bisected(env, task, 1, 20, "I guess [{}]")
        assert (end.terminated, end.info["rewards"], env.reward_range) == (True, {"game": 1.0}, (-1.0, 1.0))
        assert end.observation[0].text == "Congratulations! You guessed the correct number."


@needs_textarena
async def test_textarena_observations_hold_only_what_is_new() -> None:
    env = load_env_class("textarena")(game="GuessTheNumber-v0")  # type: ignore[call-arg]
    assert (await started(env)).startswith("You are Player 0. You are playing Guess The Number.")
    (first,) = await said(env, "[1]")
    assert first in ("The target number is higher.", "Congratulations! You guessed the correct number.")


@needs_textarena
@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("TicTacToe-v0", "for several players"),
        ("SecretMafia-v0", "for several players"),
        ("GuesTheNumber-v0", "Did you mean 'GuessTheNumber-v0'"),
    ],
)
async def test_textarena_games_for_several_and_unknown_ones_are_refused(game: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        await load_env_class("textarena")(game=game).open_shared()  # type: ignore[call-arg]


@needs_textarena
async def test_arguments_that_a_textarena_game_does_not_take_are_refused() -> None:
    env = load_env_class("textarena")(game="GuessTheNumber-v0", arguments={"colour": 1})  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="env.arguments"):
        await env.open_shared()


@needs_textarena
def test_a_textarena_game_goes_through_both_doors() -> None:
    env_class = load_env_class("textarena")
    task = task_of(env_class(game="Mastermind-v0"), "test")  # type: ignore[call-arg]
    actions = ["[1 2 3 4]", "[4 3 2 1]", "nonsense", "[2 1 4 3]"]
    played = both_doors(lambda: env_class(game="Mastermind-v0"), task, actions, 0)  # type: ignore[call-arg]
    assert played.direct == played.gymnasium
    assert len(played.direct) == 5


@needs_gem
async def test_a_gem_game_keeps_our_contract_and_halving_solves_it() -> None:
    handlers = list(logging.getLogger().handlers)
    env_class = load_env_class("gem")
    env = env_class(game="game:GuessTheNumber-v0-hard", train_size=4, validation_size=2, test_size=4)  # type: ignore[call-arg]
    await check_env(env)
    assert logging.getLogger().handlers == handlers, "importing GEM sets up logging; that is undone"
    for task in env.tasks("test"):
        end = await bisected(env, task, 1, 50, "\\boxed{{{}}}")
        assert (end.terminated, end.truncated, end.info["rewards"]) == (True, False, {"game": 1.0})


@needs_gem
async def test_gems_end_by_turns_is_terminated_and_its_hints_are_shown() -> None:
    env = load_env_class("gem")(game="game:GuessTheNumber-v0-easy")  # type: ignore[call-arg]
    task = task_of(env)
    results = await play(env, task, [Reply.of("\\boxed{11}")] * 9, seed=0)  # outside its range
    assert len(results) == 4
    assert results[0].observation[0].text.endswith("\nEnter your next guess.")
    assert (results[-1].terminated, results[-1].truncated) == (True, False)
    unread = await play(env, task, [Reply.of("eleven")], seed=0)
    assert (unread[0].terminated, unread[0].reward) == (True, -0.1)


@needs_gem
@pytest.mark.parametrize("game", ["rg:basic_arithmetic", "game:Sudoku-v0-easy", "game:Minesweeper-v0-easy"])
async def test_other_gem_environments_are_deterministic(game: str) -> None:
    env = load_env_class("gem")(game=game)  # type: ignore[call-arg]
    first = await started(env, number=1)
    assert await started(env, number=1) == first
    await env.close()


@needs_gem
@pytest.mark.parametrize(("game", "words"), [("game:Gues", "no such environment"), ("math:GSM8K", "needs a package")])
async def test_gem_environments_that_cannot_be_made_are_refused(game: str, words: str) -> None:
    if game == "math:GSM8K" and importlib.util.find_spec("datasets") is not None:
        pytest.skip("the package it needs is installed")
    with pytest.raises(UsageError, match=words):
        await load_env_class("gem")(game=game).open_shared()  # type: ignore[call-arg]
