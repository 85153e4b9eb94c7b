"""`guess_number` and `wordle`: rules, rewards, perfect play without the secret."""

import pytest

from miles_agents import Reply
from miles_agents.checks.env import check_env, play
from miles_agents.envs.guess_number.env import GuessNumber, read_guess
from miles_agents.envs.wordle.env import Wordle, best_guess, marks
from miles_agents.envs.wordle.words import WORDS
from miles_agents.errors import ConfigError, UsageError
from miles_agents.types import Message, Task, ToolCall


def calls(*words):
    each = (ToolCall(id=f"c{n}", name="guess", arguments={"word": word}, raw="…") for n, word in enumerate(words))
    return Reply(text="…", calls=tuple(each))


def said(result):
    return [message.text for message in result.observation]


# --- guess_number -----------------------------------------------------------------------------------------------------


def number_task(secret=150):
    answer = {"low": 100, "high": 199, "secret": secret}
    return Task(id="t", prompt=(Message.user("from 100 to 199"),), answer=answer)


async def test_guess_number_keeps_the_contract_of_environments():
    await check_env(GuessNumber(), tasks_per_split=5)


async def test_a_guess_is_answered_too_low_or_too_high_until_it_is_right():
    env = GuessNumber(size=100, max_guesses=4)
    results = await play(env, number_task(), [Reply.of(text) for text in ("120", "Is it 170?", "150!")], seed=0)
    assert [said(each) for each in results] == [
        ["120 is too low. 3 guesses left."],
        ["170 is too high. 2 guesses left."],
        ["150 is right."],
    ]
    assert results[-1].terminated
    assert results[-1].reward == 1.0
    assert results[-1].info["rewards"] == {"solved": 1.0, "spared": 0.25}


async def test_invalid_guesses_are_told_and_count():
    env = GuessNumber(size=100, max_guesses=3)
    results = await play(env, number_task(), [Reply.of(text) for text in ("hm", "7", "1,500", "150")], seed=0)
    assert [said(each) for each in results] == [
        ["There is no whole number in that reply. It counts as a guess. 2 guesses left."],
        ["7 is not from 100 to 199. It counts as a guess. 1 guess left."],
        ["There is no whole number in that reply. It counts as a guess. That was the last guess."],
    ]
    assert results[-1].terminated
    assert results[-1].reward == 0.0


async def test_a_reply_cut_short_is_no_guess():
    env = GuessNumber(size=100)
    (result,) = await play(env, number_task(), [Reply(text="150", content="150", truncated=True)], seed=0)
    assert result.truncated
    assert result.info == {"rewards": {"solved": 0.0, "spared": 0.0}, "truncated_by": "max_new_tokens"}


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("12", 12),
        ("first 12, then 15.", 15),
        ("12.5", None),
        ("x12", None),
        ("-3", 3),
        ("1234567890", None),
        ("", None),
    ],
)
def test_the_guess_is_the_last_whole_number(text, guess):
    assert read_guess(text) == guess


async def test_halving_wins_every_game_within_its_guesses():
    env = GuessNumber()
    for split in env.splits:
        for task in env.tasks(split)[:150]:
            results = await play(env, task, env.oracle(task), seed=0)
            assert results[-1].reward == 1.0
            assert len(results) <= 10


def test_no_range_and_no_secret_is_in_two_splits():
    env = GuessNumber()
    for part in ("low", "secret"):
        found = {split: {task.answer[part] for task in env.tasks(split)} for split in env.splits}
        assert len(set().union(*found.values())) == sum(map(len, found.values()))
    assert [len(env.tasks(split)) for split in env.splits] == [4096, 256, 512]


def test_secrets_do_not_stand_in_the_prompt():
    for task in GuessNumber().tasks("train"):
        edges = (task.answer["low"], task.answer["high"])
        assert str(task.answer["secret"]) not in task.prompt[0].text or task.answer["secret"] in edges


# --- wordle -----------------------------------------------------------------------------------------------------------


def word_task(secret):
    return Task(id="t", prompt=(Message.user("Find it."),), answer=secret)


async def test_wordle_keeps_the_contract_of_environments():
    await check_env(Wordle(), tasks_per_split=5)


@pytest.mark.parametrize(
    ("secret", "guess", "marked"),
    [
        ("crane", "crane", "====="),
        ("crane", "piano", "..==."),
        ("apple", "paper", "~~=~."),  # one p at its place, one elsewhere
        ("crane", "eerie", "..~.="),  # one e at its place: none is left for the others
        ("eager", "geese", "~~~.."),  # two e in the secret
        ("llama", "level", "=...~"),
    ],
)
def test_letters_are_marked_as_often_as_the_secret_has_them(secret, guess, marked):
    assert marks(secret, guess) == marked


