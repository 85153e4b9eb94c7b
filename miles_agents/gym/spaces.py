"""A space of texts. Gymnasium's own `spaces.Text` has a fixed alphabet, by default without the space or the umlaut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Tuple
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array

_SAMPLE_CHARS = 64  # samples are short whatever the space allows
_ALPHABET = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    "        \n\n\t.,;:!?'\"()[]{}<>/\\|@#$%^&*-+=_~`"
    "àéîõüßçñœøåğž€£½²≤→∑αβγδЖдяאבגعربहिन्दीไทย中文日本語한국어👋🏽🚀🧮\u200d\u0301\u202e"
)


class UnicodeText(Space[str]):
    """All texts of at most `max_length` characters that can be written as UTF-8, the empty one included.

    Args:
        max_length: characters (code points).
        seed: of `sample`.

    Raises:
        ValueError: `max_length` is below 0.
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 0:
            raise ValueError(f"max_length={max_length}: it must be at least 0")
        self.max_length = int(max_length)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: an array of the longest text would be far larger than any text."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A text of at most 64 characters: letters of many scripts, signs, spaces, newlines.

        Raises:
            ValueError: `mask` or `probability` is given; there is no fixed alphabet that they could refer to.
        """
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText has no fixed alphabet: it takes neither mask nor probability")
        length = int(self.np_random.integers(0, min(self.max_length, _SAMPLE_CHARS) + 1))
        return "".join(_ALPHABET[place] for place in self.np_random.integers(0, len(_ALPHABET), length))

    def contains(self, x: Any) -> bool:
        """True for a `str` that is short enough and has no lone surrogates."""
        return isinstance(x, str) and len(x) <= self.max_length and is_writable(x)

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """The texts as they are."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The texts as they are."""
        return list(sample_n)

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"


def is_writable(text: str) -> bool:
    """True if the text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# What Gymnasium's vector environments make of texts: tuples. `iterate` has no entry on purpose: it would go through
# the characters of each text, where for a tuple of spaces without one it goes through the texts.


@batch_space.register(UnicodeText)
def _batch(space: UnicodeText, n: int = 1) -> Space[Any]:
    batched = Tuple(tuple(UnicodeText(space.max_length) for _ in range(n)), seed=deepcopy(space.np_random))
    batched.seed([int(seed) for seed in deepcopy(space.np_random).integers(0, 2**31, n)])
    return batched


# Gymnasium looks it up by the type of the first space, which its annotation cannot say.
@batch_differing_spaces.register(UnicodeText)
def _batch_differing(spaces: Sequence[UnicodeText]) -> Space[Any]:  # type: ignore[misc]
    return Tuple(tuple(deepcopy(space) for space in spaces), seed=deepcopy(spaces[0].np_random))


@concatenate.register(UnicodeText)
def _concatenate(space: UnicodeText, items: Iterable[str], out: Any) -> tuple[str, ...]:
    return tuple(items)


@create_empty_array.register(UnicodeText)
def _empty(space: UnicodeText, n: int = 1, fn: Any = np.zeros) -> tuple[str, ...]:
    return ("",) * n
