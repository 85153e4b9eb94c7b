"""Figures of an evaluation: intervals, pass@k, lost episodes. Expected values worked out by hand or brute force."""

from __future__ import annotations

import io
import json
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from rich.console import Console
from scripted_runs import Adding, Scripted, call_text, pool_of, turn_of

import miles_agents as ma
from miles_agents.contracts import Env, ToolEnv
from miles_agents.errors import EpisodeError, FailureCause, ToolErrorKind
from miles_agents.evaluation import Summing, accuracy_interval, pass_at_k, row_keys_of, summarize, wilson_interval
from miles_agents.rollout.player import EpisodeSpec
from miles_agents.scoring import results_table
from miles_agents.types import EpisodeStatus, Message, StopReason, Task, ToolCall, ToolEvent, Trajectory, Turn


def _episode(
    task: str, sample: int, reward: float | None, *, turns: tuple[Turn, ...] = (), **metadata: object
) -> Trajectory:
    common = {"id": f"{task}/{sample}", "task_id": task, "group_id": task, "turns": turns, "metadata": metadata}
    if reward is None:
        return Trajectory(**common, status=EpisodeStatus.FAILED, cause=FailureCause.ENGINE)
    return Trajectory(**common, status=EpisodeStatus.COMPLETED, reward=reward)


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        (4, 1, 1, Fraction(1, 4)),
        (4, 1, 2, Fraction(1, 2)),
        (4, 1, 4, Fraction(1)),
        (10, 3, 2, Fraction(8, 15)),
        (10, 3, 4, Fraction(5, 6)),
        (10, 3, 8, Fraction(1)),
        (5, 0, 5, Fraction(0)),
        (5, 5, 1, Fraction(1)),
    ],
)
def test_H01_pass_at_k_is_the_exact_fraction_and_that_of_all_subsets(
    samples: int, correct: int, k: int, expected: Fraction
) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(float(expected), abs=1e-12)
    subsets = list(combinations(range(samples), k))
    hits = sum(any(index < correct for index in subset) for subset in subsets)
    assert Fraction(hits, len(subsets)) == expected


def test_H01_pass_at_k_with_fewer_samples_than_k_does_not_exist() -> None:
    for samples, correct, k in ((2, 0, 5), (2, 2, 5), (4, 1, 0)):
        with pytest.raises(ValueError, match=f"at least {k}"):
            pass_at_k(samples, correct, k)


def test_H01_best_of_draws_with_replacement_would_be_another_number() -> None:
    # of 4 samples 1 right: 4 draws with replacement hit it in 1 − (3/4)⁴ = 175/256 = 0.6836 of all cases; pass@4 is 1
    draws = list(product(range(4), repeat=4))
    assert Fraction(sum(0 in draw for draw in draws), len(draws)) == Fraction(175, 256)
    assert pass_at_k(4, 1, 4) == 1.0


def test_H01_pass_at_k_is_averaged_over_tasks_and_only_for_k_that_every_task_has() -> None:
    # Of task a 1 of 4 is right, of b 0 of 2 (two were lost), of c all of 4.
    a = [_episode("a", n, float(n == 0)) for n in range(4)]
    b = [_episode("b", n, 0.0 if n < 2 else None) for n in range(4)]
    c = [_episode("c", n, 1.0) for n in range(4)]
    found = summarize(Env, [*a, *b, *c]).total
    assert set(found.pass_at_k) == {1, 2}
    assert found.pass_at_k[1] == pytest.approx(float(Fraction(1, 4) + 0 + 1) / 3)  # pooled: 5/10
    assert found.pass_at_k[2] == pytest.approx(float(Fraction(1, 2) + 0 + 1) / 3)
    assert found.accuracy == pytest.approx(found.pass_at_k[1])


def test_wilson_interval_of_8_in_10() -> None:
    # (0.8 + 0.1921) / 1.3841 ± 1.96 / 1.3841 * sqrt(0.016 + 0.009604), by hand
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4)
    assert high == pytest.approx(0.9433, abs=1e-4)


def test_an_interval_is_never_empty_at_the_ends() -> None:
    low, high = accuracy_interval([[True]] * 20)[1]
    assert (high, low > 0.8, low < 1.0) == (1.0, True, True)


def test_equal_samples_of_a_task_do_not_narrow_the_interval() -> None:
    # Eight equal samples of each task say no more than one.
    once = accuracy_interval([[True], [False]] * 10)
    repeated = accuracy_interval([[True] * 8, [False] * 8] * 10)
    assert repeated[0] == once[0] == 0.5
    assert repeated[1].low == pytest.approx(once[1].low, abs=0.02)


def test_H02_accuracy_is_averaged_over_tasks_and_every_episode_counts_once() -> None:
    evaluation = summarize(Env, [_episode("a", 0, 1.0), _episode("b", 0, 1.0), _episode("c", 0, 0.0)])
    assert evaluation.total.accuracy == pytest.approx(2 / 3)
    assert evaluation.total.episodes == 3


def test_H06_lost_episodes_are_shown_beside_and_never_scored_zero() -> None:
    # case H06: rewards 1, 0, 1 and one infrastructure error: 2/3 over scored, 2/4 over all
    episodes = [_episode(name, 0, reward) for name, reward in zip("abcd", (1.0, 0.0, 1.0, None), strict=True)]
    evaluation = summarize(Env, episodes)
    assert evaluation.total.accuracy == pytest.approx(2 / 3)
    assert evaluation.total.accuracy_over_all == pytest.approx(2 / 4)
    assert (evaluation.total.failed, evaluation.total.scored) == (1, 3)
    assert evaluation.failures_by_cause == {"engine": 1}


