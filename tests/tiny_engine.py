"""Tiny models and requests for the engine tests."""

from __future__ import annotations

import copy

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from miles_agents.engines.local.engine import LocalEngine
from miles_agents.types import Completion, GenerateRequest, SamplingParams

VOCAB = 97  # no multiple of a vector width


def tiny_qwen3(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=96,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config)


def tiny_llama(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        intermediate_size=80,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def perturbed(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return other


def make_engine(**changes: object) -> LocalEngine:
    settings = {"context_length": 128, "slots": 64, "prefill_rows": 4, "prefill_chunk": 24, "threads": 1} | changes
    return LocalEngine(**settings)  # type: ignore[arg-type]


def prompt(seed: int, length: int | None = None) -> np.ndarray:
    random = np.random.default_rng(seed)
    length = int(random.integers(1, 60)) if length is None else length
    return random.integers(0, VOCAB, length).astype(np.int32)


def request(name: str, ids: np.ndarray, *, new: int = 12, session: str | None = None, **params: object):
    return GenerateRequest(
        ids=ids,
        params=SamplingParams(max_new_tokens=new, **params),  # type: ignore[arg-type]
        request_id=name,
        session_id=session,
    )


def bits(completion: Completion) -> tuple[list[int], bytes, str]:
    return completion.ids.tolist(), completion.logprobs.tobytes(), completion.stop_reason.value


def plain_logprobs(
    model: PreTrainedModel, ids: np.ndarray, completion: Completion, temperature: float = 1.0
) -> np.ndarray:
    """The completion's logprobs by one ordinary forward pass, as a trainer would compute them."""
    whole = torch.from_numpy(np.concatenate([ids, completion.ids]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(input_ids=whole, use_cache=False).logits[0].float() / temperature
    table = torch.log_softmax(logits, -1)[len(ids) - 1 : -1]
    return table.gather(1, torch.from_numpy(completion.ids.astype(np.int64))[:, None])[:, 0].numpy()
