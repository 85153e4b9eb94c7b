"""Long sessions in the local engine: their bits do not depend on how long their neighbours are."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tiny_engine import bits, make_engine, prompt, request, tiny_qwen3

from miles_agents.types import Completion


async def _two_turns(*, own: int, neighbour: int | None) -> Completion:
    """The second turn of a session of `own` tokens, prefilled together with one of `neighbour` tokens, or alone."""
    engine = make_engine(context_length=448, slots=8, prefill_rows=8, prefill_chunk=32)
    await engine.share(tiny_qwen3())
    await engine.mark_version(0)
    try:
        lengths = {"own": own} | ({"neighbour": neighbour} if neighbour else {})
        histories = {name: prompt(n, length) for n, (name, length) in enumerate(lengths.items())}

        async def turn(name: str, number: int) -> Completion:
            done = await engine.generate(request(f"{name}{number}", histories[name], new=4, session=name))
            histories[name] = np.concatenate([histories[name], done.ids, prompt(99, 20)])
            return done

        await asyncio.gather(*(turn(name, 0) for name in lengths))
        second = await asyncio.gather(*(turn(name, 1) for name in lengths))
        return second[0]
    finally:
        await engine.close()


@pytest.mark.parametrize("own", [190, 300])
async def test_a_turn_has_the_same_bits_beside_shorter_and_longer_sessions(own: int) -> None:
    alone = await _two_turns(own=own, neighbour=None)
    for neighbour in (10, 380):
        assert bits(await _two_turns(own=own, neighbour=neighbour)) == bits(alone)
