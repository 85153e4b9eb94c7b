"""Training tokens per second of the local trainer, packed against padded."""

from __future__ import annotations

import itertools
import time
from contextlib import AsyncExitStack

import numpy as np

from benchmarks.measuring import Measure, Row, Settings, Table, compared, interleaved
from benchmarks.runs import Ground, ground
from miles_agents import assembly
from miles_agents.contracts import Trainer
from miles_agents.evaluation import play_all
from miles_agents.types import Batch, TrajectoryGroup, collate

_GROUPS, _GROUP_SIZE = 16, 8  # a step of the main job


async def measure(settings: Settings) -> list[Table]:
    """Tokens of the batch (prompts and tool answers included, padding not) per second of `Trainer.step`."""
    async with ground([*settings.words(), "algorithm.zero_variance=keep"]) as place, AsyncExitStack() as stack:
        batch = await _played_batch(place, settings.count(_GROUPS, least=2))
        measures: dict[str, Measure] = {}
        for packing in ("padded", "packed"):
            trainer = _trainer(place, packing)
            stack.push_async_callback(trainer.close)
            await trainer.start()
            measures[packing] = _train(trainer, batch, place.config.trainer.minibatches)
        medians = await interleaved(measures, repeats=settings.repeats)
    share = batch.trainable_tokens / len(batch.ids)
    rows = compared(medians, "tokens/s", baseline="padded")
    rows.append(
        Row(
            name="packed, sampled tokens alone",
            value=medians["packed"] * share,
            unit="tokens/s",
            ratio=share,
            against="packed",
        )
    )
    lengths = batch.lengths
    note = (
        f"{len(batch)} trajectories of {lengths.min()}–{lengths.max()} tokens ({len(batch.ids):,} in all) in "
        f"{place.config.trainer.minibatches} updates: forward, backward, clipping, optimiser"
    )
    return [Table(title="training", rows=rows, notes=(note,))]


async def _played_batch(place: Ground, groups: int) -> Batch:
    """Episodes of the untrained model, with the advantages of their rewards."""
    tasks = place.opened.train_tasks[:groups]
    async with place.engine() as engine:
        player = place.player(engine)
        played = await play_all(
            player, place.environments, tasks, samples=_GROUP_SIZE, seed=0, concurrency=groups * _GROUP_SIZE
        )
    siblings = itertools.groupby(played, key=lambda trajectory: trajectory.group_id)
    batch = collate(
        [
            TrajectoryGroup(id=name, task_id=name, draw=draw, version=0, trajectories=tuple(members))
            for draw, (name, members) in enumerate(siblings)
        ]
    )
    assembly.make_algorithm(place.config.algorithm).advantages(batch)
    return batch


def _trainer(place: Ground, packing: str) -> Trainer:
    config = place.config
    config.trainer.packing = packing  # type: ignore[attr-defined]  # a key of trainer=local
    return assembly.make_trainer(config, place.opened.model, assembly.make_algorithm(config.algorithm))


def _train(trainer: Trainer, batch: Batch, minibatches: int) -> Measure:
    async def measured() -> float:
        started = time.perf_counter()
        for minibatch in batch.minibatches(minibatches, rng=np.random.default_rng(0)):
            await trainer.step(minibatch)
        return len(batch.ids) / (time.perf_counter() - started)

    return measured
