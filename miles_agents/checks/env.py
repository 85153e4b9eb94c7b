"""The conformance suite of environments: what every `Env` keeps, checked on yours.

    await check_env(MyEnv())

Where the environment has an `oracle(task)` that gives replies scoring full, those are played as well. An oracle
returns an iterable of `Reply`; a generator is sent each observation: `observation = yield reply`.

This suite stops at the first promise that is broken. `env_attack` reports each by itself and tries more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from miles_agents.checks.env_contract import (
    allowed_for_junk,
    assert_bad_calls_answered,
    assert_junk,
    assert_no_overlap,
    assert_oracle,
    assert_refuses_step,
    assert_rewards,
    assert_shape,
    assert_truncation,
    no_global_draws,
    read_tasks,
)
from miles_agents.checks.env_play import JUNK, Oracle, first_difference, play, play_episode, saying
from miles_agents.contracts import Env, EnvResources
from miles_agents.types import Task

__all__ = ["Oracle", "check_env", "check_tasks", "play"]


async def check_env(
    env: Env,
    *,
    resources: EnvResources | None = None,
    tasks_per_split: int = 3,
    seed: int = 0,
    junk_reward: float = 0.0,
) -> None:
    """Check an environment against the contract of `Env`.

    Args:
        env: the environment; it is closed afterwards.
        resources: what to lend it (sandboxes); None leaves it as it is.
        tasks_per_split: how many tasks of each split are played.
        seed: of the episodes.
        junk_reward: the most that an episode of meaningless replies may score.

    Raises:
        AssertionError: what it does not keep.
    """
    if resources is not None:
        env.bind(resources)
    tasks = check_tasks(env)
    try:
        await env.close()
        await env.close()  # may be called twice
        await assert_refuses_step(env, "before reset()")
        for split in env.splits:
            for task in spread(tasks[split], tasks_per_split):
                await _check_junk(env, task, seed, junk_reward)
                await assert_oracle(env, task, seed)
                await assert_truncation(env, task, seed)
        first = tasks[env.splits[0]][0]
        await assert_bad_calls_answered(env, first, seed)
        await _check_seeds(env, first, seed)
        await check_refusals(env, first, seed)
    finally:
        await env.close()


def check_tasks(env: Env) -> dict[str, list[Task]]:
    """Check the tasks alone: deterministic, identified, serialisable, and in one split each. Gives them by split."""
    tasks = read_tasks(env)
    assert_no_overlap(tasks)
    return tasks


def spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """That many tasks, from the first to the last."""
    places = np.linspace(0, len(tasks) - 1, min(count, len(tasks))).round().astype(int)
    return [tasks[place] for place in places]


async def _check_junk(env: Env, task: Task, seed: int, declared: float) -> None:
    for text in ("", *JUNK):
        played = await play_episode(env, task, saying(text), seed=seed)
        assert_shape(played.results, task)
        assert_rewards(env, played.results, task)
        assert_junk(env, played, task, repr(text), allowed_for_junk(env, declared))


async def _check_seeds(env: Env, task: Task, seed: int) -> None:
    """Equal seeds give equal episodes, and no global generator is drawn from."""
    played = []
    with no_global_draws():
        for _ in range(2):
            replies = env.oracle(task) if isinstance(env, Oracle) else saying(JUNK[0])
            played.append(await play_episode(env, task, replies, seed=seed))
        difference = first_difference(*played)
        assert not difference, f"task {task.id}: seed {seed} gave two different episodes: {difference}"


async def check_refusals(env: Env, task: Task, seed: int) -> None:
    """Raises AssertionError if a step after the end or after `close` goes on."""
    if not (await play_episode(env, task, saying(""), seed=seed)).ended:
        await env.truncate("the end")
    await assert_refuses_step(env, "after the end")
    await env.reset(seed=seed, options={"task": task})
    await env.close()
    await assert_refuses_step(env, "after close()")
