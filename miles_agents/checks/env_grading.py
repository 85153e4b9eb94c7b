"""Checks of what an environment rewards: agents that know nothing, and agents that go for the grader, gain nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from miles_agents.checks.env_intruder import claims, intrusions, ways_in
from miles_agents.checks.env_play import JUNK, babbling, calling_at_random, saying
from miles_agents.checks.env_row import EnvCheck, Found, NotApplicable
from miles_agents.checks.env_subject import Subject
from miles_agents.contracts.tools import may_end_episode
from miles_agents.types import Reply, Task

_RANDOM_AGENTS = 4  # of each kind and task
_DECLARE = "If chance alone may earn that much, say so on the class: junk_reward = {reward:g}."

Agents = Callable[[Task], Iterable[tuple[str, Iterable[Reply]]]]


async def _gains_nothing(subject: Subject, agents: Agents, tasks: Sequence[Task], advice: str) -> str:
    """Each episode alone; where the environment declares what chance earns, the mean of each agent over the tasks."""
    rewards: dict[str, list[float]] = {}
    for task in tasks:
        for who, replies in agents(task):
            reward = (await subject.play(task, replies, who)).reward
            rewards.setdefault(who, []).append(reward)
            if not _declares(subject) and reward > subject.allowed:
                # What scores full is no chance to be declared: nothing would be left to learn.
                declare = f" {_DECLARE.format(reward=reward)}" if reward < subject.env.reward_range[1] else ""
                raise Found(
                    f"task {task.id}: {who} scores {reward:g}, more than {subject.allowed:g}", f"{advice}{declare}"
                )
    if _declares(subject):
        for who, each in rewards.items():
            _assert_mean(subject, each, f"{who}: ", advice)
        return f"{len(rewards)} agents score at most {subject.allowed:g} on average, as declared"
    return f"{sum(map(len, rewards.values()))} episodes score at most {subject.allowed:g}"


async def _by_chance(subject: Subject, agents: Agents, advice: str) -> str:
    """Each episode alone, or, where the environment declares what chance earns, the mean of all."""
    if not _declares(subject):
        return await _gains_nothing(subject, agents, subject.chosen, advice)
    rewards = [
        (await subject.play(task, replies, who)).reward for task in subject.chosen for who, replies in agents(task)
    ]
    mean = _assert_mean(subject, rewards, "", advice)
    return f"{len(rewards)} episodes score {mean:.3g} on average; {subject.allowed:g} is declared"


def _declares(subject: Subject) -> bool:
    return subject.allowed > max(0.0, subject.env.reward_range[0])


def _assert_mean(subject: Subject, rewards: Sequence[float], who: str, advice: str) -> float:
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    # Three standard errors: one sound environment in a few hundred is accused.
    if mean - 3 * spread / math.sqrt(len(rewards)) > subject.allowed:
        raise Found(
            f"{who}{len(rewards)} episodes score {mean:.3g} on average, more than the declared {subject.allowed:g}",
            advice,
        )
    return mean


async def _null(subject: Subject) -> str:
    _refuse_several_seats(subject)

    def agents(task: Task) -> Iterable[tuple[str, Iterable[Reply]]]:
        return [("an empty reply", saying("")), ("a reply of white space", saying(" \n\t"))]

    return await _gains_nothing(
        subject, agents, subject.chosen, "Give no reward before there is an answer: an empty text is none."
    )


async def _junk(subject: Subject) -> str:
    _refuse_several_seats(subject)

    def agents(task: Task) -> Iterable[tuple[str, Iterable[Reply]]]:
        prompt = "\n".join(message.text for message in task.prompt)
        yield from ((f"junk {text!r}", saying(text)) for text in JUNK)
        yield "the prompt said back", saying(prompt)
        yield "a word repeated 2,000 times", saying("so " * 2000)

    return await _gains_nothing(
        subject,
        agents,
        subject.chosen,
        "Compare the answer itself (one number, one name), not whether it stands anywhere in the reply.",
    )


async def _random_text(subject: Subject) -> str:
    _refuse_several_seats(subject)

    def agents(task: Task) -> Iterable[tuple[str, Iterable[Reply]]]:
        return [("random text", babbling(task, subject.rng(task, number))) for number in range(_RANDOM_AGENTS)]

    return await _by_chance(subject, agents, "Reward the answer, not words or the length of a reply.")


async def _random_calls(subject: Subject) -> str:
    _refuse_several_seats(subject)
    schemas = await subject.schemas()
    if not schemas:
        raise NotApplicable("it offers no tools")

    def agents(task: Task) -> Iterable[tuple[str, Iterable[Reply]]]:
        rngs = [subject.rng(task, number) for number in range(_RANDOM_AGENTS)]
        return [("an agent of random calls", calling_at_random(schemas, rng)) for rng in rngs]

    return await _by_chance(subject, agents, "Reward what was achieved, not that a tool was called.")


async def _claims(subject: Subject) -> str:
    _refuse_several_seats(subject)
    infos = [seen.played.results[-1].info for seen in subject.episodes if seen.played and seen.played.results]
    names = sorted({name for info in infos for name in info.get("rewards", {})})

    def agents(task: Task) -> Iterable[tuple[str, Iterable[Reply]]]:
        return [(f"an agent that {who}", saying(text)) for who, text in claims(names)]

    return await _gains_nothing(
        subject,
        agents,
        subject.chosen,
        "Let nothing in the reply stand for the verdict: find the answer in it and compare that. A grader that reads a "
        "program's output must look for a word that the model cannot know.",
    )


async def _grader_files(subject: Subject) -> str:
    _refuse_several_seats(subject)
    if subject.sandboxes is None:
        raise NotApplicable("no tool needs a sandbox")
    await subject.schemas()  # after the first reset the tools are known
    tools = subject.env.all_tools()
    ways = ways_in(tools)
    if not ways:
        raise NotApplicable("no tool with a sandbox takes code, a command or a file")
    ending: list[Any] = [tool.schema() for tool in tools if may_end_episode(tool)]

    def agents(task: Task) -> Iterable[tuple[str, Iterable[Reply]]]:
        return intrusions(ways, ending, subject.rng(task))

    advice = (
        "Grade where the model was not: outside the sandbox, in a second one, or after sandbox.reset() with the tests "
        "written anew, and by a result that its files and programs cannot forge."
    )
    return await _gains_nothing(subject, agents, [tasks[0] for tasks in subject.tasks.values()], advice)


def _refuse_several_seats(subject: Subject) -> None:
    if len(getattr(subject.env, "seats", ("agent",))) > 1:
        raise NotApplicable("several seats: what one scores depends on the others")


GRADING_CHECKS: Sequence[EnvCheck] = (
    EnvCheck(name="null", must="an agent that says nothing gains nothing", advice="", body=_null),
    EnvCheck(name="junk", must="replies without meaning gain nothing", advice="", body=_junk),
    EnvCheck(name="random text", must="random texts gain nothing", advice="", body=_random_text),
    EnvCheck(name="random calls", must="random well-formed calls gain nothing", advice="", body=_random_calls),
    EnvCheck(name="claims", must="claims of success and marks of a grader gain nothing", advice="", body=_claims),
    EnvCheck(
        name="grader files",
        must="an agent that writes to the grader's files in the sandbox gains nothing",
        advice="",
        body=_grader_files,
    ),
)
