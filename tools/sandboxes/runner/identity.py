"""Who sessions run as: under root each as a user of its own, under anyone else as that user in user namespaces."""

from __future__ import annotations

import os
from pathlib import Path

FIRST_ID, ID_COUNT = 2_000_000_000, 100_000_000  # of root's sessions: above what systems give to anyone


def is_root() -> bool:
    """Whether this is root with those ids to give; the root of a user namespace (rootless containers) has too few."""
    return os.getuid() == 0 and all(_holds_ids(Path(f"/proc/self/{kind}_map")) for kind in ("uid", "gid"))


def _holds_ids(mapped: Path) -> bool:
    if not mapped.exists():  # a kernel without user namespaces
        return True
    ranges = (map(int, line.split()) for line in mapped.read_text().splitlines())
    return any(first <= FIRST_ID and first + count >= FIRST_ID + ID_COUNT for first, _, count in ranges)