def test_H06_nothing_scored_is_no_score() -> None:
    evaluation = summarize(Env, [_episode("a", n, None) for n in range(4)])
    assert evaluation.total.accuracy is None
    assert evaluation.total.mean_reward is None
    with pytest.raises(EpisodeError, match="nothing to score"):
        summarize(Env, [])


def test_rows_split_the_episodes_by_metadata() -> None:
    episodes = [_episode(f"t{n}", 0, float(n % 2), level=1 + n // 4, kind="x") for n in range(8)]
    evaluation = summarize(Env, episodes, Summing(row_keys=["level"]))
    assert [(row.name, row.episodes, row.accuracy) for row in evaluation.rows] == [
        ("level=1", 4, 0.5),
        ("level=2", 4, 0.5),
    ]
    tasks = [
        Task(id=str(n), prompt=(Message.user("?"),), metadata={"level": 1, "kind": str(n % 3), "id": n, "one": 1})
        for n in range(20)
    ]
    assert row_keys_of(tasks) == ["level", "kind"]


def test_the_reward_range_of_the_instance_decides_what_a_solved_task_is() -> None:
    class Wide(ToolEnv):
        def __init__(self) -> None:
            self.reward_range = (0.0, 2.0)

        def tasks(self, split: str) -> list[Task]:
            return []

        def reward(self, episode: object) -> float:
            return 0.0

    assert summarize(Wide(), [_episode("a", 0, 1.0), _episode("b", 0, 2.0)]).total.accuracy == 0.5


def _turn(*calls: tuple[str, str, float]) -> Turn:
    nothing = np.zeros(0, np.int32)
    events = tuple(
        ToolEvent(
            call=ToolCall(id="c", name=name, arguments={}, raw=""),
            result="",
            ok=not kind,
            error_kind=ToolErrorKind(kind),
            duration_s=took,
            wait_s=took / 2,
        )
        for name, kind, took in calls
    )
    return Turn(
        prompt_ids=nothing,
        completion_ids=nothing,
        logprobs=np.zeros(0, np.float32),
        stop_reason=StopReason.STOP,
        versions=(),
        tool_events=events,
    )


def test_tools_are_counted_in_the_results_and_timed_beside_them() -> None:
    def played(took: float) -> list[Trajectory]:
        turns = (
            _turn(("python", "", took), ("python", "error", 3 * took)),
            _turn(("python", "error", took), ("pyhton", "unknown_tool", 0.0)),
        )
        return [_episode("a", 0, 1.0, turns=turns), _episode("a", 1, None, turns=turns[:1])]

    quick, slow = summarize(Env, played(1.0)), summarize(Env, played(2.0))
    assert quick.as_json()["tools"] == {"python": {"calls": 5, "errors": {"error": 3}}}
    assert quick.as_json()["unknown_calls"] == 1
    assert json.dumps(quick.as_json()) == json.dumps(slow.as_json())
    # sorted: 1, 1, 1, 3, 3; the 90th percentile lies between two threes
    assert quick.times_as_json()["python"]["latency_s"] == {"p50": 1.0, "p90": 3.0, "p99": 3.0}
    assert slow.times_as_json()["python"]["wait_s"] == {"p50": 1.0, "p90": 3.0, "p99": 3.0}


def test_tools_that_nothing_called_are_listed_without_times() -> None:
    class Calling(ToolEnv):
        @ma.tool
        def look(self) -> str:
            """Look."""
            return ""

        def tasks(self, split: str) -> list[Task]:
            return []

        def reward(self, episode: object) -> float:
            return 0.0

    evaluation = summarize(Calling(), [_episode("a", 0, 1.0)])
    assert evaluation.as_json()["tools"] == {"look": {"calls": 0, "errors": {}}}
    assert evaluation.times_as_json() == {"look": {"latency_s": None, "wait_s": None}}


def test_the_table_of_tools_names_kinds_and_times_in_80_columns_and_takes_no_name_for_markup() -> None:
    calls = [("python", kind, 0.0123) for kind in ("", "", "timeout", "error", "error", "crashed", "output_limit")]
    turns = (_turn(*calls, ("[red]sneaky[/red]\x1b[2J", "", 2.5), ("made up", "unknown_tool", 0.0)),)
    evaluation = summarize(Env, [_episode("a", 0, 1.0, turns=turns)])
    console = Console(file=io.StringIO(), width=80)
    console.print(results_table(evaluation, title="t"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line) for line in shown.splitlines()) <= 80
    words = " ".join(shown.split())
    for part in (
        "python 7 12.3 12.3 12.3 6.2 6.2",
        "1 timeout",
        "2 error",
        "1 output_limit",
        "2,500",
        "(unknown) 1",
    ):
        assert part in words
    assert "[red]" in shown
    assert "\x1b" not in shown
    plain = Console(file=io.StringIO(), width=80)
    plain.print(results_table(summarize(Env, [_episode("a", 0, 1.0)]), title="t"))
    assert "p50" not in plain.file.getvalue()  # type: ignore[attr-defined]


async def test_a_refused_call_is_not_executed_and_not_one_that_could_not_be_read() -> None:
    refusing = pool_of(Adding).refusing_tools()
    texts = [call_text(a=1, b=1) + "<tool_call>\n{]</tool_call>", "2"]
    async with refusing.lend() as env:
        spec = EpisodeSpec(task=Adding().tasks("train")[1], group_id="d0")
        trajectory = await Scripted(lambda request: texts[turn_of(request)]).player.play(env, spec)
    evaluation = summarize(refusing.catalogue, [trajectory])
    assert evaluation.as_json()["tools"] == {"add": {"calls": 1, "errors": {"not_executed": 1}}}
    assert (evaluation.total.tool_error_rate, evaluation.total.malformed_call_rate) == (1.0, 0.5)
