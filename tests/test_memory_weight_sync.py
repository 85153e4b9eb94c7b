"""Weights arrive in the engine as they are in the trainer, or the push fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from tiny_engine import bits, make_engine, plain_logprobs, prompt, request, tiny_llama, tiny_qwen3
from torch import Tensor

from miles_agents.checks.weight_sync import check_weight_sync
from miles_agents.engines.local.engine import LocalEngine
from miles_agents.engines.scripted import ScriptedEngine
from miles_agents.errors import ConfigError, WeightSyncError
from miles_agents.weight_sync import memory
from miles_agents.weight_sync.memory import MemoryWeightSync, checksum


class SGD:
    """The smallest trainer: a model and an update that moves every weight."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def export(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.module.named_parameters()

    def update(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("build", [tiny_qwen3, tiny_llama])
async def test_G05_after_each_push_the_engine_samples_from_the_trainers_weights(build, share: bool) -> None:
    """Case G05: engine logprobs equal the trainer's after each of three updates, tied weights included."""
    # case G05
    trainer, engine, sync = SGD(build()), make_engine(slots=4), MemoryWeightSync(share=share)
    await sync.connect(trainer, engine)  # type: ignore[arg-type]
    ids, seen = prompt(1, 20), []
    for version in range(4):
        metrics = await sync.push(version)
        assert metrics["checksum_ok"] == 1.0
        assert metrics["bytes"] == (0 if share else sum(p.numel() * 4 for p in trainer.module.parameters()))
        completion = await engine.generate(request(f"v{version}", ids, seed=1))
        assert completion.versions[0].version == engine.version == version
        assert np.abs(completion.logprobs - plain_logprobs(trainer.module, ids, completion)).max() < 5e-5
        seen.append(str(bits(completion)))
        trainer.update(version)
    assert len(set(seen)) == 4
    await engine.close()


async def test_a_copy_keeps_its_version_while_the_trainer_goes_on() -> None:
    trainer, engine, sync = SGD(tiny_qwen3()), make_engine(slots=4), MemoryWeightSync(share=False)
    await sync.connect(trainer, engine)  # type: ignore[arg-type]
    await sync.push(0)
    before = await engine.generate(request("a", prompt(1, 20)))
    trainer.update(1)
    assert bits(await engine.generate(request("b", prompt(1, 20)))) == bits(before)
    await engine.close()


async def test_a_bf16_engine_takes_float32_weights() -> None:
    trainer, engine = SGD(tiny_qwen3()), make_engine(slots=4, dtype="bfloat16")
    sync = MemoryWeightSync(share=False)
    await sync.connect(trainer, engine)  # type: ignore[arg-type]
    trainer.update(1)
    assert (await sync.push(1))["checksum_ok"] == 1.0
    ids = prompt(1, 20)
    completion = await engine.generate(request("a", ids))
    assert np.abs(completion.logprobs - plain_logprobs(trainer.module, ids, completion)).max() < 0.5
    await engine.close()


class Deaf(LocalEngine):
    """Says yes to every update and keeps its weights."""

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        list(tensors)


@pytest.mark.parametrize("compare_all_bytes", [16 << 20, 0])
async def test_G05_an_engine_that_ignores_updates_is_caught(
    compare_all_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case G05: the check after a push is in the product."""
    # case G05
    monkeypatch.setattr(memory, "_COMPARE_ALL_BYTES", compare_all_bytes)
    trainer, engine, sync = (
        SGD(tiny_llama()),
        Deaf(context_length=64, slots=4, threads=1),
        MemoryWeightSync(share=False),
    )
    await sync.connect(trainer, engine)  # type: ignore[arg-type]
    await sync.push(0)  # the same weights still: nothing to catch
    trainer.update(1)
    with pytest.raises(
        WeightSyncError, match=r"version 1 \d+ of \d+ compared tensors .* 'model\.embed_tokens\.weight'"
    ):
        await sync.push(1)
    await engine.close()


async def test_a_trainer_that_replaced_its_shared_parameters_is_caught() -> None:
    trainer, engine, sync = SGD(tiny_llama()), make_engine(slots=4), MemoryWeightSync(share=True)
    await sync.connect(trainer, engine)  # type: ignore[arg-type]
    await sync.push(0)
    trainer.module.lm_head.weight = torch.nn.Parameter(trainer.module.lm_head.weight.detach() + 1)
    with pytest.raises(WeightSyncError, match=r"'lm_head\.weight'"):
        await sync.push(1)
    await engine.close()


async def test_every_tensor_is_compared_in_turn_when_there_are_too_many() -> None:
    tensors = [(f"w{index}", torch.zeros(4 << 20)) for index in range(3)]
    tensors += [(f"w{index}", torch.zeros(1)) for index in range(3, 30)]
    seen = [{name for name, _ in memory._sample(tensors, version)} for version in range(4)]
    assert all({"w0", "w29"} <= names and len(names) <= 10 for names in seen)
    assert set.union(*seen) == {name for name, _ in tensors}


async def test_ends_outside_this_process_are_refused() -> None:
    trainer, sync = SGD(tiny_qwen3()), MemoryWeightSync(share=True)
    with pytest.raises(ConfigError, match="needs an engine in this process; ScriptedEngine is none"):
        await sync.connect(trainer, ScriptedEngine([]))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a trainer in this process; object is none"):
        await sync.connect(object(), make_engine())  # type: ignore[arg-type]
    with pytest.raises(WeightSyncError, match="push before connect"):
        await sync.push(0)


def test_checksums_see_one_changed_bit_and_ignore_memory_layout() -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert checksum(tensor.t().contiguous().t()) == checksum(tensor)
    assert checksum(tensor.to(torch.bfloat16)) != checksum(tensor)
    changed = tensor.clone()
    changed[2, 3] = torch.nextafter(changed[2, 3], torch.tensor(100.0))
    assert checksum(changed) != checksum(tensor)
    assert checksum(torch.tensor(1.0)) == checksum(torch.tensor(1.0))


@pytest.mark.parametrize("share", [True, False])
async def test_the_memory_route_passes_the_suite_of_weight_syncs(share: bool) -> None:
    trainer, engine = SGD(tiny_qwen3()), make_engine()
    try:
        await engine.start()
        await check_weight_sync(
            MemoryWeightSync(share=share), trainer, engine, change=lambda: trainer.update(1), prompt=prompt(0, 9)
        )
    finally:
        await engine.close()
