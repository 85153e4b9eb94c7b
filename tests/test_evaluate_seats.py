"""Evaluations of environments with several seats: rows per seat, opponents, and both on one table."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import command
from evaluated import evaluate, records, results, successor, write_envs
from openai_server import OpenAIServer, says, serving


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_envs(tmp_path)
    return tmp_path


def _games(server: OpenAIServer, *words: str) -> list[str]:
    address = f"engine.base_url={server.base_url}"
    return ["env=self_play", "engine=openai", "model=m", address, "split=train", "rollout.max_tokens=4000", *words]


def _nonsense(_: object) -> object:
    return says("I like squares.")


def test_both_seats_of_one_policy_have_rows_and_a_task_counts_once() -> None:
    # No reply is a move: whoever has three of them first, the seat that begins, forfeits.
    with serving(_nonsense) as server:
        done = command("evaluate", *_games(server, "tasks=4", "samples=2", "run_dir=run"))
    assert done.code == 0, done.err
    found = results("run")
    total, rows = found["total"], {row["name"]: row for row in found["rows"]}
    assert (total["tasks"], total["episodes"], total["accuracy"]) == (4, 16, 0.5)
    assert set(rows) >= {"seat=first", "seat=second"}
    assert all(rows[f"seat={seat}"]["episodes"] == 8 for seat in ("first", "second"))
    assert rows["seat=first"]["accuracy"] + rows["seat=second"]["accuracy"] == 1.0  # one of them wins each game
    assert "opponents" not in found
    assert "seat=first (4)" in done.out
    assert {record["seat"] for record in records("run")} == {"first", "second"}


@pytest.mark.parametrize(("seat", "other"), [("first", "second"), ("second", "first")])
def test_against_an_opponent_the_row_is_that_of_the_other_seat(seat: str, other: str) -> None:
    with serving(_nonsense) as server:
        words = _games(server, "tasks=3", f"rollout.opponents={{{other}: perfect}}", "run_dir=run")
        done = command("evaluate", *words)
        assert done.code == 0, done.err
        asked = len(server.requests)
        again = command("evaluate", "run_dir=run", "resume=true")  # nothing is left to play
        assert again.code == 0, again.err
        assert len(server.requests) == asked
        whole = command("evaluate", *words[:-1], "run_dir=whole")
    assert whole.code == 0, whole.err
    found = results("run")
    assert found["opponents"] == {other: "perfect"}
    assert [row["name"] for row in found["rows"] if row["name"].startswith("seat=")] == [f"seat={seat}"]
    assert (found["total"]["episodes"], found["total"]["accuracy"], found["total"]["mean_reward"]) == (3, 0.0, 0.0)
    assert {record["seat"] for record in records("run")} == {seat}
    assert f"{other}: perfect" in done.out
    assert Path("run/results.json").read_bytes() == Path("whole/results.json").read_bytes()


def test_of_several_environments_each_takes_the_opponents_of_its_own_seats() -> None:
    with serving(lambda request: says("1") if "squares" in str(request) else successor(request)) as server:
        words = _games(server, "tasks=2", "rollout.opponents={second: random}", "run_dir=run")
        done = command("evaluate", *words[1:], "env=[./envs_here.py:Sums,self_play]")
    assert done.code == 0, done.err
    found = results("run")["environments"]
    assert found["self_play"]["opponents"] == {"second": "random"}
    assert "opponents" not in found["Sums"]
    assert found["Sums"]["total"]["episodes"] == 2


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rollout.opponents={third: perfect}", "no seat 'third'"),
        ("rollout.opponents={second: perfct}", "Did you mean 'perfect'"),
        ("rollout.opponents={second: perfect,first: perfect}", "leave out the one to play"),
        ("rollout.opponents={second: ./nowhere}", "no player or model folder './nowhere'"),
    ],
)
def test_an_opponent_that_is_not_there_is_refused_before_anything_is_played(word: str, said: str) -> None:
    with serving(successor) as server:
        alone = command("evaluate", *_games(server, word))
        words = _games(server, word)[1:]
        among = command("evaluate", *words, "env=[./envs_here.py:Sums,self_play]")
        assert server.requests == []
    for done in (alone, among):
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1
    assert not Path("outputs").exists()


def test_an_environment_of_one_seat_takes_no_opponent() -> None:
    with serving(successor) as server:
        done = evaluate(server, "rollout.opponents={second: perfect}")
        assert server.requests == []
    assert (done.code, done.out) == (2, "")
    assert "no seat 'second'" in done.err
