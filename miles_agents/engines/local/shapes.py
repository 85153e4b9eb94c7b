"""The tensor shapes the engine runs, proved to give the same bits when a model is loaded.

A matrix product's bits depend on its shape (how many rows, how many threads), not on the data in other rows. So a
request has the same bits whatever its neighbours if every call has one fixed shape, or if all shapes in use agree bit
for bit on this machine. `probe` measures which of the smaller, cheaper shapes agree with the largest; only those are
used, in the worst case the largest alone.

`check_against_plain_attention` compares the engine's logits with those of the model's own attention, which catches
every architecture that needs more than causal softmax attention.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from miles_agents.engines.local.model import Call, SlotModel, slot_attention
from miles_agents.errors import ConfigError

Ints = NDArray[np.int64]

logger = logging.getLogger(__name__)

KEY_BLOCK = 32
# Threads share the rows of a matrix product; of fewer rows than this some get a remainder that is summed otherwise.
ROW_BLOCK = 8
_MOST_KEY_LENGTHS = 16
_MOST_WIDTHS = 6

# Largest difference of logits between the two attention implementations, relative to the largest logit.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Which sizes calls may have; each tuple ascends and ends with the largest."""

    decode_rows: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    prefill_widths: tuple[int, ...]  # tokens per row of a prefill call
    keys: tuple[int, ...]  # keys that a decode call attends to
    prefill_keys: tuple[int, ...]

    @classmethod
    def ladder(cls, *, slots: int, length: int, prefill_rows: int, prefill_chunk: int) -> Shapes:
        """Every candidate, for a cache of `slots` rows (of `ROW_BLOCK`) and `length` tokens (of `KEY_BLOCK`)."""
        step = up(-(-length // _MOST_KEY_LENGTHS), KEY_BLOCK)
        prefill_chunk = min(up(prefill_chunk, ROW_BLOCK), length)
        width_step = up(-(-prefill_chunk // _MOST_WIDTHS), ROW_BLOCK)
        return cls(
            decode_rows=_steps(slots, smallest=4),
            prefill_rows=_steps(min(prefill_rows, slots), smallest=1),
            prefill_widths=(*range(width_step, prefill_chunk, width_step), prefill_chunk),
            keys=tuple(sorted({*range(step, length, step), length})),
            prefill_keys=tuple(sorted({*(up(length * part // 4, KEY_BLOCK) for part in (1, 2, 3)), length})),
        )


def _steps(largest: int, *, smallest: int) -> tuple[int, ...]:
    """Powers of two and the numbers halfway between them, up to `largest`."""
    steps, step = {largest}, smallest
    while step < largest:
        steps.update({step, min(step + step // 2, largest)})
        step *= 2
    return tuple(sorted(steps))


def up(size: int, block: int) -> int:
    """`size` rounded up to a multiple of `block`."""
    return -(-size // block) * block


def fit(ladder: tuple[int, ...], need: int) -> int:
    """The smallest step of `ladder` that holds `need`."""
    return next(step for step in ladder if step >= need)


def check_against_plain_attention(model: SlotModel, shapes: Shapes) -> None:
    """Prefill and decode a short prompt; the logits must be those of the model's own attention.

    Raises:
        ConfigError: they differ.
    """
    length = min(shapes.prefill_widths[0] + 1, shapes.keys[-1])
    ids_L = np.random.default_rng(0).integers(0, model.vocab_size, length)
    if length > 1:
        model.forward(_full_call(ids_L[None, :-1], 0, np.arange(1), fit(shapes.keys, length)))
    got = model.forward(_full_call(ids_L[None, -1:], length - 1, np.arange(1), fit(shapes.keys, length)))[0]
    expected = model.plain_logits(ids_L)
    difference = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
    model.cache.clear()
    if not torch.isfinite(expected).all():
        raise ConfigError(f"{type(model.module).__name__} gives logits that are not finite; its weights are damaged")
    if not difference <= _TOLERANCE[model.module.dtype]:  # also refuses NaN
        raise ConfigError(
            f"{type(model.module).__name__} needs more than causal softmax attention: the local engine's logits differ "
            f"from the model's own by {difference:.1e} (relative); use another engine"
        )


def probe(model: SlotModel, ladder: Shapes) -> Shapes:
    """The shapes of `ladder` that have the bits of the largest ones; the cache is clear afterwards.

    Raises:
        ConfigError: even at one fixed shape a row's bits depend on its place in the batch.
    """
    work = _Probe(model, ladder)
    try:
        with model.shallow():
            prefill_rows, prefill_widths = work.prefill_shapes()
            found = replace(
                ladder, decode_rows=work.decode_rows(), prefill_rows=prefill_rows, prefill_widths=prefill_widths
            )
            decoding = [(rows, 1) for rows in found.decode_rows]
            prefilling = [(rows, width) for rows in prefill_rows for width in prefill_widths]
            found = replace(
                found, keys=work.keys(ladder.keys, decoding), prefill_keys=work.keys(ladder.prefill_keys, prefilling)
            )
    finally:
        model.cache.clear()
    logger.debug("bit-equal shapes: %s", found)
    return found


def _full_call(ids_NL: Ints, start: int, rows_N: Ints, keys: int) -> Call:
    n, width = ids_NL.shape
    positions_NL = np.broadcast_to(np.arange(start, start + width), (n, width)).copy()
    front = width == 1 and bool((rows_N == np.arange(n)).all())
    return Call(ids_NL, positions_NL, np.ones((n, width), np.bool_), rows_N, keys, front)


class _Probe:
    """Runs random tokens over random cache contents and compares rows between shapes."""

    def __init__(self, model: SlotModel, ladder: Shapes) -> None:
        self.model, self.ladder = model, ladder
        self.longest = ladder.keys[-1]
        self.random = np.random.default_rng(1)
        self.generator = torch.Generator(device=model.device).manual_seed(1)
        with torch.inference_mode():
            for cache in (*model.cache.keys_SKTD, *model.cache.values_SKTD):
                cache.normal_(generator=self.generator)

    def decode_rows(self) -> tuple[int, ...]:
        """Row counts of decode calls with the logits of the largest."""
        ladder = self.ladder.decode_rows
        ids = self._ids(ladder[-1], 1)
        start = self.longest - 1  # sums over many keys are split otherwise than sums over few

        def run(rows_N: Ints) -> list[Tensor]:
            return [self.model.forward(_full_call(ids[rows_N], start, rows_N, self.longest))]

        reference = run(np.arange(ladder[-1]))
        self._refuse_order_dependence(run, reference)
        return self._agreeing(ladder, lambda rows: _same(run(np.arange(rows)), reference, rows))

    def prefill_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Row counts and widths such that each pair writes the keys and values that the largest pair writes."""
        rows_ladder, widths_ladder = self.ladder.prefill_rows, self.ladder.prefill_widths
        largest_N = np.arange(rows_ladder[-1])
        ids = self._ids(len(largest_N), widths_ladder[-1])  # they see all keys that the cache was filled with
        reference = self._written(ids, largest_N)
        self._refuse_order_dependence(lambda rows_N: self._written(ids[rows_N], rows_N), reference)

        def agrees(rows: int, width: int) -> bool:
            written = self._written(ids[:rows, :width], np.arange(rows))
            return _same(written, [states[:, :, :width] for states in reference], rows)

        widths = self._agreeing(widths_ladder, lambda width: agrees(rows_ladder[-1], width))
        return self._agreeing(rows_ladder, lambda rows: all(agrees(rows, width) for width in widths)), widths

    def keys(self, ladder: tuple[int, ...], sizes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        """The key lengths of `ladder` at which calls of each size (rows, width) have the bits of the longest."""
        agreeing = list(ladder)
        with torch.inference_mode():
            for rows, width in sizes:
                shape = (rows, self.model.config.num_attention_heads, width, self.model.cache.keys_SKTD[0].shape[-1])
                query = torch.empty(shape, dtype=self.model.module.dtype, device=self.model.device)
                query.normal_(generator=self.generator)
                agreeing = [keys for keys in agreeing if keys < width or self._length_agrees(query, keys)]
        return tuple(agreeing)

    def _length_agrees(self, query: Tensor, keys: int) -> bool:
        """True if attention to `keys` keys, all of them visible, has the same bits when hidden ones follow."""
        if keys == self.longest:
            return True
        width = query.shape[2]
        hidden_LT = np.arange(self.longest) > np.arange(keys - width, keys)[:, None]
        mask = torch.from_numpy(np.where(hidden_LT, -np.inf, 0.0)[None, None].repeat(len(query), 0)).to(query)
        return torch.equal(self._attend(query, mask, keys), self._attend(query, mask, self.longest))

    def _ids(self, rows: int, width: int) -> Ints:
        return self.random.integers(0, self.model.vocab_size, (rows, width))

    def _agreeing(self, ladder: tuple[int, ...], agrees: Callable[[int], bool]) -> tuple[int, ...]:
        return (*(step for step in ladder[:-1] if agrees(step)), ladder[-1])

    def _refuse_order_dependence(self, run: Callable[[Ints], list[Tensor]], reference: list[Tensor]) -> None:
        order_N = self.random.permutation(len(reference[0]))
        permuted = run(order_N)
        if not all(torch.equal(got, expected[order_N]) for got, expected in zip(permuted, reference, strict=True)):
            raise ConfigError(
                f"{type(self.model.module).__name__} on {self.model.device} gives a row other bits at another place in "
                "the batch, so runs cannot be repeated exactly; set engine.deterministic=false"
            )

    def _written(self, ids_NL: Ints, rows_N: Ints) -> list[Tensor]:
        """The keys and values that a prefill call at the end of the cache writes, by row of the call."""
        start, width = self.longest - self.ladder.prefill_widths[-1], ids_NL.shape[1]
        self.model.forward(_full_call(ids_NL, start, rows_N, self.longest))
        cache = self.model.cache
        with torch.inference_mode():
            return [
                states[torch.from_numpy(rows_N).to(states.device), :, start : start + width]
                for states in (*cache.keys_SKTD, *cache.values_SKTD)
            ]

    def _attend(self, query: Tensor, mask: Tensor, keys: int) -> Tensor:
        cache, rows = self.model.cache, len(query)
        # A decode call reads the cache in place, a prefill call a copy of its rows: see `SlotCache`.
        taken = slice(0, rows) if query.shape[2] == 1 else torch.arange(rows, device=query.device)
        key, value = (states[taken, :, :keys] for states in (cache.keys_SKTD[0], cache.values_SKTD[0]))
        return slot_attention(self.model.module, query, key, value, mask[..., :keys])[0]


def _same(got: Iterable[Tensor], reference: Iterable[Tensor], rows: int) -> bool:
    return all(torch.equal(one, other[:rows]) for one, other in zip(got, reference, strict=True))
