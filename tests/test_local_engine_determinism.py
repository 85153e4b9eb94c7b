"""The same request gives the same bits: alone, in a crowd, in any slot, after any arrival order."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
import torch
from tiny_engine import VOCAB, bits, make_engine, prompt, request, tiny_llama, tiny_qwen3

from miles_agents.engines.local import shapes
from miles_agents.engines.local.engine import LocalEngine
from miles_agents.engines.local.model import Call, SlotModel, slot_attention
from miles_agents.engines.local.shapes import Shapes, probe
from miles_agents.errors import ConfigError

MODELS = {"qwen3": tiny_qwen3, "llama": tiny_llama}


def varied(index: int) -> dict[str, object]:
    """Sampling parameters of every kind, by index."""
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 5},
        {"top_p": 0.8},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
        {"stop_token_ids": (3, 50)},
    ]
    return kinds[index % len(kinds)] | {"seed": index, "new": 4 + index % 17}


async def two_turns(engine: LocalEngine, index: int, run: str) -> list[object]:
    """A session of two turns; its second prompt continues the first completion."""
    session = f"{run}-{index}"
    ids = prompt(index)
    first = await engine.generate(request(f"{session}-1", ids, session=session, **varied(index)))
    longer = np.concatenate([ids, first.ids, prompt(1000 + index, 1 + index % 30)])
    second = await engine.generate(request(f"{session}-2", longer, session=session, **varied(index + 1)))
    await engine.end_session(session)
    assert second.cached_tokens == len(ids) + len(first.ids) - 1
    return [*bits(first), *bits(second)]


async def crowd(engine: LocalEngine, members: list[int], run: str, seed: int) -> dict[int, list[object]]:
    """All at once, shuffled, some late, with neighbours that are aborted or cancelled."""
    chance = random.Random(seed)
    order = list(members)
    chance.shuffle(order)

    async def late(index: int) -> list[object]:
        await asyncio.sleep(chance.random() * 0.02)
        return await two_turns(engine, index, run)

    async def doomed(index: int) -> None:
        name = f"{run}-doomed-{index}"
        task = asyncio.create_task(engine.generate(request(name, prompt(index), new=60)))
        await asyncio.sleep(chance.random() * 0.03)
        if index % 2:
            await engine.abort(name)
            await task
        else:
            task.cancel()

    async with asyncio.TaskGroup() as group:
        tasks = {index: group.create_task(late(index)) for index in order}
        for index in range(8):
            group.create_task(doomed(index))
    return {index: task.result() for index, task in tasks.items()}


@pytest.mark.parametrize("name", MODELS)
async def test_tokens_and_logprobs_are_bit_equal_alone_and_among_6_and_63_neighbours(name: str) -> None:
    engine = make_engine()
    await engine.share(MODELS[name]())
    alone = {index: await two_turns(engine, index, "alone") for index in range(0, 64, 5)}
    seven = await crowd(engine, list(range(0, 35, 5)), "seven", seed=1)
    full = await crowd(engine, list(range(64)), "full", seed=2)
    again = await crowd(engine, list(range(64)), "again", seed=3)
    await engine.close()
    assert {index: full[index] for index in alone} == alone
    assert {index: alone[index] for index in seven} == seven
    assert again == full
    assert len({str(result) for result in full.values()}) == 64


async def test_a_waiting_line_longer_than_the_slots_changes_no_bit() -> None:
    wide, narrow = make_engine(slots=64), make_engine(slots=64)
    model = tiny_qwen3()
    await wide.share(model)
    await narrow.share(model)
    # Sixty sessions that are never continued hold nearly every slot of the narrow one: 4 are left for 20 sessions.
    for index in range(60):
        await narrow.generate(request(f"idle-{index}", prompt(index), new=1, session=f"idle-{index}"))
    expected = await crowd(wide, list(range(12)), "wide", seed=4)
    got = await crowd(narrow, list(range(12)), "narrow", seed=5)
    assert narrow.stats()["idle_sessions"] == 60
    await wide.close()
    await narrow.close()
    assert got == expected


async def test_bits_do_not_depend_on_neighbours_with_two_torch_threads() -> None:
    before = torch.get_num_threads()
    engine = make_engine(slots=6, threads=2, context_length=32, prefill_rows=1, prefill_chunk=16)
    try:
        await engine.share(tiny_qwen3())
        alone = bits(await engine.generate(request("alone", prompt(1, 12), new=3, seed=7)))
        crowd_ = await asyncio.gather(
            *(engine.generate(request(f"n{index}", prompt(index, 12), new=3, seed=index)) for index in (0, 2, 3)),
            engine.generate(request("same", prompt(1, 12), new=3, seed=7)),
        )
    finally:
        await engine.close()
        torch.set_num_threads(before)
    assert bits(crowd_[-1]) == alone


def test_H05_seeds_alone_decide_the_tokens() -> None:
    """Case H05: samples of one prompt differ, a second run repeats them, no global generator is used."""
    # case H05

    async def run(base: int, order: list[int]) -> dict[int, list[int]]:
        engine = make_engine(slots=8)
        await engine.share(tiny_qwen3())
        requests = [request(f"s{index}", prompt(0, 9), new=16, seed=base + index) for index in order]
        completions = await asyncio.gather(*map(engine.generate, requests))
        await engine.close()
        return {index: completion.ids.tolist() for index, completion in zip(order, completions, strict=True)}

    torch.manual_seed(11)
    np.random.seed(11)
    model_free_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    tiny_qwen3()  # consumes the global generator, as building any model does
    torch.set_rng_state(model_free_state[0])
    first = asyncio.run(run(7, [0, 1, 2, 3]))
    assert len({str(ids) for ids in first.values()}) == 4
    assert asyncio.run(run(7, [3, 1, 0, 2])) == first
    assert asyncio.run(run(8, [0, 1, 2, 3]))[0] == first[1]
    assert asyncio.run(run(108, [0, 1, 2, 3])) != first
    assert np.random.get_state()[1].tolist() == model_free_state[1]


class _BatchDependent(torch.nn.Linear):
    """A layer whose rows see each other, as kernels that split sums by batch size do."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) + 1e-7 * hidden.shape[0] + 1e-6 * hidden[:1].mean()


