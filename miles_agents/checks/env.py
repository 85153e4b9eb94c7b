"""The conformance suite of environments: what every `Env` keeps, checked on yours.

    await check_env(MyEnv())

Where the environment has an `oracle(task)` that gives replies scoring full, those are played as well. An oracle
returns an iterable of `Reply`; a generator is sent each observation: `observation = yield reply`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Generator, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from miles_agents.contracts import Env, EnvResources, Observation, StepResult, ToolEnv, ToolOutput
from miles_agents.errors import MilesError, UsageError
from miles_agents.types import Message, Reply, Role, Task, ToolCall, ToolEvent

_MAX_TASKS = 100_000
_MAX_STEPS = 1000
_MAX_FEEDBACK_CHARS = 4000
_JUNK = ("", "I do not know.", " ".join(map(str, range(21))), "}{ \\boxed{ <think> unfinished")


@runtime_checkable
class Oracle(Protocol):
    """An environment that knows how to play its own tasks perfectly."""

    def oracle(self, task: Task) -> Iterable[Reply]:
        """Replies that end the episode with the highest reward; a generator is sent each observation."""
        ...


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
        await _check_usage_errors(env)
        for split in env.splits:
            for task in _spread(tasks[split], tasks_per_split):
                await _check_junk(env, task, seed, junk_reward)
                await _check_oracle(env, task, seed)
                await _check_truncation(env, task, seed)
        first = tasks[env.splits[0]][0]
        await _check_bad_calls(env, first, seed)
        await _check_seeds(env, first, seed)
        await _check_after_close(env, first, seed)
    finally:
        await env.close()


async def play(env: Env, task: Task, replies: Iterable[Reply], *, seed: int) -> list[StepResult]:
    """Play one episode with given replies (an `oracle`'s, for example), to its end or theirs."""
    await env.reset(seed=seed, options={"task": task})
    source = iter(replies)
    results: list[StepResult] = []
    try:
        reply = next(source)
        while len(results) < _MAX_STEPS:
            result = await env.step(reply)
            results.append(result)
            if result.terminated or result.truncated:
                break
            reply = source.send(result.observation) if isinstance(source, Generator) else next(source)
    except StopIteration:
        pass
    return results


def check_tasks(env: Env) -> dict[str, list[Task]]:
    """Check the tasks alone: deterministic, identified, serialisable, and in one split each. Gives them by split."""
    found: dict[str, list[Task]] = {}
    split_of_id: dict[str, str] = {}
    split_of_text: dict[str, str] = {}
    for split in env.splits:
        tasks = list(islice(env.tasks(split), _MAX_TASKS))
        assert tasks, f"tasks({split!r}) gave none"
        again = list(islice(env.tasks(split), _MAX_TASKS))
        assert tasks == again, f"tasks({split!r}) gave other tasks, or another order, the second time"
        for task in tasks:
            assert isinstance(task, Task), f"tasks({split!r}) gave {task!r}, not a Task"
            assert task.split == split, f"task {task.id} of tasks({split!r}) says split={task.split!r}"
            assert task.id not in split_of_id, f"task id {task.id!r} is used twice"
            text = "\n".join(message.text for message in task.prompt)
            other = split_of_text.setdefault(text, split)
            assert other == split, f"task {task.id}: the same prompt is in split {other!r} and in {split!r}"
            split_of_id[task.id] = split
        _assert_json([tasks[0].answer, dict(tasks[0].metadata)], f"answer and metadata of task {tasks[0].id}")
        found[split] = tasks
    return found


def _spread(tasks: Sequence[Task], count: int) -> list[Task]:
    places = np.linspace(0, len(tasks) - 1, min(count, len(tasks))).round().astype(int)
    return [tasks[place] for place in places]


async def _check_usage_errors(env: Env) -> None:
    await env.close()
    await env.close()  # may be called twice
    await _assert_refuses_step(env, "before reset()")


async def _assert_refuses_step(env: Env, when: str) -> None:
    try:
        await env.step(Reply.of("hello"))
    except UsageError:
        return
    raise AssertionError(f"step() {when} must raise UsageError; it went on")


async def _check_junk(env: Env, task: Task, seed: int, junk_reward: float) -> None:
    for text in _JUNK:
        results = await play(env, task, [Reply.of(text)] * _MAX_STEPS, seed=seed)
        total = _check_results(env, results, task)
        assert results[-1].terminated or results[-1].truncated, f"task {task.id}: replies of {text!r} never end it"
        assert total <= max(junk_reward, env.reward_range[0]), f"task {task.id}: junk {text!r} scores {total}"


async def _check_oracle(env: Env, task: Task, seed: int) -> None:
    if not isinstance(env, Oracle):
        return
    results = await play(env, task, env.oracle(task), seed=seed)
    total = _check_results(env, results, task)
    assert results, f"task {task.id}: the oracle has no replies"
    assert results[-1].terminated, f"task {task.id}: the oracle's replies do not end the episode"
    best = env.reward_range[1]
    assert math.isclose(total, best, rel_tol=1e-9), f"task {task.id}: the oracle scores {total}, not {best}"


async def _check_truncation(env: Env, task: Task, seed: int) -> None:
    await env.reset(seed=seed, options={"task": task})
    result = await env.truncate("context")
    _check_results(env, [result], task)
    assert result.truncated, f"task {task.id}: truncate() must give truncated=True"
    assert not result.terminated, f"task {task.id}: truncate() must not give terminated=True"
    assert result.info.get("truncated_by") == "context", f"task {task.id}: info['truncated_by'] must be the reason"


def _check_results(env: Env, results: Sequence[StepResult], task: Task) -> float:
    low, high = env.reward_range
    for number, result in enumerate(results, 1):
        where = f"task {task.id}, step {number}"
        assert isinstance(result, StepResult), f"{where}: step() must give a StepResult, not {type(result).__name__}"
        _assert_observation(result.observation, where)
        reward: Any = result.reward
        assert isinstance(reward, (int, float)), f"{where}: the reward is {reward!r}, not a number"
        assert math.isfinite(reward), f"{where}: the reward is {reward!r}, not finite"
        assert not (result.terminated and result.truncated), f"{where}: terminated and truncated at once"
        assert bool(result.info.get("truncated_by")) == result.truncated, f"{where}: info['truncated_by'] disagrees"
        for name, value in result.info.get("rewards", {}).items():
            assert math.isfinite(value), f"{where}: reward {name!r} is {value!r}"
        for event in result.info.get("tool_events", ()):
            assert isinstance(event, ToolEvent), f"{where}: info['tool_events'] holds {event!r}"
            _assert_json(dict(event.info), f"{where}: the tool event's info")
    total = math.fsum(result.reward for result in results)
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    assert low - slack <= total <= high + slack, f"task {task.id}: the episode's reward {total} is outside {low}…{high}"
    return total


def _assert_observation(observation: Observation, where: str) -> None:
    assert isinstance(observation, tuple), f"{where}: the observation must be a tuple of Message"
    for message in observation:
        assert isinstance(message, Message), f"{where}: the observation holds {message!r}, not a Message"
        assert message.role is not Role.ASSISTANT, f"{where}: the observation speaks for the policy"


def _assert_json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} cannot be written as JSON: {error}") from error


