"""The conformance suite of buffers: what every `TrajectoryBuffer` keeps, checked on yours.

await check_buffer(lambda: MyBuffer(…), groups_per_step=4, max_staleness=1)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import numpy as np

from miles_agents.contracts import Draw, TrajectoryBuffer
from miles_agents.errors import FailureCause
from miles_agents.types import (
    EpisodeStatus,
    Message,
    StopReason,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
    VersionSpan,
)

_PATIENCE_S = 5.0
_STEPS = 6


async def check_buffer(make: Callable[[], TrajectoryBuffer], *, groups_per_step: int, max_staleness: int) -> None:
    """Check a buffer against the contract of `TrajectoryBuffer`.

    Args:
        make: gives a fresh buffer at version 0 over the same tasks each time.
        groups_per_step: how many groups a step takes.
        max_staleness: the bound the buffer was made with.

    Raises:
        AssertionError: what it does not keep.
    """
    await _check_staleness_and_order(make(), groups_per_step, max_staleness)
    await _check_replacement(make(), groups_per_step)
    await _check_state(make, groups_per_step)
    await _check_injection(make())


async def _check_staleness_and_order(buffer: TrajectoryBuffer, count: int, bound: int) -> None:
    rng = np.random.default_rng(0)

    async def work() -> None:
        while True:
            draw = await buffer.admit()
            for _ in range(int(rng.integers(20))):
                await asyncio.sleep(0)
            await buffer.put(played(draw))

    workers = [asyncio.create_task(work()) for _ in range(count + 1)]
    drawn: list[int] = []
    try:
        for step in range(_STEPS):
            groups = await asyncio.wait_for(buffer.take(count), _PATIENCE_S)
            assert len(groups) == count, f"take({count}) gave {len(groups)} groups"
            stale = max(step - group.version for group in groups)
            assert stale <= bound, f"a group of staleness {stale} was given, above the bound of {bound}"
            drawn += [group.draw for group in groups]
            await buffer.release(groups, version=step + 1)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert drawn == sorted(drawn), f"groups came out of draw order: {drawn}"
    assert len(set(drawn)) == len(drawn), f"a draw was trained on twice: {drawn}"


async def _check_replacement(buffer: TrajectoryBuffer, count: int) -> None:
    lost = await asyncio.wait_for(buffer.admit(), _PATIENCE_S)
    await buffer.put(played(lost, valid=False))
    for _ in range(count):
        await buffer.put(played(await asyncio.wait_for(buffer.admit(), _PATIENCE_S)))
    groups = await asyncio.wait_for(buffer.take(count), _PATIENCE_S)
    assert lost.index not in {group.draw for group in groups}, "a group without a valid episode was given to train on"


async def _check_state(make: Callable[[], TrajectoryBuffer], count: int) -> None:
    buffer = make()
    draws = [await asyncio.wait_for(buffer.admit(), _PATIENCE_S) for _ in range(count)]
    await buffer.put(played(draws[-1]))
    state = json.loads(json.dumps(buffer.state_dict()))  # JSON, as promised
    restored = make()
    restored.load_state_dict(state)
    again = [await asyncio.wait_for(restored.admit(), _PATIENCE_S) for _ in draws[:-1]]
    assert [(draw.index, draw.task.id) for draw in again] == [(draw.index, draw.task.id) for draw in draws[:-1]], (
        "after a resume the unfinished draws are not begun again, in their order"
    )
    for draw in again:
        await restored.put(played(draw))
    groups = await asyncio.wait_for(restored.take(count), _PATIENCE_S)
    assert [group.draw for group in groups] == [draw.index for draw in draws], "a resume lost or repeated a group"
    assert groups[-1].trajectories[0].turns[0].completion_ids.tolist() == [3], "a finished group came back changed"


async def _check_injection(buffer: TrajectoryBuffer) -> None:
    buffer.inject([Task(id="injected", prompt=(Message.user("?"),))])
    draw = await asyncio.wait_for(buffer.admit(), _PATIENCE_S)
    assert draw.task.id == "injected", f"an injected task was not drawn next, but {draw.task.id!r}"


def played(draw: Draw, *, valid: bool = True) -> TrajectoryGroup:
    """A made-up group of one episode for a draw: ids 1 2 | 3, sampled by the draw's version; lost if not `valid`."""
    turn = Turn(
        prompt_ids=np.array([1, 2], np.int32),
        completion_ids=np.array([3], np.int32),
        logprobs=np.array([-0.5], np.float32),
        stop_reason=StopReason.STOP,
        versions=(VersionSpan(draw.version, 0, 1),),
    )
    trajectory = Trajectory(
        id=f"{draw.group_id}/0",
        task_id=draw.task.id,
        group_id=draw.group_id,
        turns=(turn,),
        status=EpisodeStatus.COMPLETED if valid else EpisodeStatus.FAILED,
        reward=1.0 if valid else None,
        cause=None if valid else FailureCause.SANDBOX,
        start_version=draw.version,
    )
    return TrajectoryGroup(
        id=draw.group_id, task_id=draw.task.id, draw=draw.index, version=draw.version, trajectories=(trajectory,)
    )
