"""The trajectory buffer: bounded staleness, draw order, exact resume."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from miles_agents.checks.buffer import check_buffer, played
from miles_agents.errors import ConfigError, DataError, MilesError
from miles_agents.rollout.buffer import BoundedStalenessBuffer
from miles_agents.rollout.source import TaskSource
from miles_agents.types import Message, Task


def _tasks(count: int) -> list[Task]:
    return [Task(id=f"t{n}", prompt=(Message.user(f"question {n}"),), answer=str(n)) for n in range(count)]


def _buffer(*, groups_per_step: int = 4, max_staleness: int = 0, tasks: int = 10) -> BoundedStalenessBuffer:
    source = TaskSource(_tasks(tasks), seed=3)
    return BoundedStalenessBuffer(source, groups_per_step=groups_per_step, max_staleness=max_staleness)


async def _idle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("bound", [0, 1, 2])
async def test_observed_staleness_is_never_above_the_bound(bound: int) -> None:
    buffer = _buffer(max_staleness=bound, groups_per_step=3)
    rng = random.Random(bound)
    seen: list[int] = []

    async def worker() -> None:
        while True:
            draw = await buffer.admit()
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            await buffer.put(played(draw, valid=rng.random() > 0.1))

    workers = [asyncio.create_task(worker()) for _ in range(7)]
    for step in range(25):
        groups = await asyncio.wait_for(buffer.take(3), 5)
        seen += [step - group.trajectories[0].min_version for group in groups]
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(0)
        await buffer.release(groups, version=step + 1)
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert max(seen) == bound  # the bound is used, and never passed
    assert min(seen) >= 0


async def test_synchronous_mode_admits_one_step_of_draws_and_no_more() -> None:
    buffer = _buffer(groups_per_step=4)
    draws = [await buffer.admit() for _ in range(4)]
    blocked = asyncio.create_task(buffer.admit())
    await _idle()
    assert not blocked.done()
    for draw in draws:
        await buffer.put(played(draw))
    groups = await buffer.take(4)
    await _idle()
    assert not blocked.done()
    await buffer.release(groups, version=1)
    assert (await asyncio.wait_for(blocked, 1)).version == 1


async def test_groups_come_in_draw_order_whatever_finished_first() -> None:
    buffer = _buffer(groups_per_step=4)
    draws = [await buffer.admit() for _ in range(4)]
    taking = asyncio.create_task(buffer.take(2))
    for draw in reversed(draws[1:]):
        await buffer.put(played(draw))
    await _idle()
    assert not taking.done()  # two are ready, but draw 0 is not
    await buffer.put(played(draws[0]))
    assert [group.draw for group in await asyncio.wait_for(taking, 1)] == [0, 1]


async def test_F04_a_group_without_valid_episode_is_replaced_by_another_draw() -> None:
    # case F04: an all-aborted group is refilled, never trained on
    buffer = _buffer(groups_per_step=2)
    first, second = await buffer.admit(), await buffer.admit()
    await buffer.put(played(first, valid=False))
    third = await asyncio.wait_for(buffer.admit(), 1)
    await buffer.put(played(second))
    await buffer.put(played(third))
    assert [group.draw for group in await buffer.take(2)] == [1, 2]
    assert buffer.discarded == 1


async def test_a_restored_buffer_repeats_nothing_and_loses_nothing() -> None:
    buffer = _buffer(groups_per_step=2, max_staleness=1)
    draws = [await buffer.admit() for _ in range(4)]
    await buffer.put(played(draws[1]))
    await buffer.put(played(draws[3]))
    state = json.loads(json.dumps(buffer.state_dict()))

    restored = _buffer(groups_per_step=2, max_staleness=1)
    restored.load_state_dict(state)
    again = [await restored.admit(), await restored.admit()]
    assert [(draw.index, draw.task.id) for draw in again] == [(d.index, d.task.id) for d in (draws[0], draws[2])]
    assert restored.restarted == 2
    for draw in again:
        await restored.put(played(draw))
    groups = await restored.take(2)
    assert [group.draw for group in groups] == [0, 1]
    assert groups[1].trajectories[0].turns[0].logprobs.tolist() == [-0.5]
    await restored.release(groups, version=1)
    next_draw = await asyncio.wait_for(restored.admit(), 1)
    assert next_draw.index == 4
    assert next_draw.task.id == TaskSource(_tasks(10), seed=3).task_at(4).id


async def test_taken_but_unreleased_groups_are_saved_to_be_trained_again() -> None:
    buffer = _buffer(groups_per_step=1)
    await buffer.put(played(await buffer.admit()))
    await buffer.take(1)
    restored = _buffer(groups_per_step=1)
    restored.load_state_dict(buffer.state_dict())
    assert [group.draw for group in await asyncio.wait_for(restored.take(1), 1)] == [0]


async def _after_two_steps(*, finished: int) -> dict[str, object]:
    """The state of a buffer of 4 groups a step and staleness 1 after 2 steps: the last `finished` of 8 draws done."""
    buffer = _buffer(groups_per_step=4, max_staleness=1)
    for step in range(2):
        while len(draws := list(buffer._in_flight.values())) < 8:
            await buffer.admit()
        for draw in draws[:4]:
            await buffer.put(played(draw))
        await buffer.release(await buffer.take(4), version=step + 1)
    for draw in list(buffer._in_flight.values())[-finished:]:
        await buffer.put(played(draw))
    return json.loads(json.dumps(buffer.state_dict()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("groups_per_step", [2, 4, 8])
async def test_a_run_goes_on_with_another_number_of_groups_within_its_bound(groups_per_step: int) -> None:
    state = await _after_two_steps(finished=1)
    buffer = _buffer(groups_per_step=groups_per_step, max_staleness=3)
    buffer.load_state_dict(state)
    seen: list[int] = []

    async def worker() -> None:
        while True:
            await buffer.put(played(await buffer.admit()))

    workers = [asyncio.create_task(worker()) for _ in range(4)]
    for step in range(2, 8):
        groups = await asyncio.wait_for(buffer.take(groups_per_step), 5)
        seen += [step - group.trajectories[0].min_version for group in groups]
        await _idle()
        await buffer.release(groups, version=step + 1)
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert max(seen) == 3


async def test_going_on_with_a_bound_too_small_for_what_is_finished_is_refused_not_waited_for() -> None:
    state = await _after_two_steps(finished=3)  # sampled by version 1, to be trained at version 2
    buffer = _buffer(groups_per_step=4, max_staleness=0)
    with pytest.raises(ConfigError, match="max_staleness=1 or more"):
        buffer.load_state_dict(state)


async def test_injected_tasks_come_before_the_source_and_move_it_not() -> None:
    buffer = _buffer(groups_per_step=3)
    buffer.inject([Task(id="mine", prompt=(Message.user("?"),))])
    drawn = [(await buffer.admit()).task.id for _ in range(3)]
    source = TaskSource(_tasks(10), seed=3)
    assert drawn == ["mine", source.task_at(0).id, source.task_at(1).id]


@pytest.mark.parametrize("bound", [0, 1, 2])
async def test_nothing_is_drawn_that_would_have_its_turn_after_the_last_step(bound: int) -> None:
    source = TaskSource(_tasks(10), seed=3)
    buffer = BoundedStalenessBuffer(source, groups_per_step=2, max_staleness=bound, steps=3)
    drawn: list[int] = []

    async def worker() -> None:
        while True:
            draw = await buffer.admit()
            drawn.append(draw.index)
            await buffer.put(played(draw, valid=draw.index != 4))  # lost: another takes its place

    workers = [asyncio.create_task(worker()) for _ in range(3)]
    for step in range(3):
        await buffer.release(await asyncio.wait_for(buffer.take(2), 5), version=step + 1)
    await _idle()
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(drawn) == list(range(7))


async def test_a_group_put_twice_is_refused() -> None:
    buffer = _buffer()
    draw = await buffer.admit()
    await buffer.put(played(draw))
    with pytest.raises(MilesError, match="twice"):
        await buffer.put(played(draw))


def test_the_data_order_depends_on_seed_and_place_alone() -> None:
    tasks = _tasks(7)
    source, other = TaskSource(tasks, seed=1), TaskSource(tasks, seed=2)
    order = [source.task_at(n).id for n in range(21)]
    assert all(sorted(order[7 * e : 7 * e + 7]) == sorted(task.id for task in tasks) for e in range(3))
    assert order[:7] != order[7:14]
    assert [source.task_at(n).id for n in reversed(range(21))] == order[::-1]
    assert [other.task_at(n).id for n in range(7)] != order[:7]


def test_sources_without_tasks_or_with_equal_ids_are_refused() -> None:
    with pytest.raises(DataError, match="no tasks"):
        TaskSource([], seed=0)
    with pytest.raises(DataError, match="'t0'"):
        TaskSource([*_tasks(2), *_tasks(1)], seed=0)


@pytest.mark.parametrize("bound", [0, 2])
async def test_the_buffer_passes_the_suite_of_buffers(bound: int) -> None:
    await check_buffer(lambda: _buffer(groups_per_step=3, max_staleness=bound), groups_per_step=3, max_staleness=bound)


async def test_the_suite_of_buffers_catches_a_bound_that_is_not_kept() -> None:
    with pytest.raises(AssertionError, match="staleness"):
        await check_buffer(lambda: _buffer(groups_per_step=3, max_staleness=2), groups_per_step=3, max_staleness=0)
