"""Is what is evaluated in the training data? The prompts of an environment's train split against the evaluated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from miles_agents.envs.contamination import Contamination, contamination
from miles_agents.types import Role, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOverlap:
    """What the evaluated tasks share with the training tasks."""

    found: Contamination
    rows: tuple[dict[str, str], ...]  # of each contaminated task: `task`, `train`, `kind`, `shared`

    @property
    def contaminated(self) -> frozenset[str]:
        """Ids of the evaluated tasks that are contaminated."""
        return frozenset(row["task"] for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Counts and rows."""
        return {
            "train_tasks": self.found.train_texts,
            "tasks": self.found.test_texts,
            "run_words": self.found.n,
            "exact": len(self.found.exact),
            "overlaps": len(self.found.overlaps),
            "share": self.found.share,
            "uncompared": self.found.uncompared,
            "rows": list(self.rows),
        }


def task_overlap(train: Sequence[Task], evaluated: Sequence[Task]) -> TaskOverlap:
    """Compare what the users say in the prompts; see `miles_agents.envs.contamination` for the rule.

    What all prompts begin or end with (an instruction) is left out: it is in both sets by intention.
    """
    texts = _without_frame([_said(task) for task in (*train, *evaluated)])
    found = contamination(texts[: len(train)], texts[len(train) :])
    kinds = [("exact", found.exact), ("overlap", found.overlaps)]
    rows = [
        (
            each.test,
            {"task": evaluated[each.test].id, "train": train[each.train].id, "kind": kind, "shared": each.shared},
        )
        for kind, overlaps in kinds
        for each in overlaps
    ]
    return TaskOverlap(found=found, rows=tuple(row for _, row in sorted(rows, key=lambda each: each[0])))


def _said(task: Task) -> str:
    return "\n".join(message.text for message in task.prompt if message.role is Role.USER)


def _without_frame(texts: Sequence[str]) -> list[str]:
    """The texts without the whole lines that all of them begin and end with; as they are if that leaves nothing."""
    lines = [text.split("\n") for text in texts]
    first, last = _shared(lines), _shared([each[::-1] for each in lines])
    inner = ["\n".join(each[first : len(each) - last]) for each in lines]
    return inner if all(text.strip() for text in inner) else list(texts)


def _shared(lists: Sequence[list[str]]) -> int:
    """How many entries all the lists begin with."""
    low, high = min(lists), max(lists)  # the two that are furthest apart
    return next(
        (place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
    )
