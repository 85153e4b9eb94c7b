"""A Hugging Face causal LM run over the slots of one preallocated KV cache.

The model's own `forward` is used; only its attention is replaced, through transformers' attention registry, by plain
matrix products over the cache. Fused attention kernels split their sums by thread and by length, so that a row's bits
depend on its neighbours; the plain products do not (see `shapes`).

Shape legend: S slots, N rows of one call, L tokens per row, K key/value heads, H query heads, G = H / K,
T keys attended to, D head width, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from miles_agents.errors import ConfigError

ATTENTION_NAME = "miles_agents_slots"

# Keys past the longest sequence: padding tokens write there and nothing ever reads it.
_SPARE_KEYS = 16


class Call(NamedTuple):
    """One forward call. Padding tokens have `valid` False: they write nowhere and their result is unused."""

    ids_NL: NDArray[np.int64]
    positions_NL: NDArray[np.int64]
    valid_NL: NDArray[np.bool_]
    rows_N: NDArray[np.int64]  # the cache row of each row of the call
    keys: int  # T: how many keys are attended to; more than every valid position
    front: bool  # rows_N is 0, 1, … N − 1: the cache is read in place


def slot_attention(
    module: nn.Module,
    query_NHLD: Tensor,
    key_NKTD: Tensor,
    value_NKTD: Tensor,
    mask_N1LT: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Softmax attention with grouped heads; the mask is added to the scores. Returns (N, L, H, D)."""
    N, H, L, D = query_NHLD.shape
    K, T = key_NKTD.shape[1], key_NKTD.shape[2]
    group = H // K
    scores = torch.matmul(query_NHLD.reshape(N, K, group * L, D), key_NKTD.transpose(2, 3))
    scores = scores.mul_(D**-0.5 if scaling is None else scaling).view(N, K, group, L, T)
    scores = scores.add_(mask_N1LT[:, :, None])
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value_NKTD.dtype)
    output = torch.matmul(weights.view(N, K, group * L, T), value_NKTD)
    return output.view(N, H, L, value_NKTD.shape[-1]).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, slot_attention)


class SlotCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """Keys and values of every slot, one (S, K, T, D) pair per layer, allocated when a layer is first used.

    `select` says which rows and positions the next forward call writes and which keys it reads.
    """

    def __init__(self, *, slots: int, length: int) -> None:
        super().__init__(layers=[])
        self.slots, self.length = slots, length
        self.keys_SKTD: list[Tensor] = []
        self.values_SKTD: list[Tensor] = []

    def select(self, call: Call, device: torch.device) -> None:
        """Bind the next forward call."""
        self._front = call.front
        self._count, self._read = len(call.rows_N), call.keys
        self._rows_N1 = torch.from_numpy(call.rows_N).to(device)[:, None]
        written = np.where(call.valid_NL, call.positions_NL, self.length)
        self._written_NL = torch.from_numpy(written).to(device)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new keys and values, (N, K, L, D), and return those to attend to, (N, K, T, D)."""
        while len(self.keys_SKTD) <= layer_idx:
            self.keys_SKTD.append(self._allocate(key_states))
            self.values_SKTD.append(self._allocate(value_states))
        return self._store(self.keys_SKTD[layer_idx], key_states), self._store(
            self.values_SKTD[layer_idx], value_states
        )

    def _allocate(self, states: Tensor) -> Tensor:
        shape = (self.slots, states.shape[1], self.length + _SPARE_KEYS, states.shape[3])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def _store(self, cache_SKTD: Tensor, states_NKLD: Tensor) -> Tensor:
        cache_SKTD[self._rows_N1, :, self._written_NL] = states_NKLD.transpose(1, 2)
        if self._front:
            return cache_SKTD[: self._count, :, : self._read]
        return cache_SKTD[self._rows_N1[:, 0], :, : self._read]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Unused by our calls, which give every position; models ask for it."""
        return 0

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` keys and values of two rows."""
        with torch.inference_mode():
            for cache in (*self.keys_SKTD, *self.values_SKTD):
                cache[[first, second], :, :length] = cache[[second, first], :, :length]

    def clear(self, row: int | None = None) -> None:
        """Zero one row, or all: numbers that are not finite would otherwise outlive the weights they came from."""
        with torch.inference_mode():
            for cache in (*self.keys_SKTD, *self.values_SKTD):
                (cache if row is None else cache[row]).zero_()

    def free(self) -> None:
        """Give the memory back; the next call allocates it again."""
        self.keys_SKTD.clear()
        self.values_SKTD.clear()


class SlotModel:
    """A private view of a causal LM, with its cache.

    The view has its own config and its own train/eval flag, so neither the engine nor the owner of `module` can
    change the other's attention implementation or dropout.

    Args:
        module: a Hugging Face causal LM.
        share: use the very parameters of `module` (in-place updates are seen at once) or copies of them.
        dtype: of the weights and the cache; a shared module must have it already.
        slots: rows of the cache.
        length: longest sequence, in tokens.

    Raises:
        ConfigError: an attention kind or dtype that cannot be served.
    """

    def __init__(self, module: nn.Module, *, share: bool, dtype: torch.dtype, slots: int, length: int) -> None:
        self.module = _shared_view(module, dtype) if share else _private_copy(module, dtype)
        self.module.eval()
        self.config = self.module.config.get_text_config()
        _refuse_short_windows(self.config, length)
        self.vocab_size = int(self.config.vocab_size)
        self.device = next(self.module.parameters()).device
        self.cache = SlotCache(slots=slots, length=length)
        self._keys_T = torch.arange(length, device=self.device)
        # transformers 5.23 renamed the argument and warns about the old name; drop when the lower bound is there.
        takes = inspect.signature(self.module.forward).parameters
        self._cache_argument = "cache" if "cache" in takes else "past_key_values"
        self._use_attention(ATTENTION_NAME)

    def _use_attention(self, name: str) -> None:
        self.module.config._attn_implementation = name
        self.config._attn_implementation = name

    def forward(self, call: Call) -> Tensor:
        """Run one call. Returns the logits of the last token of each row, (N, V) float32."""
        with torch.inference_mode():
            self.cache.select(call, self.device)
            positions_NL = torch.from_numpy(call.positions_NL).to(self.device)
            hidden_NLT = self._keys_T[: call.keys] > positions_NL[..., None]
            mask = torch.zeros(hidden_NLT.shape, dtype=self.module.dtype, device=self.device)
            output = self.module(
                input_ids=torch.from_numpy(call.ids_NL).to(self.device),
                position_ids=positions_NL,
                attention_mask=mask.masked_fill_(hidden_NLT, float("-inf"))[:, None],
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: self.cache},
            )
            logits: Tensor = output.logits[:, -1].float()
            return logits

    @contextmanager
    def shallow(self) -> Iterator[None]:
        """Run the first two layers only, where all layers have the same sizes: as much as shapes need to be probed."""
        layers = getattr(self.module.get_decoder(), "layers", None) or []
        sizes = [[(name, p.shape) for name, p in layer.named_parameters()] for layer in layers]
        depth = self.config.num_hidden_layers
        if len(sizes) > 2 and all(size == sizes[0] for size in sizes):
            self.config.num_hidden_layers = 2
        try:
            yield
        finally:
            self.config.num_hidden_layers = depth

    def plain_logits(self, ids_L: NDArray[np.int64]) -> Tensor:
        """Logits of the last token by the model's own attention without a cache, (V,) float32: the reference."""
        self._use_attention("eager")
        try:
            with torch.inference_mode():
                output = self.module(input_ids=torch.from_numpy(ids_L)[None].to(self.device), use_cache=False)
                logits: Tensor = output.logits[0, -1].float()
                return logits
        finally:
            self._use_attention(ATTENTION_NAME)


def _shared_view(module: nn.Module, dtype: torch.dtype) -> Any:
    tensors = [*module.parameters(), *module.buffers()]
    other = next((t.dtype for t in module.parameters() if t.is_floating_point() and t.dtype != dtype), None)
    if other is not None:
        raise ConfigError(f"a shared model is decoded in its own dtype: it has {other}, the engine is set to {dtype}")
    return copy.deepcopy(module, memo={id(tensor): tensor for tensor in tensors})


def _private_copy(module: nn.Module, dtype: torch.dtype) -> Any:
    return copy.deepcopy(module).to(dtype).requires_grad_(False)


def _refuse_short_windows(config: Any, length: int) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    sliding = "sliding_attention" in kinds and window is not None and window < length
    unknown = kinds - {"full_attention", "sliding_attention"}
    if sliding or unknown:
        what = f"a sliding window of {window} tokens" if sliding else f"{', '.join(sorted(unknown))} layers"
        raise ConfigError(
            f"{type(config).__name__} has {what}; the local engine decodes full attention only "
            f"(windows of at least its context length, {length}, are fine): use another engine"
        )
