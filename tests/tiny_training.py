"""Tiny models and batches for the trainer's tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from miles_agents.types import Batch, TrainingSample, collate_samples

VOCAB = 48

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models this small are slower on several threads, by far on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_model(kind: str = "qwen3", *, seed: int = 0, tied: bool = True) -> PreTrainedModel:
    torch.manual_seed(seed)
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=8, tie_word_embeddings=tied)).eval()
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=tied)).eval()
    return LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=tied)).eval()


def sample(ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float] | None = None) -> TrainingSample:
    mask_T = np.asarray(mask, np.int8)
    return TrainingSample(
        ids=np.asarray(ids, np.int32),
        mask=mask_T,
        logprobs=np.zeros(len(ids), np.float32) if logprobs is None else np.asarray(logprobs, np.float32),
        versions=np.where(mask_T != 0, 0, -1).astype(np.int32),
        turn_index=np.where(mask_T != 0, 0, -1).astype(np.int32),
    )


def batch_of(samples: Sequence[TrainingSample], rewards: Sequence[float], *, group_size: int = 4) -> Batch:
    return collate_samples(
        samples,
        group_ids=[f"g{index // group_size}" for index in range(len(samples))],
        trajectory_ids=[f"t{index}" for index in range(len(samples))],
        rewards=rewards,
    )


def random_batch(seed: int = 0, *, samples: int = 8, longest: int = 20) -> Batch:
    """Multi-turn masks (sampled, observed, sampled), rewards 0 and 1, logprobs near −3 that no model gave."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(samples):
        prompt, first, observed, last = (int(n) for n in rng.integers(2, longest // 4 + 1, 4))
        mask = np.repeat([0, 1, 0, 1], [prompt, first, observed, last])
        logprobs = np.where(mask != 0, -3.0 - rng.random(len(mask)), 0.0)
        made.append(sample(rng.integers(0, VOCAB, len(mask)), mask, logprobs))
    return batch_of(made, [float(index % 2) for index in range(samples)])


def plain_logprobs(model: PreTrainedModel, batch: Batch, *, temperature: float = 1.0) -> np.ndarray:
    """(N,) by one ordinary forward pass a sample, without this package's trainer; 0 on tokens not sampled."""
    found = np.zeros(len(batch.ids), np.float32)
    for index in range(len(batch)):
        start, end = int(batch.offsets[index]), int(batch.offsets[index + 1])
        ids = torch.tensor(batch.ids[start:end], dtype=torch.long)
        with torch.no_grad():
            logprobs = (model(input_ids=ids[None]).logits[0].float() / temperature).log_softmax(-1)
        for token in range(1, end - start):
            if batch.mask[start + token]:
                found[start + token] = float(logprobs[token - 1, ids[token]])
    return found


def select_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}
