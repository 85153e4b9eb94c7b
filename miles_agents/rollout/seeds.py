"""Seeds: every random stream of a run is a hash of the base seed and what the stream is for.

Streams depend on names, never on order: concurrency, retries, batch order and resuming change nothing.
"""

from __future__ import annotations

import hashlib


def derive_seed(base: int, *names: str | int) -> int:
    """A 63-bit seed for the stream `names` under `base`; different names give independent seeds."""
    text = "\x1f".join([str(base), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