async def _check_bad_calls(env: Env, task: Task, seed: int) -> None:
    """Malformed and unknown calls are answered, each under its id, and never executed."""
    result = await env.reset(seed=seed, options={"task": task})
    _assert_observation(result.observation, f"task {task.id}, reset")
    assert result.observation, f"task {task.id}: reset() gave no observation"
    schemas = result.info.get("tools", [])
    _assert_json(schemas, "info['tools']")
    if not schemas:
        return
    name = schemas[0]["function"]["name"]
    malformed = ToolCall(id="bad_0", name=name, arguments=None, raw='{"name": ', error="the call is no valid JSON")
    unknown = ToolCall(id="bad_1", name=f"{name}_x", arguments={}, raw="{}")
    executed = _count_executions(env)
    try:
        step = await env.step(Reply(text="…", calls=(malformed, unknown)))
    except MilesError as error:
        raise AssertionError(f"a malformed call must be answered, not raise {error!r}") from error
    finally:
        env.__dict__.pop("call_tool", None)
    if step.truncated:  # an environment of one turn
        return
    ids = [message.tool_call_id for message in step.observation if message.role is Role.TOOL]
    assert ids == ["bad_0", "bad_1"], f"bad calls 'bad_0', 'bad_1' were answered under the ids {ids}"
    for message in step.observation:
        assert message.text, "a bad call was answered with nothing"
        assert len(message.text) <= _MAX_FEEDBACK_CHARS, "the answer to a bad call is too long"
    assert not any(event.ok for event in step.info.get("tool_events", ())), "a bad call's event must have ok=False"
    assert not executed, f"bad calls were executed: {executed}"


def _count_executions(env: Env) -> list[str]:
    executed: list[str] = []
    if isinstance(env, ToolEnv):
        original = env.call_tool

        async def counted(tool: Any, call: ToolCall, context: Any) -> ToolOutput:
            executed.append(call.id)
            return await original(tool, call, context)

        env.__dict__["call_tool"] = counted  # on the instance, taken off again by the caller
    return executed


async def _check_seeds(env: Env, task: Task, seed: int) -> None:
    """Equal seeds give equal episodes, and no global generator is drawn from."""
    before = random.getstate(), np.random.get_state(legacy=False)
    played = []
    for _ in range(2):
        replies = env.oracle(task) if isinstance(env, Oracle) else [Reply.of(_JUNK[1])] * _MAX_STEPS
        results = await play(env, task, replies, seed=seed)
        played.append([(each.observation, each.reward, each.terminated, each.truncated) for each in results])
    assert played[0] == played[1], f"task {task.id}: seed {seed} gave two different episodes"
    after = random.getstate(), np.random.get_state(legacy=False)
    assert repr(before) == repr(after), "an episode drew from a global random generator; use self.np_random"


async def _check_after_close(env: Env, task: Task, seed: int) -> None:
    await play(env, task, [Reply.of(_JUNK[0])] * _MAX_STEPS, seed=seed)
    await _assert_refuses_step(env, "after the end")
    await env.reset(seed=seed, options={"task": task})
    await env.close()
    await _assert_refuses_step(env, "after close()")
