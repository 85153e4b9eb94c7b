"""The forward pass of one micro-batch: logprobs of its trainable tokens, and entropies.

Shape legend: M trainable tokens of the micro-batch, V vocabulary.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from miles_agents.trainers.local.attention import packing_enabled
from miles_agents.trainers.local.layout import MicroBatch
from miles_agents.trainers.local.settings import Execution, Precision

_ENTROPY_NUMBERS = 1 << 24  # computed this many logits at a time: 64 MB


def trainable_logits(model: PreTrainedModel, micro: MicroBatch, execution: Execution) -> Tensor:
    """(M, V) float32 logits over the temperature, only at positions that predict a trainable token."""
    mixed = (
        torch.autocast(micro.ids_BL.device.type, torch.bfloat16)
        if execution.dtype == Precision.BFLOAT16
        else nullcontext()
    )
    with mixed:
        if micro.lengths is None:
            logits_BLV = model(input_ids=micro.ids_BL, position_ids=micro.positions_BL, use_cache=False).logits
            logits_MV = logits_BLV.flatten(0, 1)[micro.predictors_M]
        else:
            with packing_enabled(model):
                logits_MV = model(
                    input_ids=micro.ids_BL,
                    position_ids=micro.positions_BL,
                    pack_lengths=micro.lengths,
                    logits_to_keep=micro.predictors_M,
                    use_cache=False,
                ).logits[0]
    logits_MV = logits_MV.float() if execution.temperature == 1.0 else logits_MV.float() / execution.temperature
    return cast(Tensor, logits_MV)


def selected_logprobs(logits_MV: Tensor, targets_M: Tensor) -> Tensor:
    """(M,) log-softmax of the logits at the targets."""
    return -cross_entropy(logits_MV, targets_M, reduction="none")


@torch.no_grad()
def entropies(logits_MV: Tensor) -> Tensor:
    """(M,) entropy in nats of each row's distribution."""
    rows = max(1, _ENTROPY_NUMBERS // logits_MV.shape[-1])
    parts = []
    for part in torch.split(logits_MV, rows):
        logprobs = part.log_softmax(-1)
        parts.append(-(logprobs.exp() * logprobs).sum(-1))
    return torch.cat(parts)
