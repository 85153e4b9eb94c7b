"""Sums of a plan: parameters and memory against a real model and by hand; every broken sum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from miles_agents.errors import ConfigError, UsageError
from miles_agents.planning import BatchPlan, ModelShape, format_bytes, plan_memory
from miles_agents.starter.shape import SHAPE

PLAN = BatchPlan(
    groups_per_step=16,
    group_size=8,
    minibatches=2,
    epochs=1,
    max_new_tokens=64,
    max_tokens=320,
    token_budget=8192,
    max_staleness=0,
)


def test_the_parameter_count_is_the_starter_models_but_for_the_norms_of_q_and_k(starter: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(starter)
    counted = sum(parameter.numel() for parameter in model.parameters())
    # one q norm and one k norm of head_dim = 32 weights in each of 2 layers
    assert ModelShape.from_folder(starter).parameters == counted - 2 * 2 * 32
    assert ModelShape.from_config(SHAPE) == ModelShape.from_folder(starter)


def test_the_parameter_count_by_hand() -> None:
    shape = ModelShape.from_config(SHAPE)
    # a layer: q, o 128·128 each, k, v 128·64 each; three of 128·256; two norms of 128
    layer = 2 * 16384 + 2 * 8192 + 3 * 32768 + 256
    assert shape.parameters == 2 * layer + 512 * 128 + 128 == 361_088
    untied = replace(shape, tied_embeddings=False)
    assert untied.parameters == 361_088 + 512 * 128


def test_the_kv_cache_by_hand() -> None:
    shape = ModelShape.from_config(SHAPE)
    # keys and values, 2 layers, 2 heads of 32: 256 numbers a token
    assert shape.kv_bytes(1, "float32") == 1024
    assert shape.kv_bytes(10, "bfloat16") == 5120
    assert shape.kv_bytes(128 * 320, "float32") == 128 * 320 * 1024


def test_a_config_without_kv_heads_or_head_dim_has_those_of_plain_attention() -> None:
    config = {key: value for key, value in SHAPE.items() if key not in ("num_key_value_heads", "head_dim")}
    shape = ModelShape.from_config(config)
    assert (shape.kv_heads, shape.head_dim, shape.tied_embeddings) == (4, 32, True)
    assert ModelShape.from_config(config | {"num_key_value_heads": None}).kv_heads == 4


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps(SHAPE | {"hidden_size": "wide"})])
def test_a_config_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match=r"no config\.json"):
        ModelShape.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json is no config"):
        ModelShape.from_folder(tmp_path)


def test_memory_by_hand() -> None:
    shape = ModelShape.from_config(SHAPE)
    memory = plan_memory(shape, dtype="float32", slots=4, max_tokens=100, token_budget=1000, engine_copies_weights=True)
    assert memory.weights == memory.gradients == memory.engine_weights == 4 * 361_088
    assert memory.optimizer == 8 * 361_088
    assert memory.kv_cache == 400 * 1024
    assert memory.activations == 1000 * (17 * 4 * 128 * 2 + 8 * 512)
    assert memory.total == 20 * 361_088 + 400 * 1024 + memory.activations
    shared = plan_memory(
        shape, dtype="float32", slots=4, max_tokens=100, token_budget=1000, engine_copies_weights=False
    )
    assert memory.total - shared.total == 4 * 361_088
    half = plan_memory(shape, dtype="bfloat16", slots=4, max_tokens=100, token_budget=1000, engine_copies_weights=True)
    assert half.engine_weights == 2 * 361_088
    assert half.kv_cache == memory.kv_cache // 2
    assert (half.weights, half.optimizer) == (memory.weights, memory.optimizer)  # the trainer's stay float32


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_444_352, "1.4 MB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB")],
)
def test_bytes_are_written_with_decimal_prefixes(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_a_plan_that_comes_out() -> None:
    assert (PLAN.episodes, PLAN.updates) == (128, 2)
    PLAN.check(model_context=320)
    replace(PLAN, minibatches=128, max_new_tokens=319, token_budget=320, max_staleness=5).check(model_context=1024)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group_size": 1}, "a group of one has no baseline; give 2 or more"),
        ({"group_size": 0}, "rollout.group_size=0: must be at least 1"),
        ({"groups_per_step": 0}, "rollout.groups_per_step=0"),
        ({"minibatches": 129}, "trainer.minibatches=129 is more than the 128 episodes"),
        ({"minibatches": 0}, "trainer.minibatches=0"),
        ({"epochs": 0}, "trainer.epochs=0"),
        ({"max_new_tokens": 0}, "rollout.max_new_tokens=0"),
        ({"max_new_tokens": 320}, "leaves no room for a prompt"),
        ({"max_tokens": 1025}, "more than the model's context of 1024 tokens; give rollout.max_tokens=1024 or less"),
        ({"token_budget": 319}, "give trainer.token_budget=320 or more"),
        ({"token_budget": 0}, "trainer.token_budget=0"),
        ({"max_staleness": -1}, "rollout.max_staleness=-1: must be 0 or more"),
    ],
)
def test_a_plan_that_does_not_come_out_says_which_keys_to_change(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(PLAN, **changes).check(model_context=1024)
    assert said in str(caught.value)


def test_every_broken_sum_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        replace(PLAN, group_size=1, minibatches=99, max_tokens=2000).check(model_context=1024)
    assert len(str(caught.value).splitlines()) == 1 + 3
