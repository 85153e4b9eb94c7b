"""The training loop alone: scripted engine, a trainer that only counts; buffer, workers, algorithm, folder are real."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_loop import GROUPS, SIZE, SaysOne, World, mixed
from scripted_runs import ScriptedReply, call_text, turn_of

from miles_agents.algorithms.grpo import GRPO
from miles_agents.contracts import ExecResult, ExecStatus, StepResult
from miles_agents.controller import StoppedEarlyError
from miles_agents.errors import CheckpointError, FailureRateError
from miles_agents.runs.folder import RunFolder
from miles_agents.runs.trajectories import read_trajectories
from miles_agents.tools import PythonTool
from miles_agents.tools.sandboxes import ScriptedSandboxes
from miles_agents.types import Batch, GenerateRequest, Reply, TrajectoryGroup, collate


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "run") as folder:
        yield folder


def _checkpoints(run: RunFolder) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


# ---------------------------------------------------------------------- versions and staleness


async def test_weights_are_pushed_before_anything_is_sampled_and_after_every_step(run: RunFolder) -> None:
    world = World(run, mixed, steps=3)
    await world.loop.prepare()
    assert world.engine.requests == []
    await world.loop.run()
    assert world.sync.pushed == [0, 1, 2, 3]
    assert sorted(world.rows()) == [1, 2, 3]
    assert _checkpoints(run) == ["step_000003"]


@pytest.mark.parametrize("bound", [0, 1, 2])
async def test_staleness_reaches_its_bound_and_never_passes_it(run: RunFolder, bound: int) -> None:
    world = World(run, mixed, steps=6, max_staleness=bound)
    world.trainer.slow_s = 0.02  # sampling is much faster: the workers run ahead as far as they may
    await world.train()
    observed = [row["buffer/staleness_max"] for row in world.rows().values()]
    assert len(observed) == 6
    assert max(observed) == world.loop.counters.max_staleness == bound
    assert all(stale <= min(step, bound) for step, stale in enumerate(observed))


async def test_a_slow_group_makes_the_others_wait_and_not_go_stale(run: RunFolder) -> None:
    def script(request: GenerateRequest) -> ScriptedReply:
        return ScriptedReply(text=mixed(request), delay_s=0.25 if request.request_id == "d3/1/0" else 0.0)

    world = World(run, script, steps=6, max_staleness=1)
    await world.train()
    assert world.loop.counters.max_staleness <= 1
    files = [run.trajectories_file(step) for step in range(1, 7)]
    draws = [[json.loads(line)["draw"] for line in file.read_text().splitlines()] for file in files]
    assert draws == [[2 * step] * SIZE + [2 * step + 1] * SIZE for step in range(6)]  # in draw order, none left out


# ---------------------------------------------------------------------- what the event loop is spared


async def test_the_event_loop_goes_on_while_a_step_is_weighed_and_its_episodes_are_written(run: RunFolder) -> None:
    class Heavy(GRPO):
        def advantages(self, batch: Batch) -> dict[str, float]:
            time.sleep(0.5)
            return super().advantages(batch)

    def slowly(ids: Sequence[int]) -> list[str]:
        time.sleep(0.5 / (GROUPS * SIZE))
        return [str(each) for each in ids]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(time.monotonic())

    world = World(run, mixed, steps=1, algorithm=Heavy(), token_pieces=slowly)
    ticks = [time.monotonic()]
    ticking = asyncio.create_task(tick())
    await world.train()
    ticking.cancel()
    assert ticks[-1] - ticks[0] > 0.9  # the slow parts were there
    assert max(after - before for before, after in pairwise(ticks)) < 0.4
    assert len(read_trajectories(run.trajectories_file(1))) == GROUPS * SIZE


async def test_collating_runs_beside_the_event_loop(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def collate_here(groups: Sequence[TrajectoryGroup]) -> Batch:
        threads.append(threading.current_thread())
        return collate(groups)

    monkeypatch.setattr("miles_agents.controller.collate", collate_here)
    await World(run, mixed, steps=2).train()
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_a_run_that_is_stopped_while_finished_groups_wait_for_it_begins_no_other_step(run: RunFolder) -> None:
    world = World(run, mixed, steps=50, max_staleness=3)
    world.trainer.slow_s = 0.02  # sampling is much faster: there is always something to train on
    world.loop.observers = [lambda step, metrics: world.loop.stop.set() if step == 4 else None]
    with pytest.raises(StoppedEarlyError, match="stopped after step 4"):
        await world.train()
    await world.loop.checkpoint()
    assert world.trainer.begun == 4
    assert world.ledger.episodes == 4 * GROUPS * SIZE


# ---------------------------------------------------------------------- tools and sandboxes


class Boxed(SaysOne):
    """Has a tool that runs in a sandbox."""

    tools = (PythonTool(),)


def _boxed(request: GenerateRequest) -> str:
    return call_text("python", code="1") if turn_of(request) == 0 else mixed(request)


async def test_a_row_has_the_calls_of_its_episodes_and_the_sandboxes_started_since_the_row_before(
    run: RunFolder,
) -> None:
    boxes = ScriptedSandboxes.printing("1")
    world = World(run, _boxed, env=Boxed, steps=3, evaluate_every=3, sandboxes=boxes)
    await world.train()
    rows = world.rows()
    for step in (1, 2, 3):
        assert rows[step]["tool/python/calls"] == GROUPS * SIZE
        assert rows[step]["tool/add/calls"] == rows[step]["tool/unknown_calls"] == 0.0
        assert rows[step]["time/tool/python/latency_p50_s"] >= 0.0
    # Step 1 also has the evaluation before it, of two tasks; each episode's sandbox is counted in one row.
    total = sum(rows[step]["sandbox/starts"] for step in (1, 2, 3))
    assert total == boxes.counters.starts == 3 * GROUPS * SIZE + 2 * 2


async def test_sandboxes_that_fail_to_start_are_counted_while_episodes_are_played_again(run: RunFolder) -> None:
    boxes = ScriptedSandboxes(lambda code: ExecResult(status=ExecStatus.OK), fail_opens=[0])
    await World(run, _boxed, env=Boxed, steps=1, sandboxes=boxes).train()
    [row] = [row.metrics for row in run.read_metrics()]
    assert row["sandbox/failed_starts"] == 1.0
    assert row["rollout/failed_episodes"] == 1.0


# ---------------------------------------------------------------------- steps with nothing to train on


async def test_a_step_in_which_all_rewards_are_equal_trains_nothing_and_is_counted(run: RunFolder) -> None:
    world = World(run, lambda request: "7", steps=3)
    await world.train()
    assert world.trainer.updates == 0
    assert world.loop.counters.empty_steps == 3
    assert world.sync.pushed == [0, 1, 2, 3]  # the policy version goes on
    for step in (1, 2, 3):
        row = world.rows()[step]
        assert row["reward/zero_variance_groups"] == 1.0
        assert row["train/kept_samples"] == 0.0
        assert all(np.isfinite(value) for value in row.values())


async def test_an_update_without_a_trainable_token_is_no_comparison_of_trainer_and_engine(run: RunFolder) -> None:
    world = World(run, mixed, steps=1)

    async def nothing(minibatch: Batch) -> dict[str, float]:
        return {"loss": 0.0, "trained_tokens": 0.0, "empty_steps": 1.0}

    world.trainer.step = nothing  # type: ignore[method-assign]
    await world.train()
    assert world.rows()[1]["train/empty_steps"] == 1.0
    assert "train/train_rollout_logprob_abs_diff" not in world.rows()[1]


async def test_a_group_with_equal_rewards_costs_the_other_groups_nothing(run: RunFolder) -> None:
    def script(request: GenerateRequest) -> str:
        return "7" if request.request_id.startswith(("d1/", "d3/")) else mixed(request)

    world = World(run, script, steps=2)
    await world.train()
    assert world.trainer.updates == 2
    assert [world.rows()[step]["train/kept_samples"] for step in (1, 2)] == [4.0, 4.0]


# ---------------------------------------------------------------------- lost episodes


class Faulty(SaysOne):
    """Fails in the way that the task's number says."""

    async def step(self, action: Reply) -> StepResult:
        """Hang, give nothing, cancel itself, or go on."""
        match int(self._current().task.id.removeprefix("train")):
            case 0:
                await asyncio.sleep(3600)
            case 1:
                return None  # type: ignore[return-value]
            case 2:
                raise asyncio.CancelledError
            case 3:
                raise MemoryError("the worker was killed")
        return await super().step(action)