async def test_a_model_whose_rows_see_each_other_is_refused_in_deterministic_mode() -> None:
    model = tiny_qwen3()
    head = model.lm_head
    model.lm_head = _BatchDependent(head.in_features, head.out_features, bias=False)
    engine = make_engine(slots=8)
    with pytest.raises(ConfigError, match="deterministic=false"):
        await engine.share(model)
    await engine.close()


class _SizeDependent(torch.nn.Linear):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) * (1 + 1e-6 * hidden.shape[0] * hidden.shape[1])


@pytest.mark.parametrize("place", ["head", "body"])
def test_only_shapes_with_the_bits_of_the_largest_are_used(place: str) -> None:
    model = tiny_qwen3()
    if place == "head":
        model.lm_head = _SizeDependent(64, VOCAB, bias=False)
    else:
        model.model.layers[0].mlp.down_proj = _SizeDependent(96, 64, bias=False)
    slots = SlotModel(model, share=True, dtype=torch.float32, slots=16, length=128)
    ladder = Shapes.ladder(slots=16, length=128, prefill_rows=4, prefill_chunk=24)
    assert (ladder.decode_rows, ladder.prefill_rows, ladder.keys) == (
        (4, 6, 8, 12, 16),
        (1, 2, 3, 4),
        (32, 64, 96, 128),
    )
    assert ladder.prefill_widths == (8, 16, 24)
    slots.forward(one_token())
    found = probe(slots, ladder)
    assert found.decode_rows == (16,)
    assert found.prefill_rows == ((4,) if place == "body" else found.prefill_rows)
    assert found.prefill_widths == ((24,) if place == "body" else found.prefill_widths)


def test_key_lengths_with_other_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def length_dependent(*args: torch.Tensor) -> tuple[torch.Tensor, None]:
        output, _ = slot_attention(*args)
        return output * (1 + 1e-6 * (args[2].shape[2] == 64)), None

    slots = SlotModel(tiny_qwen3(), share=True, dtype=torch.float32, slots=8, length=128)
    slots.forward(one_token())
    monkeypatch.setattr(shapes, "slot_attention", length_dependent)
    found = probe(slots, Shapes.ladder(slots=8, length=128, prefill_rows=2, prefill_chunk=16))
    assert found.keys == (32, 96, 128)


def one_token() -> Call:
    """A call that makes the cache allocate itself."""
    one = np.zeros((1, 1), np.int64)
    return Call(one, one, np.ones((1, 1), np.bool_), np.zeros(1, np.int64), 32, front=True)
