"""Which split a question belongs to: a pure function of its content."""

from __future__ import annotations

import unicodedata
from hashlib import blake2b

_PERSON = b"miles-splits-v1"  # part of every hash; changing it moves questions between splits


def split_of(content: str, *, seed: int = 0) -> str:
    """`train` (80 %), `validation` (10 %) or `test` (10 %).

    Case, spacing and Unicode spelling do not matter. It depends on nothing but the content and the seed: not on the
    order, the file or the machine, so that two equal questions always share a split.
    """
    salt = b"" if seed == 0 else blake2b(str(seed).encode(), digest_size=16).digest()
    text = normalised(content).encode("utf-8", "surrogatepass")
    digest = blake2b(text, digest_size=8, person=_PERSON, salt=salt).digest()
    bucket = int.from_bytes(digest, "big") % 10
    return "train" if bucket < 8 else "validation" if bucket == 8 else "test"


def normalised(text: str) -> str:
    """The text by which two questions count as the same."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
