"""Figures of an evaluation: intervals, pass@k, lost episodes. Expected values worked out by hand or brute force."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest

from miles_agents.contracts import Env, ToolEnv
from miles_agents.errors import EpisodeError, FailureCause
from miles_agents.evaluation import accuracy_interval, pass_at_k, row_keys_of, summarize, wilson_interval
from miles_agents.types import EpisodeStatus, Message, Task, Trajectory


def _episode(task: str, sample: int, reward: float | None, **metadata: object) -> Trajectory:
    common = {"id": f"{task}/{sample}", "task_id": task, "group_id": task, "turns": (), "metadata": metadata}
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
def test_pass_at_k_is_unbiased(samples: int, correct: int, k: int, expected: Fraction) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(float(expected), abs=1e-12)
    subsets = list(combinations(range(samples), k))
    hits = sum(any(index < correct for index in subset) for subset in subsets)
    assert Fraction(hits, len(subsets)) == expected


def test_pass_at_k_with_fewer_samples_than_k_does_not_exist() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        pass_at_k(2, 0, 5)


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
    evaluation = summarize(Env, episodes, row_keys=["level"])
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
