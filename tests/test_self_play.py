"""Two seats: each has a conversation, a trajectory and a reward of its own, whoever plays it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted_runs import Scripted, pool_of

from miles_agents.checks.env import check_env
from miles_agents.configs import schema
from miles_agents.contracts import Draw
from miles_agents.envs.self_play import SelfPlay
from miles_agents.envs.self_play.negotiation import WORTH, Negotiation
from miles_agents.envs.self_play.tic_tac_toe import TicTacToe, shown, value
from miles_agents.errors import ConfigError, UsageError
from miles_agents.opponents import opponents
from miles_agents.rollout.buffer import BoundedStalenessBuffer
from miles_agents.rollout.player import EpisodePlayer, EpisodeSpec
from miles_agents.rollout.policy import ScriptedPolicy
from miles_agents.rollout.source import TaskSource
from miles_agents.types import EpisodeStatus, GenerateRequest, Message, Task, collate

EMPTY = {"board": "........."}


def _task(setting: Any = EMPTY, game: str = "tic_tac_toe") -> Task:
    return Task(id="t", prompt=(Message.user("go"),), metadata={"game": game, "setting": setting})


def _policy(*squares: int) -> ScriptedPolicy:
    """Plays these squares, in turn."""

    def answer(messages: Any, rng: Any) -> str:
        turn = sum(message.role == "assistant" for message in messages)
        return f"\\boxed{{{squares[turn]}}}"

    return ScriptedPolicy(answer)


async def _game(first: ScriptedPolicy, second: ScriptedPolicy, task: Task | None = None) -> Any:
    player = EpisodePlayer(policy=first, others={"second": second}, deadline_s=10)
    game = (task or _task()).metadata["game"]
    async with pool_of(lambda: SelfPlay(game=game)).lend() as env:
        return await player.play_seats(env, EpisodeSpec(task=task or _task(), group_id="d0", seed=3))


async def test_each_seat_gets_its_own_trajectory_reward_and_conversation() -> None:
    won, lost = await _game(_policy(1, 2, 3), _policy(5, 9))
    assert (won.seat, won.reward, won.rewards) == ("first", 1.0, {"game": 1.0, "invalid": 0.0})
    assert (lost.seat, lost.reward, lost.rewards) == ("second", 0.0, {"game": 0.0, "invalid": 0.0})
    assert [len(won.turns), len(lost.turns)] == [3, 2]
    assert "You are X" in won.prompt[0].text
    assert "You are O.\nX 2 3" in lost.prompt[0].text
    # What a seat is answered is what it hears next: the other's move on the board.
    assert won.turns[0].observation[0].text.endswith("X 2 3\n4 O 6\n7 8 9")
    assert lost.turns[0].observation[0].text.endswith("X X 3\n4 O 6\n7 8 9")
    assert won.turns[-1].observation[0].text == "The game is over: you get 1."
    assert [turn.reward for turn in won.turns] == [0.0, 0.0, 1.0]


async def test_ids_and_groups_name_the_seat_where_there_are_several() -> None:
    won, lost = await _game(_policy(1, 2, 3), _policy(5, 9))
    assert (won.id, lost.id) == ("d0/0/first", "d0/0/second")
    assert (won.group_id, lost.group_id) == ("d0/first", "d0/second")


async def test_a_draw_is_half_a_point_to_both() -> None:
    first, second = await _game(_policy(1, 3, 8, 4, 9), _policy(5, 2, 6, 7))
    # Board: X O X / X O O / O X X: no line.
    assert (first.reward, second.reward) == (0.5, 0.5)
    assert {first.status, second.status} == {EpisodeStatus.COMPLETED}


async def test_a_seat_that_makes_no_moves_forfeits_to_the_other() -> None:
    nonsense = ScriptedPolicy(lambda messages, rng: "I like squares.")
    first, second = await _game(_policy(1, 2, 3), nonsense)
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert second.rewards["invalid"] == 3.0
    assert len(second.turns) == 3


@pytest.mark.parametrize("said", ["\\boxed{1}", "\\boxed{10}", "\\boxed{}", "the corner: 3 or 7", "<think>\\boxed{7}"])
async def test_what_is_no_free_square_changes_nothing_and_is_answered(said: str) -> None:
    game = TicTacToe({"board": "X........"})
    assert game.play("second", said)
    assert game.told("second", at_first=False).endswith(shown("X........"))
    assert game.to_act == "second"


async def test_an_unfinished_game_is_worth_nothing() -> None:
    env = SelfPlay()
    await env.reset(seed=0, options={"task": _task()})
    result = await env.truncate("context")
    assert result.info["seat_rewards"] == {"first": 0.0, "second": 0.0}
    with pytest.raises(UsageError):
        await env.truncate("context")


async def test_both_seats_of_one_policy_are_trained_each_in_its_own_group() -> None:
    moves = {"first": ["1", "2", "3"], "second": ["5", "9"]}

    def script(request: GenerateRequest) -> str:
        *_, seat, turn = request.request_id.split("/")
        return f"\\boxed{{{moves[seat][int(turn)]}}}"

    workers = Scripted(script, max_tokens=2000).workers(pool_of(SelfPlay), group_size=2)
    groups = await workers.play_groups(Draw(index=0, task=_task(), version=0))
    assert [(group.id, group.seat, len(group.trajectories)) for group in groups] == [
        ("d0/first", "first", 2),
        ("d0/second", "second", 2),
    ]
    batch = collate(groups)
    assert batch.rewards.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert batch.group_ids.tolist() == ["d0/first", "d0/first", "d0/second", "d0/second"]
    buffer = BoundedStalenessBuffer(TaskSource([_task()], seed=0), groups_per_step=1, max_staleness=0)
    await buffer.admit()
    await buffer.put(*groups)
    taken = await buffer.take(1)
    assert [group.seat for group in taken] == ["first", "second"]
    saved = buffer.state_dict()
    again = BoundedStalenessBuffer(TaskSource([_task()], seed=0), groups_per_step=1, max_staleness=0)
    again.load_state_dict(saved)
    assert [group.id for group in await again.take(1)] == ["d0/first", "d0/second"]
    await buffer.release(taken, version=1)
    assert (await buffer.admit()).index == 1


async def test_a_seat_that_another_plays_is_not_trained() -> None:
    def script(request: GenerateRequest) -> str:
        return f"\\boxed{{{['1', '2', '3'][int(request.request_id.rsplit('/', 1)[1])]}}}"

    world = Scripted(script, max_tokens=2000)
    world.player.others["second"] = _policy(5, 9)
    groups = await world.workers(pool_of(SelfPlay), group_size=2).play_groups(Draw(index=0, task=_task(), version=0))
    assert [group.seat for group in groups] == ["first"]


def test_perfect_players_draw_and_never_lose() -> None:
    assert value("." * 9) == 0
    rng = np.random.default_rng(5)
    players = TicTacToe.opponents
    for start in TicTacToe.starts():
        game, mine = TicTacToe(start.setting), "second"
        if value(start.setting["board"]) * (1 if game.to_act == mine else -1) < 0:
            continue  # lost already against best play
        while game.result is None:
            seat = game.to_act
            who = players["perfect" if seat == mine else "random"]
            assert not game.play(seat, who(game.told(seat, at_first=False), rng))
        assert game.result[mine] >= 0.5, start


def test_values_of_a_negotiation_add_up_and_a_deal_pays_both_by_their_own() -> None:
    for start in Negotiation.starts():
        for seat in ("first", "second"):
            counts, values = start.setting["counts"], start.setting[seat]
            assert sum(c * v for c, v in zip(counts, values, strict=True)) == WORTH
    game = Negotiation({"counts": [2, 1, 1], "first": [1, 5, 3], "second": [4, 2, 0]})
    assert "2 books, worth 1 each" in game.told("first", at_first=True)
    assert game.play("first", "Hello.\nPROPOSE: 1 books, 1 hats, 1 balls") == ""
    assert "PROPOSE: 1 books" in game.told("second", at_first=True)
    assert "worth 4 each" in game.told("second", at_first=True)
    assert "worth 5" not in game.told("second", at_first=True)
    assert game.play("second", "ACCEPT") == ""
    assert game.result == {"first": 0.9, "second": 0.4}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("PROPOSE: 3 books", "only 2 books"),
        ("PROPOSE: 1 books, 1 books", "each once"),
        ("PROPOSE: all", "amounts of"),
        ("ACCEPT", "no proposal"),
    ],
)
def test_a_command_that_means_nothing_is_answered_and_changes_nothing(said: str, why: str) -> None:
    game = Negotiation({"counts": [2, 1, 1], "first": [1, 5, 3], "second": [4, 2, 0]})
    assert why in game.play("first", said)
    assert game.to_act == "first"
    assert game.result is None


def test_nobody_accepts_an_own_proposal_and_talk_alone_ends_with_nothing() -> None:
    game = Negotiation({"counts": [2, 1, 1], "first": [1, 5, 3], "second": [4, 2, 0]})
    game.play("first", "PROPOSE: 2 books, 1 hats, 1 balls")
    game.play("second", "No.")
    assert "no proposal" in game.play("first", "ACCEPT")
    for turn in range(8):
        assert game.play(game.to_act, f"Well, {turn}.") == ""
    assert game.result == {"first": 0.0, "second": 0.0}


@pytest.mark.parametrize("game", ["tic_tac_toe", "negotiation"])
async def test_self_play_keeps_the_contract(game: str) -> None:
    await check_env(SelfPlay(game=game))


def test_starts_of_a_split_are_no_other_splits() -> None:
    env = SelfPlay()
    sizes = {split: len(list(env.tasks(split))) for split in env.splits}
    assert sum(sizes.values()) == 1 + 9 + 72 + 252
    assert min(sizes.values()) > 15


def test_an_unknown_game_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'tic_tac_toe'"):
        SelfPlay(game="tic_tac_to")


def _config(asked: dict[str, str]) -> Any:
    rollout = schema.RolloutConfig(opponents=asked)
    return SimpleNamespace(
        rollout=rollout, cluster=schema.ClusterConfig(), model=schema.ModelConfig(name="x", source="x")
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"third": "random"}, "no seat 'third'"),
        ({"first": "random", "second": "random"}, "takes all seats"),
        ({"second": "perfekt"}, "no player or model folder 'perfekt'"),
    ],
)
async def test_opponents_that_cannot_play_are_refused(asked: dict[str, str], said: str) -> None:
    config = _config(asked)
    with pytest.raises(ConfigError, match=said):
        async with opponents(config, SelfPlay(), concurrency=1):
            raise AssertionError


async def test_a_scripted_opponent_plays_as_its_name_says() -> None:
    config = _config({"second": "perfect"})
    async with opponents(config, SelfPlay(), concurrency=1) as found:
        assert found["second"].name == "perfect"
        results = [await _game(_policy(1, 2, 3, 4, 6, 7, 8, 9), found["second"]) for _ in range(2)]  # type: ignore[arg-type]
    assert results[0][1].reward == 1.0  # 1, 2 against 5, 3, and then 7
    assert [turn.text for turn in results[0][1].turns] == [turn.text for turn in results[1][1].turns]
