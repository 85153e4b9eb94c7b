"""The conformance suite of weight syncs: what every `WeightSync` keeps, checked on yours.

await check_weight_sync(MySync(), trainer, engine, change=…, prompt=…)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from miles_agents.contracts import RolloutEngine, Trainer, WeightSync
from miles_agents.errors import WeightSyncError
from miles_agents.types import Completion, GenerateRequest, IntArray, SamplingParams


async def check_weight_sync(
    sync: WeightSync,
    trainer: Trainer,
    engine: RolloutEngine,
    *,
    change: Callable[[], None],
    prompt: IntArray,
) -> None:
    """Check a route against the contract of `WeightSync`.

    Args:
        sync: not connected yet.
        trainer: started.
        engine: started, without requests.
        change: changes the trainer's weights so that what the model says changes.
        prompt: (P,) int32 ids the engine continues.

    Raises:
        AssertionError: what it does not keep.
    """
    try:
        await sync.push(0)
    except WeightSyncError:
        pass
    else:
        raise AssertionError("push before connect raised nothing; it must raise WeightSyncError")
    await sync.connect(trainer, engine)
    metrics = await sync.push(3)
    assert engine.version == 3, f"after push(3) the engine is at version {engine.version}"
    assert metrics.get("checksum_ok") == 1.0, f"a push says checksum_ok=1 once it has compared tensors; got {metrics}"
    before = await _say(engine, prompt, "before")
    assert {span.version for span in before.versions} == {3}, f"tokens carry versions {before.versions}, not 3"
    change()
    await sync.push(4)
    after = await _say(engine, prompt, "after")
    assert engine.version == 4, f"after push(4) the engine is at version {engine.version}"
    assert after.cached_tokens == 0, f"{after.cached_tokens} prompt tokens came from a cache older than the push"
    assert not np.array_equal(before.logprobs, after.logprobs), "the engine still says what the former weights said"


async def _say(engine: RolloutEngine, prompt: IntArray, name: str) -> Completion:
    params = SamplingParams(max_new_tokens=4, temperature=1.0, seed=0)
    return await engine.generate(GenerateRequest(ids=prompt, params=params, request_id=name, session_id="check"))