async def test_F01_a_step_ends_within_the_episodes_deadline_whatever_environments_do(run: RunFolder) -> None:
    # case F01: one env never returns, one returns None, one is cancelled, one is killed; all 10 tasks come up
    world = World(run, mixed, env=Faulty, steps=3, deadline_s=0.3)
    began = time.monotonic()
    await world.train()
    # 4 faulty draws of the 10, of which one waits for its deadline; 6 are needed.
    assert time.monotonic() - began < 3 * 0.3 + 5
    assert sorted(world.rows()) == [1, 2, 3]
    assert world.buffer.discarded >= 1
    lost = world.ledger.failures
    assert lost["framework"] == sum(lost.values()) == 4 * world.buffer.discarded
    texts = [
        json.loads(line) for file in run.trajectories_folder.glob("step_*") for line in file.read_text().splitlines()
    ]
    assert {record["status"] for record in texts} == {"completed"}
    assert len(texts) == 3 * GROUPS * SIZE


async def test_F01_after_a_resume_the_same_bad_task_does_not_wedge_the_run_again(tmp_path: Path) -> None:
    # case F01: stopped while the hanging episode is in flight
    with RunFolder.create(tmp_path, "run") as run:
        world = World(run, mixed, env=Faulty, steps=3, deadline_s=0.5)
        await world.loop.prepare()
        training = asyncio.create_task(world.loop.run())
        while "train0" not in {task["id"] for _, task in world.buffer.state_dict()["again"]}:
            await asyncio.sleep(0.01)
        world.loop.stop.set()
        with pytest.raises(StoppedEarlyError):
            await training
        await world.loop.checkpoint()
        checkpoint = run.checkpoints().latest_complete()
        assert checkpoint is not None
        again = World(run, mixed, env=Faulty, steps=3, deadline_s=0.5)
        await again.loop.resume(checkpoint)
        await again.train()
        assert again.loop.counters.step == 3
        assert again.buffer.restarted >= 1


