"""Who plays the seats that whoever calls `step` does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from miles_agents.contracts import Env
from miles_agents.errors import UsageError, did_you_mean
from miles_agents.rollout.opposed import Opposed, scripted_player
from miles_agents.rollout.policy import Policy

Answer = Callable[[str, np.random.Generator], Any]
"""(the text a seat was told last, its own generator) → a `Reply` or text, or an awaitable of one."""


def opposed(env: Env, opponents: Mapping[str, str | Answer]) -> Env:
    """The environment of the seats that are left; as it is without opponents.

    Raises:
        UsageError: no such seat or scripted player, or all seats are taken.
    """
    if not opponents:
        return env
    return Opposed(env, {seat: _policy(env, seat, who) for seat, who in opponents.items()})


def _policy(env: Env, seat: str, who: str | Answer) -> Policy:
    if callable(who):
        return scripted_player(who, name=getattr(who, "__name__", seat))
    scripted: Mapping[str, Answer] = getattr(env, "opponents", {})
    if who not in scripted:
        raise UsageError(
            f"opponents: {type(env).__name__} has no scripted player {who!r}. {did_you_mean(str(who), scripted)} "
            "Or give a function (text, generator) → reply"
        )
    return scripted_player(scripted[who], name=who)
