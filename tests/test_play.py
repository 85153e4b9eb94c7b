"""`python -m miles_agents.play`: a person, a file, the oracle or a model plays one episode in the terminal."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from miles_agents.play import main

ROOT = Path(__file__).parents[1]
SHOP = f"env={ROOT}/examples/shop.py:Shop"
BASKET = "task=basket-0"  # 11 apples and 2 mangos: 11 * 35 + 2 * 240 = 865 cents


class Done(NamedTuple):
    code: int
    out: str
    err: str


def play(*words: str, typed: str = "", monkeypatch: pytest.MonkeyPatch) -> Done:
    """Run the command in this process, with `typed` as what comes from the keyboard."""
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return Done(code, out.getvalue(), err.getvalue())


def start(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "miles_agents.play", *words]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


# --- a person ---------------------------------------------------------------------------------------------------------


def test_a_person_calls_tools_and_hands_in_the_answer_over_a_pipe() -> None:
    typed = (
        '/tools\n/call price {"fruit": "apple"}\n'
        'Let me see.\n<tool_call>{"name": "price", "arguments": {"fruit": "mango"}}</tool_call>\n\n'
        '/call submit {"answer": "865"}\n'
    )
    with start(SHOP, BASKET) as process:
        out, err = process.communicate(typed, timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "task basket-0 (train), seed 0\ntools: calculator, submit, price\n" in out
    assert 'price: The price of one piece.\n  fruit (one of "apple", "mango", "pear"): which one.' in out
    assert "[tool price]\n35 cents" in out
    assert "Let me see.\n<tool_call>" in out
    assert "[tool price]\n240 cents" in out
    assert out.endswith("the episode is terminated\nreward 1\n  reward 1\n")


def test_a_reply_is_sent_by_an_empty_line_or_a_dot_and_a_double_slash_begins_one_with_a_slash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for typed, said in [
        ("\n\none\ntwo\n\n", "[assistant]\none\ntwo\n"),
        ("one\n.\nrest", "[assistant]\none\n"),
        ("//quit it\n\n", "[assistant]\n/quit it\n"),
        ("one\n/quit\n\n", "[assistant]\none\n/quit\n"),
        ("no line ends here", "[assistant]\nno line ends here\n"),
        (".\n", "[assistant]\n\n"),
    ]:
        done = play(SHOP, BASKET, typed=typed, monkeypatch=monkeypatch)
        assert done.code == 0, done
        assert said in done.out
        assert "reward 0" in done.out


def test_commands_that_cannot_be_meant_are_answered_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = '/help\n/tols\n/call prize {}\n/call price {"fruit": \n/call price [1]\n/quit\n'
    done = play(SHOP, BASKET, typed=typed, monkeypatch=monkeypatch)
    assert done.code == 0
    for part in (
        "a line with a single dot",
        "unknown command '/tols'. Did you mean '/tools'",
        "no tool 'prize'. Did you mean 'price'",
        "the arguments are no JSON (",
        'write /call price {"argument": …}',
        "the arguments are no JSON object",
        "left unfinished",
    ):
        assert part in done.out
    assert "[assistant]" not in done.out


@pytest.mark.parametrize("typed", ["", "/quit\n", '/call price {"fruit": "apple"}\n'])
def test_the_end_of_what_is_typed_leaves_the_episode_without_a_score(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = play(SHOP, BASKET, typed=typed, monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("the episode is left unfinished: there is no score\n")


def test_what_tools_print_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    done = play(SHOP, BASKET, typed="\x1b[2Jclear\n\n", monkeypatch=monkeypatch)
    assert "␛[2Jclear" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_command_cleanly_while_it_waits_for_a_line(number: signal.Signals) -> None:
    with start(SHOP, BASKET) as process:
        assert process.stdout is not None
        while "type a reply" not in process.stdout.readline():
            pass
        time.sleep(0.2)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "interrupted\n")


# --- others -----------------------------------------------------------------------------------------------------------


def test_a_file_plays_as_if_it_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "replies.txt"
    file.write_text('/call price {"fruit": "apple"}\n/call submit {"answer": "865"}\n')
    done = play(SHOP, BASKET, f"replies={file}", monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("reward 1\n  reward 1\n")
    assert "type a reply" not in done.out
    file.write_text('/call price {"fruit": "apple"}\n')
    done = play(SHOP, BASKET, f"replies={file}", monkeypatch=monkeypatch)
    assert done.code == 1, "a file that does not come to the end has no score"
    assert "left unfinished" in done.out


def test_the_oracle_plays_to_the_full_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    done = play(SHOP, "oracle=true", "split=test", "task=7", monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert "task basket-23 (test)" in done.out, "the eighth of 2, 5, 8, …"
    assert done.out.endswith("the episode is terminated\nreward 1\n  reward 1\n")


def test_a_truncated_episode_says_by_what(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = '/call price {"fruit": "apple"}\n' * 2
    done = play(SHOP, BASKET, "env.max_turns=2", typed=typed, monkeypatch=monkeypatch)
    assert done.code == 0
    assert "the episode is truncated by max_turns\nreward 0\n" in done.out


def test_the_seed_draws_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [play(SHOP, f"seed={seed}", monkeypatch=monkeypatch).out.splitlines()[0] for seed in (1, 2, 1)]
    assert drawn[0] == drawn[2]
    assert drawn[0].removesuffix("seed 1") != drawn[1].removesuffix("seed 2")


@pytest.mark.sandbox
def test_the_oracle_of_python_math_uses_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    done = play("env.level=1", "oracle=true", "sandbox=namespace", "task=level1/train/5", monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert "[tool python]" in done.out
    assert "reward 1\n  answer 1\n  format 1\n" in done.out


@pytest.mark.sandbox
def test_one_watches_a_model_play(starter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("env.level=1", f"model={starter}", "task=2", "split=test", "cluster.threads=1")
    done = play(*words, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert "[user]\n" in done.out
    assert "[assistant]\n" in done.out
    assert "\nreward " in done.out
    assert play(*words, monkeypatch=monkeypatch).out == done.out, "the same seed, the same episode"


def test_a_model_without_room_for_its_turn_is_truncated_by_the_context(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (f"model={tiny_model}", "max_tokens=300", "max_new_tokens=290", "cluster.threads=1")
    done = play(f"env={ROOT}/examples/my_env.py:Weekdays", *words, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert "the episode is " in done.out


# --- several seats ----------------------------------------------------------------------------------------------------

BOARD = ("env=self_play", "task=tic_tac_toe/board-.........", "split=train")


def test_a_person_plays_against_a_scripted_player(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "\n\n".join(f"\\boxed{{{square}}}" for square in (5, 5, 5, 5, "")) + "\n\n"
    done = play(*BOARD, "opponents={second: perfect}", typed=typed, monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert "You are X." in done.out
    assert "You are O." not in done.out, "what the opponent is told is not one's own"
    assert "4 X 6" in done.out
    assert "Square 5 is taken." in done.out
    assert done.out.endswith("the episode is terminated\nreward 0\n  game 0\n  invalid 3\n"), "a forfeit"


def test_alone_a_person_plays_all_seats_and_each_has_its_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "\n\n".join("15293") + "\n\n"  # X takes 1, 2, 3
    done = play(*BOARD, typed=typed, monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert "you play first and second in turn; opponents={second: …} seats one of: random, perfect" in done.out
    assert [line for line in done.out.splitlines() if line.startswith("--- ")] == [
        "--- first",
        "--- second",
        "--- first",
        "--- second",
        "--- first",
    ]
    assert "reward of first 1\n  game 1\n  invalid 0\nreward of second 0\n" in done.out


def test_the_oracle_plays_both_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    done = play(*BOARD, "oracle=true", monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert "reward of first 1\n" in done.out
    assert "you play" not in done.out


def test_what_an_opponent_said_last_is_shown_where_it_ended_the_game(
    starter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("opponents={second: starter}", "cluster.threads=1", "max_new_tokens=8")
    done = play(*BOARD, *words, typed="3\n\n", monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert done.out.count("\n[second]\n") == 3, "three replies that are no moves"
    assert done.out.endswith("reward 1\n  game 1\n  invalid 0\n")


def test_one_watches_a_model_against_a_scripted_player(starter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (f"model={starter}", "opponents={first: random}", "cluster.threads=1", "max_new_tokens=8")
    done = play(*BOARD, *words, monkeypatch=monkeypatch)
    assert (done.code, done.err) == (0, "")
    assert "--- first" in done.out
    assert "--- second" in done.out
    assert "reward of first 1\n" in done.out


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((SHOP, "task=basket-x"), "Did you mean 'basket-"),
        ((SHOP, "task=100000"), "a number up to 999"),
        ((SHOP, "split=tset"), "Did you mean 'test'"),
        ((SHOP, "replies=./nothing.txt"), "nothing.txt"),
        ((SHOP, "oracle=true", "replies=x.txt"), "one of them can play"),
        ((SHOP, "oracle=true", "model=starter"), "one of them can play"),
        ((f"env={ROOT}/examples/my_env.py:Weekdays", "oracle=true"), "has no oracle"),
        ((SHOP, "seed=-1"), "at least 0"),
        ((SHOP, "max_new_tokens=0"), "at least 1"),
        ((SHOP, "model=./nothing_here"), "nothing_here"),
        ((SHOP, "trainer.lr=1"), "trainer.lr"),
        (("env=shp",), "unknown environment 'shp'"),
        (("env=self_play", "opponents={secnd: random}"), "no seat 'secnd' in this environment. Did you mean 'second'"),
        (("env=self_play", "opponents={second: randm}"), "no player or model folder 'randm'. Did you mean 'random'"),
        (("env=self_play", "opponents={first: random, second: random}"), "leave out the one to play"),
        (("env=self_play", "opponents={first: random}", "oracle=true"), "the oracle plays every seat"),
        ((SHOP, "opponents={second: random}"), "no seat 'second'"),
        (("env=gymnasium_text",), "env.game is not given"),
        ((SHOP, "model=starter", "max_tokens=100", "max_new_tokens=200"), "max_new_tokens=200 leaves no room"),
        ((SHOP, "env.max_turn=2"), "env.max_turns"),
    ],
)
def test_bad_words_get_one_message_and_exit_code_2(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = play(*words, typed="x\n\n", monkeypatch=monkeypatch)
    assert done.code == 2, done
    assert said in done.err
    assert len(done.err.splitlines()) == 1, "one message"
    assert done.out == ""


def test_help_names_every_key_and_loads_no_torch() -> None:
    code = (
        "import sys; from miles_agents.play import main; main(['--help']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for part in (
        "usage: python -m miles_agents.play",
        "  oracle=false ",
        "its id, or its number",
        " | starter | a folder",
    ):
        assert part in done.stdout
