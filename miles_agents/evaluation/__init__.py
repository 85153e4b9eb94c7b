"""Scoring a policy on held-out tasks: playing, figures with intervals, records to go on from."""

from miles_agents.evaluation.figures import Evaluation, EvaluationRow, Summing, is_success, row_keys_of, summarize
from miles_agents.evaluation.intervals import (
    Interval,
    IntervalKind,
    accuracy_interval,
    bootstrap_interval,
    pass_at_k,
    wilson_interval,
)
from miles_agents.evaluation.playing import episodes_of, play_all, play_episodes

__all__ = [
    "Evaluation",
    "EvaluationRow",
    "Interval",
    "IntervalKind",
    "Summing",
    "accuracy_interval",
    "bootstrap_interval",
    "episodes_of",
    "is_success",
    "pass_at_k",
    "play_all",
    "play_episodes",
    "row_keys_of",
    "summarize",
    "wilson_interval",
]
