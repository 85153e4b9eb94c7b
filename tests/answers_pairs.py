"""The tables of pairs and the families of rewriting in `tests/answer_pairs`, for tests and benchmarks."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from random import Random

from miles_agents.answers import AnswerPolicy

FOLDER = Path(__file__).parent / "answer_pairs"
Form = Callable[[Fraction, Random], str]


@dataclass(frozen=True)
class Pair:
    """Two answers and whether they are equal, fixed by hand before any checker ran."""

    gold: str
    answer: str
    equal: bool
    family: str
    source: str  # the file it is from
    policy: AnswerPolicy  # what the question leaves open

    def __str__(self) -> str:
        return f"{self.source}: {self.family}: {self.gold} | {self.answer}"


def pairs(pattern: str = "*pairs.jsonl") -> list[Pair]:
    """All pairs of the files that match."""
    found = []
    for path in sorted(FOLDER.glob(pattern)):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            policy = AnswerPolicy(**row.get("options", {}))
            found.append(Pair(row["gold"], row["answer"], row["equal"], row["family"], path.stem, policy))
    return found


def families(pattern: str = "*families.py") -> dict[str, tuple[Form, Form]]:
    """Name → (true form, near miss) of all files that match."""
    found: dict[str, tuple[Form, Form]] = {}
    for path in sorted(FOLDER.glob(pattern)):
        spec = importlib.util.spec_from_file_location(f"answer_pairs_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found |= {f"{path.stem}: {name}": forms for name, forms in module.FAMILIES.items()}
    return found