async def test_a_step_with_every_episode_of_every_group_lost_ends_with_the_first_cause(run: RunFolder) -> None:
    world = World(run, lambda request: ScriptedReply(error="engine gone"), max_failure_rate=0.25, checkpoint_every=1)
    with pytest.raises(
        FailureRateError, match=r"rollout\.max_failure_rate=0\.25 allows. The first: engine: engine gone"
    ):
        await world.train()


async def test_an_evaluation_that_lost_too_many_episodes_is_no_accuracy_but_an_error(run: RunFolder) -> None:
    def script(request: GenerateRequest) -> ScriptedReply:
        lost = request.request_id.startswith("eval/validation1/") and world.trainer.updates > 1
        return ScriptedReply(error="engine gone") if lost else ScriptedReply(text=mixed(request))

    world = World(run, script, steps=9, evaluate_every=1)
    with pytest.raises(FailureRateError, match=r"1 of 2 .* eval\.max_failure_rate=0\.1 allows. The first: engine"):
        await world.train()
    assert _checkpoints(run) == ["step_000002"]  # the steps before are not lost
    assert "eval/accuracy" not in world.rows()[2]


async def test_above_the_failure_rate_a_run_keeps_its_checkpoints(run: RunFolder) -> None:
    def script(request: GenerateRequest) -> ScriptedReply:
        good = int(request.request_id.split("/")[0].removeprefix("d")) < 2 * GROUPS
        return ScriptedReply(text=mixed(request)) if good else ScriptedReply(error="engine gone")

    world = World(run, script, steps=9, max_failure_rate=0.25, checkpoint_every=1)
    with pytest.raises(FailureRateError):
        await world.train()
    assert _checkpoints(run) == ["step_000001", "step_000002"]
    assert sorted(world.rows())[-1] == 2