async def test_a_game_of_wordle():
    env = Wordle(max_guesses=4)
    results = await play(env, word_task("crane"), [calls("PIANO "), calls("c r a n e"), calls("crane")], seed=0)
    assert [said(each) for each in results] == [
        ["piano ..==. (3 guesses left)"],
        ["a guess is five letters from a to z; this one counts all the same (2 guesses left)"],
        ["crane ===== (found)"],
    ]
    assert results[-1].reward == 1.0
    assert results[-1].info["rewards"] == {"solved": 1.0, "spared": 0.25}


async def test_guesses_of_one_reply_count_each_and_those_behind_the_end_do_not_run():
    env = Wordle(max_guesses=2)
    (result,) = await play(env, word_task("crane"), [calls("piano", "salad", "crane")], seed=0)
    assert said(result)[:2] == ["piano ..==. (1 guess left)", "salad .~... (no guess left)"]
    assert "not executed" in said(result)[2]
    assert result.terminated
    assert result.reward == 0.0


async def test_a_reply_without_a_guess_ends_the_game():
    env = Wordle()
    results = await play(env, word_task("crane"), [calls("piano"), Reply.of("crane")], seed=0)
    assert results[-1].terminated
    assert results[-1].reward == 0.0


async def test_a_game_leaves_nothing_to_the_next_one():
    env = Wordle(max_guesses=2)
    for _ in range(2):
        results = await play(env, word_task("crane"), [calls("salad"), calls("crane")], seed=0)
        assert results[-1].reward == 1.0
    assert (await play(env, word_task("crane"), [Reply.of("…")], seed=0))[-1].reward == 0.0


async def test_the_consistent_player_wins_every_game_within_its_guesses():
    env = Wordle()
    for split in env.splits:
        for task in env.tasks(split)[:120]:
            results = await play(env, task, env.oracle(task), seed=0)
            assert results[-1].reward == 1.0
            assert len(results) <= 6


def test_the_best_guess_leaves_the_fewest_at_worst():
    # "bcbbb" tells all the others apart, "aaaaa" only itself and "bcbbb" from the rest
    assert best_guess(["aaaaa", "abbbb", "acccc", "bcbbb"]) == "bcbbb"
    assert best_guess(["light", "fight", "tight"]) == "light"  # all alike: the first


def test_words_are_distinct_and_no_listed_word_is_in_two_splits():
    assert len(WORDS) == len(set(WORDS)) == 656
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in WORDS)
    env = Wordle()
    listed = {split: {word for task in env.tasks(split) for word in words_of(task)} for split in env.splits}
    assert all(task.answer in words_of(task) for split in env.splits for task in env.tasks(split))
    assert len(set().union(*listed.values())) == sum(map(len, listed.values()))
    assert [len(env.tasks(split)) for split in env.splits] == [2048, 128, 256]


def words_of(task):
    return task.prompt[0].text.rpartition("\n")[2].split()


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_class", [GuessNumber, Wordle])
async def test_the_shaped_remainder_counts_only_with_a_weight(env_class):
    env = env_class(spared_weight=0.5)
    task = env.tasks("train")[0]
    results = await play(env, task, env.oracle(task), seed=0)
    spared = results[-1].info["rewards"]["spared"]
    assert spared == (env.max_guesses - len(results)) / env.max_guesses
    assert results[-1].reward == 1.0 + 0.5 * spared
    assert env.reward_range == (0.0, 1.5)


@pytest.mark.parametrize(
    ("env_class", "settings", "message"),
    [
        (GuessNumber, {"size": 10}, r"env\.size=10: it must be from 100"),
        (GuessNumber, {"max_guesses": 0, "train_size": 0}, r"env\.max_guesses=0: .*; env\.train_size=0"),
        (Wordle, {"candidates": 100}, r"env\.candidates=100: it must be from 8 to 48"),
        (Wordle, {"spared_weight": float("nan")}, r"env\.spared_weight=nan"),
    ],
)
def test_values_out_of_range_are_refused(env_class, settings, message):
    with pytest.raises(ConfigError, match=message):
        env_class(**settings)


@pytest.mark.parametrize("env_class", [GuessNumber, Wordle])
async def test_what_is_no_task_or_split_is_refused(env_class):
    with pytest.raises(UsageError, match="needs options"):
        await env_class().reset()
    with pytest.raises(ConfigError, match="unknown split 'dev'"):
        env_class().tasks("dev")
