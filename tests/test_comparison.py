"""Two evaluations, task by task. Expected values worked out by hand."""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any

import pytest
from command_runs import Done, command

from miles_agents.comparison import compare, mcnemar_p
from miles_agents.errors import RunFolderError


def _run(folder: Path, outcomes: dict[str, str], name: str = "sums") -> Path:
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"name": name, "outcomes": outcomes}))
    return folder


def _compare(*words: object) -> Done:
    return command("evaluate", "compare", *map(str, words))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    # 10 shared tasks: both solve t0–t3, b alone t4–t8, a alone t9
    a = {f"t{n}": "1" if n < 4 or n == 9 else "0" for n in range(10)} | {"a_only": "1"}
    b = {f"t{n}": "0" if n == 9 else "1" for n in range(10)} | {"b1": "0", "b2": "0", "lost": "-"}
    return _run(tmp_path / "a", {**a, "lost": "1"}), _run(tmp_path / "b", b)


def test_differences_are_paired_by_task(runs: tuple[Path, Path]) -> None:
    [found] = compare(*runs)
    assert (found.tasks_a, found.tasks_b, found.shared, found.paired) == (12, 13, 11, 10)
    assert (found.accuracy_a, found.accuracy_b, found.difference) == (0.5, 0.9, pytest.approx(0.4))
    assert found.gained == ("t4", "t5", "t6", "t7", "t8")
    assert found.lost == ("t9",)
    # 6 changed, 1 of them against: 2 · (1 + 6) / 64
    assert found.mcnemar_p == 14 / 64
    # the mean of 10 draws of five +1, one −1, four 0: standard error sqrt(0.44 / 10) = 0.2098, in steps of 0.1
    assert found.difference_low == pytest.approx(0.4 - 1.96 * 0.2098, abs=0.1)
    assert found.difference_high == pytest.approx(0.4 + 1.96 * 0.2098, abs=0.1)
    assert compare(*runs) == [found]
    [turned] = compare(*runs[::-1])
    assert (turned.difference, turned.mcnemar_p) == (-found.difference, found.mcnemar_p)
    assert (turned.gained, turned.lost) == (found.lost, found.gained)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (0, 5), (5, 1), (3, 3), (10, 2), (40, 60)])
def test_mcnemars_p_is_exact(gained: int, lost: int) -> None:
    n = gained + lost
    far = [i for i in range(n + 1) if abs(2 * i - n) >= abs(gained - lost)]  # at least as uneven
    assert mcnemar_p(gained, lost) == pytest.approx(float(Fraction(sum(comb(n, i) for i in far), 2**n)))


def test_several_samples_have_no_mcnemar_and_change_at_the_half(tmp_path: Path) -> None:
    a = _run(tmp_path / "a", {"x": "1000", "y": "10-1", "z": "11/10"})
    b = _run(tmp_path / "b", {"x": "0110", "y": "0000", "z": "11/10"})
    [found] = compare(a, b)
    assert found.mcnemar_p is None
    assert (found.gained, found.lost) == (("x",), ("y",))
    assert found.accuracy_a == pytest.approx((1 / 4 + 2 / 3 + 3 / 4) / 3)


def test_each_environment_that_both_have_is_compared(tmp_path: Path) -> None:
    for name, listed in {"a": ("one", "two"), "b": ("two", "three")}.items():
        (tmp_path / name).mkdir()
        content: dict[str, Any] = {"environments": {each: {"outcomes": {"t": "1"}} for each in listed}}
        (tmp_path / name / "results.json").write_text(json.dumps(content))
    assert [each.name for each in compare(tmp_path / "a", tmp_path / "b")] == ["two"]
    one = _run(tmp_path / "c", {"t": "0"}, name="two")
    assert compare(tmp_path / "a", one)[0].difference == -1.0
    same = _run(tmp_path / "d", {"t": "1"}, name="other")  # one environment each: the tasks decide
    assert compare(one, same)[0].name == "two, other"


def test_the_table_fits_and_names_what_changed(runs: tuple[Path, Path]) -> None:
    done = _compare(*runs)
    assert (done.code, done.err) == (0, "")
    assert "sums: A has 12 tasks, B 13; they share 11" in done.out
    assert "1 shared tasks were not scored in one of the runs" in done.out
    assert "sums, solved in B alone (5): t4, t5, t6, t7, t8" in done.out
    assert "sums, solved in A alone (1): t9" in done.out
    words = " ".join(done.out.split())
    assert "sums (10) 0.500 0.900 +0.400" in words
    assert "0.2188" in words
    table = [line for line in done.out.splitlines() if not line.startswith(("A:", "B:"))]
    assert max(map(len, table)) <= 80
    as_json = json.loads(_compare(*runs, "--json").out)
    assert as_json[0]["gained"] == ["t4", "t5", "t6", "t7", "t8"]
    assert _compare(*runs, "--json").out == _compare(*runs, "--json", "--seed", 0).out
    assert json.loads(_compare(*runs, "--json", "--seed", 1).out)[0]["difference"] == as_json[0]["difference"]


def test_ids_cannot_steer_the_terminal(tmp_path: Path) -> None:
    a = _run(tmp_path / "a", {"[red]x\x1b[2J": "1"})
    b = _run(tmp_path / "b", {"[red]x\x1b[2J": "0"})
    out = _compare(a, b).out
    assert "\x1b" not in out
    assert "[red]x" in out


def test_nothing_scored_in_both_is_no_score(tmp_path: Path) -> None:
    a, b = _run(tmp_path / "a", {"t": "1"}), _run(tmp_path / "b", {"t": "-"})
    assert compare(a, b)[0].difference is None
    assert "no score" in _compare(a, b).out


def test_folders_that_hold_no_results_are_refused(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    (tmp_path / "empty").mkdir()
    for content in ("{", "[]", "{}", '{"name": "x", "outcomes": {"t": "?"}}', '{"name": "x", "outcomes": [1]}'):
        broken = tmp_path / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "results.json").write_text(content)
        for bad in (tmp_path / "nothing", tmp_path / "empty", broken):
            done = _compare(runs[0], bad)
            assert (done.code, done.out) == (2, ""), content
            assert str(bad) in done.err
            assert done.err.count("\n") == 1
    other = _run(tmp_path / "other", {"elsewhere": "1"})
    with pytest.raises(RunFolderError, match="no task in common"):
        compare(runs[0], other)
    for words in ((), (runs[0],), (*runs, "--seed", "-1"), (*runs, "more")):
        with pytest.raises(SystemExit) as ended:
            _compare(*words)
        assert ended.value.code == 2
