"""Checks of an environment: its tasks, and what every episode keeps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from miles_agents.checks.env import check_refusals
from miles_agents.checks.env_contract import (
    assert_bad_calls_answered,
    assert_json,
    assert_no_overlap,
    assert_observation,
    assert_refuses_step,
    assert_rewards,
    assert_shape,
    assert_truncation,
    read_tasks,
)
from miles_agents.checks.env_play import MAX_STEPS, Played
from miles_agents.checks.env_row import EnvCheck, NotApplicable, Remark
from miles_agents.checks.env_subject import Seen, Subject
from miles_agents.errors import GraderError
from miles_agents.types import Task

_SHORT_ANSWER = 3  # characters; a shorter one stands in many a text by chance


async def _tasks(subject: Subject) -> str:
    env = subject.env
    with subject.reading():
        try:
            subject.tasks = read_tasks(env)
        except AssertionError:
            subject.tasks = _readable(subject)
            raise
    return ", ".join(f"{split} {len(tasks):,}" for split, tasks in subject.tasks.items())


def _readable(subject: Subject) -> dict[str, list[Task]]:
    """What the other checks can go on with."""
    found = {
        split: [task for task in subject.env.tasks(split) if isinstance(task, Task)] for split in subject.env.splits
    }
    return {split: tasks for split, tasks in found.items() if tasks}


async def _splits(subject: Subject) -> str:
    assert_no_overlap(subject.tasks)
    return f"{sum(map(len, subject.tasks.values())):,} ids, each once"


async def _secrets(subject: Subject) -> str:
    schemas = json.dumps(await subject.schemas(), ensure_ascii=False)
    tasks = [task for split in subject.tasks.values() for task in split]
    told = [task for task in tasks if _stands_in(_answer(task), schemas, *(message.text for message in task.prompt))]
    if told:
        raise Remark(
            f"in {len(told):,} of {len(tasks):,} tasks the answer stands in the prompt or in a tool's schema, e.g. "
            f"task {told[0].id}: {_answer(told[0])!r}",
            "Leave it out, unless to find it there is the task.",
        )
    return f"{len(tasks):,} tasks"


def _answer(task: Task) -> str:
    plain = isinstance(task.answer, (str, int, float)) and not isinstance(task.answer, bool)
    return str(task.answer).strip() if plain else ""


def _stands_in(answer: str, *texts: str) -> bool:
    if len(answer) <= _SHORT_ANSWER:
        return False
    near = [text for text in texts if answer in text]
    return any(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) for text in near)


async def _episodes(subject: Subject) -> str:
    for task in subject.chosen:
        for agent in await subject.all_agents():
            try:
                played = await subject.by(agent, task, subject.env)
            except GraderError as error:  # of which the check `rewards` speaks
                subject.episodes.append(Seen(task, agent.who, None, error))
                subject.renew()
                continue
            subject.episodes.append(Seen(task, agent.who, played, None))
            if not played.ended and agent.who != "the oracle":
                raise AssertionError(f"task {task.id}: {agent.who} is not ended after {MAX_STEPS:,} replies")
    return f"{len(subject.episodes)} episodes"


async def _rewards(subject: Subject) -> str:
    for seen in subject.episodes:
        if seen.error is not None:
            subject.doing = seen.who
            raise seen.error
        if seen.played is not None:
            assert_rewards(subject.env, seen.played.results, seen.task)
    low, high = subject.env.reward_range
    return f"{low:g} to {high:g}"


def _shape(played: Played, task: Task) -> None:
    where = f"task {task.id}, reset"
    assert_observation(played.reset.observation, where)
    assert played.reset.observation, f"{where}: there is no observation"
    assert_json(played.reset.info.get("tools", []), f"{where}: info['tools']")
    assert_shape(played.results, task)


async def _steps(subject: Subject) -> str:
    whole = [(seen.played, seen.task) for seen in subject.episodes if seen.played is not None]
    if not whole:
        raise NotApplicable("no episode was played to its end")
    for played, task in whole:
        _shape(played, task)
    return f"{sum(len(played.results) for played, _ in whole):,} steps"


async def _truncation(subject: Subject) -> str:
    for task in subject.chosen:
        subject.doing = f"task {task.id}, truncate()"
        await assert_truncation(subject.env, task, subject.seed)
    return f"{len(subject.chosen)} episodes"


async def _order(subject: Subject) -> str:
    env = subject.new()
    subject.doing = "close() before the first reset()"
    await env.close()
    await env.close()  # may be called twice
    await assert_refuses_step(env, "before reset()")
    await check_refusals(env, subject.first, subject.seed)
    return "refused before reset, after the end, after close"


async def _oracle(subject: Subject) -> str:
    if not subject.has_oracle:
        raise Remark(
            "there is no oracle(task): whether the right answer scores full was not tried",
            "Add `def oracle(self, task)`: return the replies that solve the task, e.g. "
            "[ma.Reply.of(str(task.answer))]; a generator is sent each observation: `observation = yield reply`.",
        )
    if _several_seats(subject):
        raise NotApplicable("several seats: what one scores depends on the other")
    worst: dict[str, float] = {}
    best = subject.env.reward_range[1]
    for task in subject.chosen:
        played = await subject.play(task, subject.env.oracle(task), "the oracle")  # type: ignore[attr-defined]
        assert played.results, f"task {task.id}: the oracle has no replies"
        assert played.ended, f"task {task.id}: the oracle's replies do not end the episode"
        # More than the best is the business of the check `rewards`.
        least = best - 1e-9 * max(1.0, abs(best)) if math.isfinite(best) else subject.allowed
        if played.reward < least or played.reward <= subject.allowed:
            worst[task.id] = played.reward
    if worst:
        task_id, reward = next(iter(worst.items()))
        raise AssertionError(
            f"in {len(worst)} of {len(subject.chosen)} tasks the oracle scores less than {best:g}, e.g. task "
            f"{task_id}: {reward:g}"
        )
    return f"{len(subject.chosen)} tasks score {best:g}"


async def _malformed(subject: Subject) -> str:
    if not await subject.schemas():
        raise NotApplicable("it offers no tools")
    await assert_bad_calls_answered(subject.env, subject.first, subject.seed)
    return "answered, each under its id"


def _several_seats(subject: Subject) -> bool:
    return len(getattr(subject.env, "seats", ("agent",))) > 1


TASK_CHECKS: Sequence[EnvCheck] = (
    EnvCheck(
        name="tasks",
        must="each split has tasks, the same each time, that can be written as JSON",
        advice="Let tasks(split) give the same Task objects in the same order each time, with split=split and JSON in "
        "answer and metadata.",
        body=_tasks,
    ),
    EnvCheck(
        name="splits",
        must="no task is in two splits",
        advice="Give each task an id of its own and each question to one split, or the held-out score means nothing.",
        body=_splits,
    ),
)
EPISODE_CHECKS: Sequence[EnvCheck] = (
    EnvCheck(
        name="episodes",
        must="episodes of the oracle, of silence and of calls to each tool raise nothing and end",
        advice="End an episode by terminated or truncated whatever is said. What a model may do wrong is answered (in "
        "a tool: raise ma.ToolError), never raised.",
        body=_episodes,
    ),
    EnvCheck(
        name="rewards",
        must="rewards are finite and within reward_range",
        advice="Return a finite number (or several by name) from reward in every case, and set reward_range = (least, "
        "most) of a whole episode.",
        body=_rewards,
    ),
    EnvCheck(
        name="steps",
        must="reset and step give what the contract says",
        advice="step gives StepResult(observation, reward, terminated, truncated, info): observation a tuple of the "
        "new Messages, info['truncated_by'] the reason where truncated is True.",
        body=_steps,
    ),
    EnvCheck(
        name="truncation",
        must="truncate(reason) scores an episode as it stands",
        advice="Return StepResult(…, terminated=False, truncated=True, info={'truncated_by': reason}) from truncate.",
        body=_truncation,
    ),
    EnvCheck(
        name="order",
        must="step is refused before reset, after the end and after close; close may be called twice",
        advice="Raise UsageError from step where no episode runs, and let close forget the episode.",
        body=_order,
    ),
    EnvCheck(
        name="oracle",
        must="the right answer scores full",
        advice="Let the reward accept the answer that the task itself calls right, or mend the oracle.",
        body=_oracle,
    ),
    EnvCheck(
        name="secrets",
        must="the answer does not stand in the prompt or in a tool's schema",
        advice="",
        body=_secrets,
    ),
)
CALL_CHECKS: Sequence[EnvCheck] = (
    EnvCheck(
        name="malformed calls",
        must="calls that cannot be read, of unknown tools and with wrong arguments are answered under their id",
        advice="Answer each call by Message.tool(text, call=call), at most a few hundred characters; run none whose "
        "`error` is set. ToolEnv does this where step is left alone.",
        body=_malformed,
    ),
)
