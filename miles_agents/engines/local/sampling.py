"""From logits to tokens: temperature, top-k, top-p, and one uniform number per token.

Sampling inverts the cumulative distribution (in float64) at a uniform number that depends only on the request's seed
and the token's index, so neither neighbours nor the order of arrival can change it and no global generator is used.

Shape legend: N rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from miles_agents.types import SamplingParams


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1): number i depends on `seed` and i alone (Philox 4×64, Salmon et al. 2011)."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


class Sampled(NamedTuple):
    """One token per row; `logprobs` is not finite where the logits were not."""

    tokens: list[int]
    logprobs: list[float]


def sample(logits_NV: Tensor, params: list[SamplingParams], uniform_N: list[float]) -> Sampled:
    """Sample one token per row.

    The logprob is that of the token under the distribution it was sampled from: logits / temperature, limited to
    the `top_k` likeliest tokens, then to the fewest of those that hold `top_p` of the probability, renormalised.
    At temperature 0 the likeliest token is taken and its logprob is that at temperature 1.
    """
    device = logits_NV.device
    temperature_N = torch.tensor([p.temperature or 1.0 for p in params], dtype=torch.float32, device=device)
    logprobs_NV = torch.log_softmax(logits_NV / temperature_N[:, None], dim=-1)
    limited = [n for n, p in enumerate(params) if p.temperature and (p.top_k or p.top_p < 1)]
    if limited:
        logprobs_NV[limited] = _limit(logprobs_NV[limited], [params[n] for n in limited])
    tokens_N = _invert(logprobs_NV, torch.tensor(uniform_N, dtype=torch.float64, device=device))
    if not all(p.temperature for p in params):
        greedy_N = torch.tensor([p.temperature == 0 for p in params], device=device)
        tokens_N = torch.where(greedy_N, logprobs_NV.argmax(-1), tokens_N)
    chosen_N = logprobs_NV.gather(-1, tokens_N[:, None])[:, 0]
    return Sampled(tokens_N.tolist(), chosen_N.tolist())


def _invert(logprobs_NV: Tensor, uniform_N: Tensor) -> Tensor:
    cumulative_NV = torch.softmax(logprobs_NV, dim=-1).cumsum(-1, dtype=torch.float64)
    total_N = cumulative_NV[:, -1]
    # Strictly below the total, so that the first entry above it exists and has a probability above 0.
    target_N = torch.minimum(uniform_N * total_N, torch.nextafter(total_N, torch.zeros_like(total_N)))
    found_N = torch.searchsorted(cumulative_NV, target_N[:, None], right=True)[:, 0]
    return found_N.clamp_(max=logprobs_NV.shape[-1] - 1)  # only logits that are not finite lead past the end


def _limit(logprobs_NV: Tensor, params: list[SamplingParams]) -> Tensor:
    device, V = logprobs_NV.device, logprobs_NV.shape[-1]
    top_k_N = torch.tensor([p.top_k or V for p in params], device=device)
    top_p_N = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
    ordered_NV, order_NV = logprobs_NV.sort(dim=-1, descending=True, stable=True)
    ordered_NV = ordered_NV.masked_fill(torch.arange(V, device=device) >= top_k_N[:, None], float("-inf"))
    probability_NV = torch.softmax(ordered_NV.double(), dim=-1)
    before_NV = probability_NV.cumsum(-1) - probability_NV
    # Rows with top_p = 1 keep everything, also what rounding puts past 1.
    ordered_NV = ordered_NV.masked_fill((before_NV >= top_p_N[:, None]) & (top_p_N < 1)[:, None], float("-inf"))
    kept_NV = torch.empty_like(ordered_NV).scatter_(-1, order_NV, ordered_NV)
    return torch.log_softmax(kept_NV, dim=-1)
