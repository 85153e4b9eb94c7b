"""Importing ahead, so that a session need not."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Sequence

from miles_agents.tools.sandboxes.runner.linux import collapse_heap

_COMMON_MODULES = (  # what short programs use most
    "ast", "bisect", "collections", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "typing",
)  # fmt: skip
_SEEDED = {"numpy": "numpy.random"}  # seeded in each session, so it must be there
# What packages import when it is first used. `sympy.pi > 3` is one of those uses, and costs a fresh session 50 ms.
_IMPORTED_LATE = {
    "numpy": ("hashlib", "numpy.fft"),
    "sympy": (
        "sympy.assumptions.wrapper", "sympy.codegen.ast", "sympy.integrals.heurisch", "sympy.integrals.manualintegrate",
        "sympy.integrals.risch", "sympy.physics.units", "sympy.polys.polymatrix", "sympy.sets.handlers.functions",
        "sympy.sets.handlers.issubset", "sympy.sets.setexpr", "sympy.tensor.tensor",
    ),
}  # fmt: skip


def warm_up(preload: Sequence[str], *, forked_often: bool) -> None:
    """Import the packages and settle the heap, so that forks share it.

    Args:
        preload: names of modules.
        forked_often: import also what they import late themselves: once here, instead of once in each session.

    Raises:
        ImportError: one is not installed.
    """
    for name in (*_COMMON_MODULES, *preload, *(_SEEDED[name] for name in preload if name in _SEEDED)):
        importlib.import_module(name)
    if forked_often:
        for name in (late for package in preload for late in _IMPORTED_LATE.get(package, ())):
            with contextlib.suppress(ModuleNotFoundError):  # elsewhere in another version: a session finds it then
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    collapse_heap()
