"""Block-causal attention over a pack: samples laid end to end in one row, each attending to itself alone.

Shape legend: B rows, H query heads, K key/value heads, T tokens, D head size.

It enters a Hugging Face model through its attention registry, so any architecture that asks the registry can be
packed; `check_packing` proves it for a given model. Measured on CPU: one SDPA call a sample is as fast as one call
over gathered, padded samples, and computes nothing between samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from miles_agents.errors import UsageError

IMPLEMENTATION = "miles_agents_packed"

_LOGIT_TOLERANCE = 1e-4  # a pack that leaks changes logits by far more; rounding by far less


def packed_attention(
    module: torch.nn.Module,
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    attention_mask: Tensor | None,
    *,
    pack_lengths: tuple[int, ...] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention inside each of the `pack_lengths` samples of the row (B is 1).

    Returns:
        (B, T, H, D), and no attention weights.
    """
    if pack_lengths is None:
        raise RuntimeError(f"{type(module).__name__} did not hand pack_lengths on to its attention")
    if sliding_window is not None and max(pack_lengths) > sliding_window:
        raise UsageError(f"a sample is longer than the model's sliding window of {sliding_window}: use packing=padded")
    grouped = query_BHTD.shape[1] != key_BKTD.shape[1]
    sizes = list(pack_lengths)
    parts = zip(*(torch.split(states, sizes, 2) for states in (query_BHTD, key_BKTD, value_BKTD)), strict=True)
    attended = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=grouped)
        for q, k, v in parts
    ]
    return torch.cat(attended, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, packed_attention)


@contextmanager
def packing_enabled(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend by `packed_attention` inside the block; its own implementation is put back after it."""
    own = model.config._attn_implementation
    model.config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        model.config._attn_implementation = own


def check_packing(model: PreTrainedModel) -> None:
    """Compare a pack of two samples with each sample alone.

    Raises:
        UsageError: the model lets samples of a pack see each other (other mixers than attention, say).
    """
    device = model.get_input_embeddings().weight.device
    count = min(int(model.config.vocab_size), 7)
    first = torch.arange(5, device=device) % count
    second = (torch.arange(4, device=device) * 3 + 1) % count
    with torch.no_grad():
        alone = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in (first, second)]
        with packing_enabled(model):
            packed = model(
                input_ids=torch.cat([first, second])[None],
                position_ids=torch.cat([torch.arange(5), torch.arange(4)]).to(device)[None],
                pack_lengths=(5, 4),
                use_cache=False,
            ).logits[0]
    gap = float((packed - torch.cat(alone)).abs().max())
    if not gap <= _LOGIT_TOLERANCE * (1.0 + float(packed.abs().max())):
        raise UsageError(
            f"{type(model).__name__} cannot be packed: samples of one row see each other (logits move by {gap:.2g}). "
            "Use packing=padded"
        )
