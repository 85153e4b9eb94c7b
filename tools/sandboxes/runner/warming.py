"""Importing ahead, so that a session need not."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence

from miles_agents.tools.sandboxes.runner.linux import collapse_heap

_COMMON_MODULES = (  # what short programs use most
    "ast", "bisect", "collections", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "typing",
)  # fmt: skip


def warm_up(preload: Sequence[str]) -> None:
    """Import the packages and settle the heap, so that forks share it.

    Raises:
        ImportError: one is not installed.
    """
    lazy = [f"{name}.random" for name in preload if name == "numpy"]  # seeded in each session, so it must be there
    for name in (*_COMMON_MODULES, *preload, *lazy):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    collapse_heap()
