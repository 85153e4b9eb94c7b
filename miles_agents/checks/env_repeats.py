"""Checks that an episode depends on its task, its seed and its replies alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from miles_agents.checks.env_contract import no_global_draws
from miles_agents.checks.env_play import Played, first_difference, following
from miles_agents.checks.env_row import EnvCheck, NotApplicable
from miles_agents.checks.env_subject import Agent, Subject
from miles_agents.contracts import Env, Observation
from miles_agents.contracts.threads import run_in_thread
from miles_agents.types import Reply, Task

if TYPE_CHECKING:
    from miles_agents.gym import BothDoors

_CONCURRENT = 8


async def _randomness(subject: Subject) -> str:
    with no_global_draws():
        for agent in await subject.all_agents():
            await subject.by(agent, subject.first, subject.env)
    return "random and numpy.random are untouched"


async def _seeds(subject: Subject) -> str:
    for task in (subject.chosen[0], subject.chosen[-1]):
        for agent in await subject.knowing():
            first, second = [await subject.by(agent, task, subject.new()) for _ in range(2)]
            difference = first_difference(first, second)
            assert not difference, f"task {task.id}: seed {subject.seed} gave two different episodes: {difference}"
    return "equal seeds give equal episodes"


async def _reset(subject: Subject) -> str:
    """Episode A, then B, then A again on one instance: both As are the A of a fresh one, and no task was changed."""
    one, other = subject.chosen[0], subject.chosen[-1]
    before = _written(subject.chosen)
    for agent in await subject.knowing():
        fresh = await subject.by(agent, one, subject.new())
        env = subject.new()
        for task in (one, other, one):
            played = await subject.by(agent, task, env)
            difference = first_difference(fresh, played) if task is one else ""
            assert not difference, f"task {one.id} is another episode after one of task {other.id}: {difference}"
    assert _written(subject.chosen) == before, "an episode changed its Task; copy in begin() what it changes"
    return "an episode leaves nothing to the next"


def _written(tasks: Sequence[Task]) -> str:
    return json.dumps([[task.answer, dict(task.metadata)] for task in tasks], default=repr)


async def _concurrency(subject: Subject) -> str:
    tasks = [subject.chosen[number % len(subject.chosen)] for number in range(_CONCURRENT)]
    for agent in await subject.knowing():
        alone = [await subject.by(agent, task, subject.new()) for task in tasks]
        together = await _together(subject, agent, tasks)
        for task, before, beside in zip(tasks, alone, together, strict=True):
            difference = first_difference(before, beside)
            assert not difference, f"task {task.id} is another episode beside {_CONCURRENT - 1} others: {difference}"
    return f"{_CONCURRENT} episodes at a time are as each alone"


async def _together(subject: Subject, agent: Agent, tasks: Sequence[Task]) -> list[Played]:
    gate = asyncio.Barrier(len(tasks))
    envs = [subject.new() for _ in tasks]
    subject.doing = f"{len(tasks)} episodes at a time, {agent.who}"
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(_interleaved(env, task, agent.replies(task, env), subject.seed, gate))
            for env, task in zip(envs, tasks, strict=True)
        ]
    return [each.result() for each in running]


async def _interleaved(env: Env, task: Task, replies: Iterable[Reply], seed: int, gate: asyncio.Barrier) -> Played:
    """An episode that begins when all have been reset, and lets the others go between its steps."""
    played = Played(await env.reset(seed=seed, options={"task": task}), [])
    await gate.wait()
    source = iter(replies)
    reply = next(source, None)
    while reply is not None:
        result = await env.step(reply)
        played.results.append(result)
        if result.terminated or result.truncated:
            break
        await asyncio.sleep(0)
        observation: Observation = result.observation
        reply = following(source, observation)
    return played


async def _doors(subject: Subject) -> str:
    if len(subject.env.seats) > 1:
        raise NotApplicable("several seats: a gymnasium.Env has one player")
    if "train" not in subject.env.splits:
        raise NotApplicable("the Gymnasium door needs a split 'train'")
    sandbox = subject.settings.sandbox if subject.sandboxes else None
    task = subject.first
    for agent in await subject.knowing():
        subject.doing = f"task {task.id}, {agent.who}, directly and through Gymnasium"
        doors = await run_in_thread(_through_both, subject, agent, sandbox)
        if doors.direct != doors.gymnasium:
            raise AssertionError(f"task {task.id}, {agent.who}: {_parting(doors.direct, doors.gymnasium)}")
    return "the same directly and through Gymnasium"


def _through_both(subject: Subject, agent: Agent, sandbox: str | None) -> BothDoors:
    from miles_agents.gym import both_doors  # not before it is needed: it registers every environment with Gymnasium

    task, env = subject.first, subject.env  # `env` only knows the replies
    return both_doors(subject.make, task, lambda: agent.replies(task, env), subject.seed, sandbox=sandbox)


def _parting(direct: Sequence[Any], gymnasium: Sequence[Any]) -> str:
    places = range(max(len(direct), len(gymnasium)))
    place = next(each for each in places if direct[each : each + 1] != gymnasium[each : each + 1])
    one, other = (repr(tuple(shown[place])) if place < len(shown) else "nothing" for shown in (direct, gymnasium))
    return f"step {place} gave {one} directly, {other} through Gymnasium"


_AFTER_SEEDS = ("seeds",)

REPEAT_CHECKS: Sequence[EnvCheck] = (
    EnvCheck(
        name="randomness",
        must="nothing is drawn from global generators",
        advice="Draw from self.np_random, which reset(seed=…) seeds.",
        body=_randomness,
    ),
    EnvCheck(
        name="seeds",
        must="equal seeds give equal episodes",
        advice="Draw from self.np_random (in call_tool before its first await), and keep what an episode changes on "
        "the instance, set anew in begin(), not on the class or in the module. Show no clock, and no set's order.",
        body=_seeds,
    ),
    EnvCheck(
        name="reset",
        must="an episode leaves nothing to the next one of the same instance",
        advice="Set the episode's own state anew in begin(), which every reset calls.",
        body=_reset,
        after=_AFTER_SEEDS,
    ),
    EnvCheck(
        name="concurrency",
        must="8 episodes at a time go as each alone",
        advice="Keep what belongs to an episode on the instance: nothing on the class, in the module, in a file of the "
        "host or in the process (working directory, environment variables).",
        body=_concurrency,
        after=_AFTER_SEEDS,
    ),
    EnvCheck(
        name="doors",
        must="an episode through Gymnasium is the same as directly",
        advice="Each step may run in an asyncio task of its own: keep no context variable, timeout or TaskGroup from "
        "one step to the next.",
        body=_doors,
        after=_AFTER_SEEDS,
    ),
)
