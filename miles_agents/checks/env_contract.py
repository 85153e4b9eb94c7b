"""The parts of the contract of `Env`, one assertion each; `check_env` and the attack of `env_attack` use them."""

from __future__ import annotations

import json
import math
import random
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from miles_agents.checks.env_play import Oracle, Played, play_episode
from miles_agents.contracts import Env, Observation, StepResult, ToolEnv, ToolOutput
from miles_agents.errors import MilesError, UsageError
from miles_agents.types import Message, Reply, Role, Task, ToolCall, ToolEvent

_MAX_TASKS = 100_000
_MAX_FEEDBACK_CHARS = 4000


# --- tasks ------------------------------------------------------------------------------------------------------------


def read_tasks(env: Env) -> dict[str, list[Task]]:
    """The tasks by split, at most 100,000 of each: some, the same each time, of their split, serialisable.

    Raises:
        AssertionError: they are not.
    """
    found: dict[str, list[Task]] = {}
    for split in env.splits:
        tasks = list(islice(env.tasks(split), _MAX_TASKS))
        assert tasks, f"tasks({split!r}) gave none"
        for task in tasks:
            assert isinstance(task, Task), f"tasks({split!r}) gave {task!r}, not a Task"
            assert task.split == split, f"task {task.id} of tasks({split!r}) says split={task.split!r}"
        again = list(islice(env.tasks(split), _MAX_TASKS))
        assert tasks == again, f"tasks({split!r}) gave other tasks, or another order, the second time"
        for task in tasks:
            assert_json([task.answer, dict(task.metadata)], f"answer and metadata of task {task.id}")
        found[split] = tasks
    return found


def assert_no_overlap(tasks: Mapping[str, Sequence[Task]]) -> None:
    """Each id is used once, and no prompt is in two splits (case, spaces and forms of letters aside; images count).

    Raises:
        AssertionError: it is not so.
    """
    ids: set[str] = set()
    split_of_text: dict[tuple[str, tuple[bytes, ...]], str] = {}
    for split, given in tasks.items():
        for task in given:
            assert task.id not in ids, f"task id {task.id!r} is used twice"
            ids.add(task.id)
            text = "\n".join(message.text for message in task.prompt)
            pictures = tuple(image.data for message in task.prompt for image in message.images)
            other = split_of_text.setdefault((_normalised(text), pictures), split)
            assert other == split, f"task {task.id}: the same prompt is in split {other!r} and in {split!r}"


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def assert_json(value: Any, what: str) -> None:
    """Raises AssertionError if `value` is no JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} cannot be written as JSON: {error}") from error


# --- episodes ---------------------------------------------------------------------------------------------------------


async def assert_refuses_step(env: Env, when: str) -> None:
    """Raises AssertionError if a step goes through while no episode runs."""
    try:
        await env.step(Reply.of("hello"))
    except UsageError:
        return
    raise AssertionError(f"step() {when} must raise UsageError; it went on")


def assert_shape(results: Sequence[StepResult], task: Task) -> None:
    """Raises AssertionError if a step gave what no step may give; rewards are `assert_rewards`'s."""
    for number, result in enumerate(results, 1):
        where = f"task {task.id}, step {number}"
        assert isinstance(result, StepResult), f"{where}: step() must give a StepResult, not {type(result).__name__}"
        assert_observation(result.observation, where)
        assert not (result.terminated and result.truncated), f"{where}: terminated and truncated at once"
        assert bool(result.info.get("truncated_by")) == result.truncated, f"{where}: info['truncated_by'] disagrees"
        for event in result.info.get("tool_events", ()):
            assert isinstance(event, ToolEvent), f"{where}: info['tool_events'] holds {event!r}"
            assert_json(dict(event.info), f"{where}: the tool event's info")


def assert_observation(observation: Observation, where: str) -> None:
    """Raises AssertionError if it is no tuple of messages, or speaks for the policy."""
    assert isinstance(observation, tuple), f"{where}: the observation must be a tuple of Message"
    for message in observation:
        assert isinstance(message, Message), f"{where}: the observation holds {message!r}, not a Message"
        assert message.role is not Role.ASSISTANT, f"{where}: the observation speaks for the policy"


def assert_rewards(env: Env, results: Sequence[StepResult], task: Task) -> float:
    """The episode's reward: finite, and within the declared range for each seat.

    Raises:
        AssertionError: it is not.
    """
    by_seat: dict[str, list[float]] = {}
    for number, result in enumerate(results, 1):
        where = f"task {task.id}, step {number}"
        reward: Any = result.reward
        assert isinstance(reward, (int, float)), f"{where}: the reward is {reward!r}, not a number"
        assert math.isfinite(reward), f"{where}: the reward is {reward!r}, not finite"
        for name, value in result.info.get("rewards", {}).items():
            assert math.isfinite(value), f"{where}: reward {name!r} is {value!r}"
        for seat, value in (result.info.get("seat_rewards") or {"": reward}).items():
            by_seat.setdefault(seat, []).append(value)
    low, high = env.reward_range
    assert low < high, f"reward_range is {env.reward_range}; the first must be the smaller"
    slack = 1e-9 * max(1.0, *(abs(end) for end in (low, high) if math.isfinite(end)))
    for rewards in by_seat.values():
        total = math.fsum(rewards)
        assert low - slack <= total <= high + slack, (
            f"task {task.id}: the episode's reward {total} is outside {low}…{high}"
        )
    return math.fsum(result.reward for result in results)


