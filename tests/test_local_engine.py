"""What the local engine samples, and how it agrees with an ordinary forward pass."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from tiny_engine import VOCAB, bits, make_engine, perturbed, plain_logprobs, prompt, request, tiny_llama, tiny_qwen3
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from miles_agents.checks.engine import check_engine
from miles_agents.engines.local.sampling import sample, uniforms
from miles_agents.errors import ConfigError
from miles_agents.types import LogprobsMode, SamplingParams, StopReason


@pytest.mark.parametrize("build", [tiny_qwen3, tiny_llama])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_logprobs_are_those_of_an_ordinary_forward_pass(build, temperature: float) -> None:
    model, engine = build(), make_engine()
    await engine.share(model)
    prompts = [prompt(index) for index in range(16)]
    requests = [
        request(f"r{index}", ids, new=20, seed=index, temperature=temperature) for index, ids in enumerate(prompts)
    ]
    completions = await asyncio.gather(*map(engine.generate, requests))
    await engine.close()
    for ids, completion in zip(prompts, completions, strict=True):
        assert len(completion.ids) == 20
        expected = plain_logprobs(model, ids, completion, temperature)
        # Engine and ordinary pass are each up to 1.2e-5 from float64 with these sharp random weights.
        assert np.abs(completion.logprobs - expected).max() < 5e-5
    assert engine.logprobs_mode is LogprobsMode.PROCESSED


async def test_a_session_reuses_its_cache_exactly() -> None:
    model, engine = tiny_qwen3(), make_engine()
    await engine.share(model)
    ids = prompt(1, 30)
    for turn in range(4):
        completion = await engine.generate(request(f"t{turn}", ids, new=9, seed=turn, session="s"))
        assert completion.cached_tokens == (0 if turn == 0 else len(before) - 1)  # noqa: F821
        assert np.abs(completion.logprobs - plain_logprobs(model, ids, completion)).max() < 5e-5
        before = np.concatenate([ids, completion.ids])
        ids = np.concatenate([before, prompt(50 + turn, 7)])
    assert engine.stats()["prefill_tokens"] == 29 + 3 * 7  # the last prompt token is fed by the first decode call
    await engine.close()


async def test_a_session_whose_history_was_rewritten_starts_again() -> None:
    model, engine = tiny_qwen3(), make_engine()
    await engine.share(model)
    await engine.generate(request("a", prompt(1, 20), session="s"))
    other = await engine.generate(request("b", prompt(2, 40), session="s", seed=3))
    assert other.cached_tokens == 0
    assert bits(other) == bits(await engine.generate(request("c", prompt(2, 40), seed=3)))
    shorter = await engine.generate(request("d", prompt(2, 40)[:10], session="s"))
    assert shorter.cached_tokens == 0
    await engine.close()


async def test_greedy_takes_the_likeliest_token() -> None:
    model, engine = tiny_llama(), make_engine(slots=4)
    await engine.share(model)
    ids = prompt(5, 12)
    completion = await engine.generate(request("g", ids, new=8, temperature=0.0))
    await engine.close()
    whole = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        expected = model.generate(whole, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert completion.ids.tolist() == expected[0, 12:].tolist()
    assert np.abs(completion.logprobs - plain_logprobs(model, ids, completion)).max() < 5e-5


async def test_every_stop_id_stops_and_is_kept() -> None:
    engine = make_engine(slots=8)
    await engine.share(tiny_qwen3())
    free = (await engine.generate(request("free", prompt(3, 8), new=30, seed=1))).ids.tolist()
    for at in (0, 4, 29):
        stop = free[at]
        first = free.index(stop)
        stopped = await engine.generate(
            request(f"s{at}", prompt(3, 8), new=30, seed=1, stop_token_ids=(VOCAB + 5, stop))
        )
        assert stopped.ids.tolist() == free[: first + 1]
        assert stopped.stop_reason is StopReason.STOP
    exact = await engine.generate(request("len", prompt(3, 8), new=30, seed=1, stop_token_ids=(VOCAB + 5,)))
    assert (exact.stop_reason, exact.ids.tolist()) == (StopReason.LENGTH, free)
    await engine.close()


def test_sampled_frequencies_are_the_distribution() -> None:
    # Three tokens with probabilities 0.5, 0.3, 0.2; 20,000 draws: a standard deviation is at most 0.0036.
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(20_000, 1)
    drawn = sample(logits, [SamplingParams(max_new_tokens=1)] * 20_000, uniforms(3, 20_000).tolist())
    frequency = np.bincount(drawn.tokens, minlength=3) / 20_000
    assert np.abs(frequency - [0.5, 0.3, 0.2]).max() < 0.015
    assert set(np.round(drawn.logprobs, 5)) == {-0.69315, -1.20397, -1.60944}


def test_top_k_and_top_p_renormalise() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(4, 1)
    params = [
        SamplingParams(max_new_tokens=1, top_k=2),  # 4/7, 3/7
        SamplingParams(max_new_tokens=1, top_p=0.65),  # 0.4 + 0.3 ≥ 0.65: 4/7, 3/7
        SamplingParams(max_new_tokens=1, top_k=3, top_p=0.5),  # 4/9, 3/9 of the three; the two hold 7/9 ≥ 0.5: 4/7, 3/7
        SamplingParams(max_new_tokens=1, temperature=0.5),  # squares: 16, 9, 4, 1 of 30
    ]
    low = sample(logits, params, [0.0] * 4)
    high = sample(logits, params, [1 - 2**-53] * 4)
    assert low.tokens == [0, 0, 0, 0]
    assert np.allclose(np.exp(low.logprobs), [4 / 7, 4 / 7, 4 / 7, 16 / 30], atol=1e-6)
    assert high.tokens == [1, 1, 1, 3]
    assert np.allclose(np.exp(high.logprobs), [3 / 7, 3 / 7, 3 / 7, 1 / 30], atol=1e-6)


def test_a_token_without_probability_is_never_sampled() -> None:
    logits = torch.full((3, 5), float("-inf"))
    logits[:, 2] = 0.0
    drawn = sample(logits, [SamplingParams(max_new_tokens=1)] * 3, [0.0, 0.5, 1 - 2**-53])
    assert drawn == ([2, 2, 2], [0.0, 0.0, 0.0])


async def test_G01_nothing_cached_survives_new_weights() -> None:
    """Case G01: after an update every logprob is that of a fresh engine with the new weights."""
    # case G01
    old, new = tiny_qwen3(), perturbed(tiny_qwen3(), 1)
    updated, fresh = make_engine(context_length=256), make_engine(context_length=256)
    await updated.adopt(old, version=0)
    shared_prefix = prompt(1, 200)
    before = await updated.generate(request("before", shared_prefix, temperature=0.0, session="s"))
    await updated.update_weights(new.named_parameters(), version=1)
    await fresh.adopt(new, version=1)
    for name, ids in (("same", shared_prefix), ("longer", np.concatenate([shared_prefix, before.ids, prompt(2, 5)]))):
        after = await updated.generate(request(name, ids, temperature=0.0, session="s"))
        expected = await fresh.generate(request(name, ids, temperature=0.0))
        if name == "same":
            assert after.cached_tokens == 0
            assert bits(after) == bits(expected)
            assert [span.version for span in after.versions] == [1]
        assert np.abs(after.logprobs - plain_logprobs(new, ids, after)).max() < 5e-5
    assert np.abs(before.logprobs - plain_logprobs(new, shared_prefix, before)).max() > 1e-3
    await updated.close()
    await fresh.close()


async def test_a_request_in_flight_goes_on_under_new_weights_with_version_spans() -> None:
    old, new = tiny_qwen3(), perturbed(tiny_qwen3(), 1)
    engine = make_engine(slots=4, context_length=512)
    await engine.adopt(old, version=4)
    ids = prompt(1, 40)
    task = asyncio.create_task(engine.generate(request("r", ids, new=400, seed=2)))
    while engine.stats()["sampled_tokens"] < 10:
        await asyncio.sleep(0.001)
    await engine.update_weights(new.named_parameters(), version=5)
    completion = await task
    await engine.close()
    spans = completion.versions
    assert [span.version for span in spans] == [4, 5]
    assert (spans[0].start, spans[0].end, spans[1].end) == (0, spans[1].start, 400)
    switch = spans[1].start
    for model, part in ((old, slice(0, switch)), (new, slice(switch, 400))):
        expected = plain_logprobs(model, ids, completion)
        assert np.abs(completion.logprobs[part] - expected[part]).max() < 1e-4


async def test_a_shared_model_is_decoded_without_a_copy_and_left_as_it_was() -> None:
    model, engine = tiny_qwen3(), make_engine(slots=4)
    model.train()
    attention = model.config._attn_implementation
    await engine.share(model)
    await engine.mark_version(0)
    ids = prompt(1, 10)
    first = await engine.generate(request("a", ids, seed=1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    await engine.mark_version(1)
    second = await engine.generate(request("b", ids, seed=1))
    await engine.close()
    assert np.abs(second.logprobs - plain_logprobs(model.eval(), ids, second)).max() < 5e-5
    assert bits(first) != bits(second)
    assert model.config._attn_implementation == attention
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert [first.versions[0].version, second.versions[0].version] == [0, 1]


async def test_bf16_is_decoded_from_a_converted_copy() -> None:
    model, engine = tiny_qwen3(), make_engine(slots=4, dtype="bfloat16")
    await engine.adopt(model)
    ids = prompt(1, 10)
    completion = await engine.generate(request("a", ids, new=8))
    assert 0 < np.abs(completion.logprobs - plain_logprobs(model, ids, completion)).max() < 0.5
    with pytest.raises(ConfigError, match=r"torch\.float32.*torch\.bfloat16"):
        await engine.share(model)
    await engine.close()


async def test_a_model_that_needs_other_attention_is_refused() -> None:
    config = GptOssConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["full_attention"],
        sliding_window=4096,
    )
    torch.manual_seed(0)
    model = GptOssForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(1.0)
    engine = make_engine(slots=4)
    with pytest.raises(ConfigError, match="needs more than causal softmax attention"):
        await engine.adopt(model)
    await engine.close()


async def test_a_sliding_window_shorter_than_the_context_is_refused() -> None:
    model = tiny_qwen3()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    model.config.sliding_window = 100
    engine = make_engine(slots=4)
    with pytest.raises(ConfigError, match=r"window of 100 tokens.*128"):
        await engine.adopt(model)
    await engine.close()


async def test_a_mixture_of_experts_is_decoded() -> None:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
    )
    model, engine = Qwen3MoeForCausalLM(config).eval(), make_engine(slots=4, deterministic=False)
    await engine.adopt(model)
    ids = prompt(1, 20)
    completion = await engine.generate(request("a", ids))
    await engine.close()
    assert np.abs(completion.logprobs - plain_logprobs(model, ids, completion)).max() < 5e-5


async def test_the_local_engine_passes_the_contract_suite() -> None:
    engine = make_engine(slots=8)
    await engine.start()
    await engine.share(tiny_qwen3())
    await check_engine(engine, [prompt(1, 9), prompt(2, 30), prompt(3, 1)])
    await engine.close()
    await engine.close()
