"""The benchmark of answer checkers: how it counts, and that a peer that freezes is killed and counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import answers
from benchmarks.answers import Judged, Pair, Peer, by_group, counted, gsm8k_pairs, main, summary
from miles_agents.answers import equivalent
from miles_agents.errors import UsageError

EQUAL, UNEQUAL = Pair("1", "1.0", True, "pairs: a"), Pair("1", "2", False, "GSM8K b")

FROZEN_AT_TOWERS = """#!{python}
import json, sys, time
print("ready", flush=True)
for line in sys.stdin:
    gold, answer = json.loads(line)
    if "^" in answer:
        time.sleep(60)
    print(json.dumps([gold == answer, 0.25]), flush=True)
"""


def a_peer(tmp_path: Path, source: str) -> Peer:
    """A checker that stands for another project's interpreter."""
    script = tmp_path / "python"
    script.write_text(source.format(python=sys.executable))
    script.chmod(0o755)
    return Peer(script, "math-verify")


def test_wrong_verdicts_are_counted_by_their_kind() -> None:
    judged = [
        Judged(EQUAL, True, 0.001),
        Judged(EQUAL, False, 0.001),
        Judged(EQUAL, None, 0.001),
        Judged(EQUAL, "ValueError", 0.001),
        Judged(EQUAL, "frozen", 10.0),
        Judged(UNEQUAL, True, 0.003),
        Judged(UNEQUAL, False, 0.003),
    ]
    assert counted(judged) == (1, 1, 2, 1)
    right = [Judged(each.pair, each.pair.equal, 0.001) for each in judged]
    assert list(by_group({"x": judged, "y": right}))[2:] == [
        "| pairs: a | 5 | 0 / 1 / 3 | · |",
        "| GSM8K b | 2 | 1 / 0 / 0 | · |",
    ]
    assert list(summary({"x": judged}))[2:] == [
        "| x, pairs | 5 | 0 | 1 | 2 | 1 | 1.00 | 1.00 |",
        "| x, GSM8K | 2 | 1 | 0 | 0 | 0 | 3.00 | 3.00 |",
    ]


def test_a_peer_that_freezes_is_killed_counted_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = a_peer(tmp_path, FROZEN_AT_TOWERS)
    try:
        assert peer.judge(Pair("1", "1", True, "a")) == (True, 0.25)
        monkeypatch.setattr(answers, "_PAIR_S", 0.2)
        assert peer.judge(Pair("7", "10^{10^{10}}", False, "a")) == ("frozen", 0.2)
        monkeypatch.setattr(answers, "_PAIR_S", 30.0)
        assert peer.judge(Pair("1", "2", False, "a")) == (False, 0.25)
    finally:
        peer.close()


def test_a_peer_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ModuleNotFoundError: No module named 'math_verify'"):
        a_peer(tmp_path, "#!{python}\nraise ModuleNotFoundError(\"No module named 'math_verify'\")\n")


def test_an_interpreter_that_is_not_there_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--golds", "0", "--peers-python", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"--peers-python {tmp_path / 'none'}: No such file or directory\n"


def test_our_own_row_judges_every_committed_pair_rightly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--golds", "0", "--wrong"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:6] for line in lines[2:4]] == [
        ["| miles_agents, pairs", "252", "0", "0", "0", "0"],
        ["| miles_agents, independent_pairs", "700", "0", "0", "0", "0"],
    ]
    assert not any(line.startswith("miles_agents: ") for line in lines)


@pytest.mark.parametrize("words", [["--golds", "-1"], ["--golds", "1320"]])
def test_golds_that_cannot_be_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"--golds {words[1]}: it is 0 to 1319\n"


def test_families_give_a_true_form_and_a_near_miss_of_each_gold() -> None:
    if not answers._DATA.is_file():
        pytest.skip(f"no {answers._DATA}: MILES_AGENTS_DATA names the folder of data")
    found = gsm8k_pairs(2)
    assert len(found) == 2 * 28 * 2
    assert [equivalent(pair.gold, pair.answer).correct for pair in found] == [pair.equal for pair in found]


def test_the_peers_process_needs_nothing_but_its_checker() -> None:
    script = Path(answers.__file__).with_name("answers_peer.py")
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, "another"], capture_output=True, text=True, timeout=60, check=False
    )  # without any installed package
    assert done.stderr.endswith("KeyError: 'another'\n")