async def assert_truncation(env: Env, task: Task, seed: int) -> None:
    """Raises AssertionError if `truncate` does not end an episode as it must."""
    await env.reset(seed=seed, options={"task": task})
    result = await env.truncate("context")
    assert_shape([result], task)
    assert_rewards(env, [result], task)
    assert result.truncated, f"task {task.id}: truncate() must give truncated=True"
    assert not result.terminated, f"task {task.id}: truncate() must not give terminated=True"
    assert result.info.get("truncated_by") == "context", f"task {task.id}: info['truncated_by'] must be the reason"


async def assert_oracle(env: Env, task: Task, seed: int) -> None:
    """Raises AssertionError if the oracle's replies do not score full; without an oracle nothing is played."""
    if not isinstance(env, Oracle):
        return
    results = (await play_episode(env, task, env.oracle(task), seed=seed)).results
    assert_shape(results, task)
    total = assert_rewards(env, results, task)
    assert results, f"task {task.id}: the oracle has no replies"
    assert results[-1].terminated, f"task {task.id}: the oracle's replies do not end the episode"
    best = env.reward_range[1]
    full = math.isclose(total, best, rel_tol=1e-9) if math.isfinite(best) else total > allowed_for_junk(env)
    assert full, f"task {task.id}: the oracle scores {total}, not {best}"


def allowed_for_junk(env: Env, declared: float = 0.0) -> float:
    """The most that replies without meaning may score: what the environment declares, 0, or the least it can give."""
    return max(float(getattr(env, "junk_reward", declared)), declared, env.reward_range[0])


def assert_junk(env: Env, played: Played, task: Task, what: str, allowed: float) -> None:
    """Raises AssertionError if an episode of meaningless replies does not end or scores more than allowed."""
    assert played.ended, f"task {task.id}: replies of {what} never end it"
    assert played.reward <= allowed, f"task {task.id}: junk {what} scores {played.reward}, more than {allowed}"


# --- calls ------------------------------------------------------------------------------------------------------------


async def assert_bad_calls_answered(env: Env, task: Task, seed: int) -> None:
    """Malformed and unknown calls are answered, each under its id, and never executed; so are bad arguments.

    Raises:
        AssertionError: they are not.
    """
    result = await env.reset(seed=seed, options={"task": task})
    assert_observation(result.observation, f"task {task.id}, reset")
    assert result.observation, f"task {task.id}: reset() gave no observation"
    schemas = result.info.get("tools", [])
    assert_json(schemas, "info['tools']")
    if not schemas:
        return
    name = schemas[0]["function"]["name"]
    malformed = ToolCall(id="bad_0", name=name, arguments=None, raw='{"name": ', error="the call is no valid JSON")
    unknown = ToolCall(id="bad_1", name=f"{name}_x" * 100, arguments={}, raw="{}")
    executed = await _answered(env, (malformed, unknown))
    assert not executed, f"bad calls were executed: {executed}"
    for schema in schemas:
        await env.reset(seed=seed, options={"task": task})
        wrong = {"no_such_argument": "x" * 20_000}
        await _answered(env, (ToolCall(id="bad_0", name=schema["function"]["name"], arguments=wrong, raw="{}"),))


async def _answered(env: Env, calls: tuple[ToolCall, ...]) -> list[str]:
    with _counted_executions(env) as executed:
        try:
            step = await env.step(Reply(text="…", calls=calls))
        except MilesError as error:
            raise AssertionError(f"a malformed call must be answered, not raise {error!r}") from error
    if step.truncated:  # an environment of one turn
        return executed
    ids = [message.tool_call_id for message in step.observation if message.role is Role.TOOL]
    wanted = [call.id for call in calls]
    named = ", ".join(repr(each) for each in wanted)
    assert ids == wanted, f"bad calls {named} were answered under the ids {ids}"
    for message in step.observation:
        assert message.text, "a bad call was answered with nothing"
        assert len(message.text) <= _MAX_FEEDBACK_CHARS, (
            f"the answer to a bad call is too long: {len(message.text)} characters, more than {_MAX_FEEDBACK_CHARS}"
        )
    if calls[0].error is not None:
        assert not any(event.ok for event in step.info.get("tool_events", ())), "a bad call's event must have ok=False"
    return executed


@contextmanager
def _counted_executions(env: Env) -> Iterator[list[str]]:
    executed: list[str] = []
    if not isinstance(env, ToolEnv):
        yield executed
        return
    original = env.call_tool

    async def counted(tool: Any, call: ToolCall, context: Any) -> ToolOutput:
        executed.append(call.id)
        return await original(tool, call, context)

    env.__dict__["call_tool"] = counted  # on the instance, and taken off again
    try:
        yield executed
    finally:
        env.__dict__.pop("call_tool", None)


# --- randomness -------------------------------------------------------------------------------------------------------


@contextmanager
def no_global_draws() -> Iterator[None]:
    """Raises AssertionError if the block drew from `random` or from NumPy's global generator."""
    before = repr((random.getstate(), np.random.get_state(legacy=False)))
    yield
    after = repr((random.getstate(), np.random.get_state(legacy=False)))
    assert before == after, "an episode drew from a global random generator; use self.np_random"