# ---------------------------------------------------------------------- stopping, errors, checkpoints


async def test_a_bug_in_the_trainer_stops_the_run_with_itself_and_nothing_else(run: RunFolder) -> None:
    world = World(run, mixed, max_staleness=1)

    async def broken(minibatch: Batch) -> dict[str, float]:
        raise FloatingPointError("the loss is nan")

    world.trainer.step = broken  # type: ignore[method-assign]
    with pytest.raises(FloatingPointError, match="the loss is nan"):
        await world.train()
    assert len(asyncio.all_tasks()) == 1  # no worker is left


async def test_a_full_disk_while_saving_is_a_checkpoint_error_and_nothing_is_lost(run: RunFolder) -> None:
    world = World(run, mixed, steps=3, checkpoint_every=1)

    class Filling:
        def step(self, step: int, metrics: Mapping[str, float]) -> None:
            world.trainer.full = step == 2

    world.loop.observers = [Filling().step]
    with pytest.raises(CheckpointError, match=r"no space left .* step_000001 is intact.*resume=true"):
        await world.train()
    assert _checkpoints(run) == ["step_000001"]

    checkpoint = run.checkpoints().latest_complete()
    assert checkpoint is not None
    again = World(run, mixed, steps=3, checkpoint_every=1)
    await again.loop.resume(checkpoint)
    assert sorted(again.rows())[-1] == 1  # the row of step 2 is written again, not twice
    await again.train()
    assert again.trainer.updates == 3
    assert [row.step for row in run.read_metrics()].count(2) == 1


async def test_a_stop_while_training_finishes_the_step_under_way(run: RunFolder) -> None:
    world = World(run, mixed, steps=50)
    world.trainer.slow_s = 0.05
    await world.loop.prepare()
    training = asyncio.create_task(world.loop.run())
    while world.trainer.begun < 3:
        await asyncio.sleep(0.005)
    world.loop.stop.set()
    with pytest.raises(StoppedEarlyError, match="stopped after step 3"):
        await training
    await world.loop.checkpoint()
    assert _checkpoints(run) == ["step_000003"]
    assert (run.path / "checkpoints" / "step_000003" / "updates").read_text() == "3"
    assert len(asyncio.all_tasks()) == 1


async def test_stopped_and_resumed_at_every_step_a_run_samples_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    def stop_at(world: World, at: int) -> None:
        class Stop:
            def step(self, step: int, metrics: Mapping[str, float]) -> None:
                if step == at:
                    world.loop.stop.set()

        world.loop.observers = [Stop().step]

    async def play(name: str, stops: list[int]) -> tuple[list[Any], Counter]:
        with RunFolder.create(tmp_path, name) as run:
            for at in [*stops, -1]:
                world = World(run, mixed, steps=4, evaluate_every=2)
                if checkpoint := run.checkpoints().latest_complete():
                    await world.loop.resume(checkpoint)
                stop_at(world, at)
                try:
                    await world.train()
                except StoppedEarlyError:
                    await world.loop.checkpoint()
            files = sorted(run.trajectories_folder.glob("step_*"))
            records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
            played = [(each["id"], each["seed"], each["task_id"], each["turns"][0]["versions"]) for each in records]
            return played, (world.ledger.episodes, world.trainer.updates, world.loop.counters.accuracy)

    whole = await play("whole", [])
    assert len(whole[0]) == 4 * GROUPS * SIZE
    assert await play("parts", [0, 1, 2, 3]) == whole


Counter = tuple[int, int, dict[str, float]]
