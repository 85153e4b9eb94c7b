"""`shapes-v0`: count shapes in a picture; an environment whose prompt has an image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np

from miles_agents.contracts import ToolEnv
from miles_agents.envs.replies import AnswerForm, as_reply, final_answer
from miles_agents.envs.shapes.pictures import CELLS, COLOURS, KINDS, draw, encode_png, place
from miles_agents.envs.splits import split_of
from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.registry import environments
from miles_agents.types import Episode, ImagePart, Message, Reply, Role, Task, TextPart

_SEED = 0  # the tasks of a split are always the same
_FEWEST, _MOST = 8, 20  # shapes in a picture
_NUMBER = re.compile(r"\d{1,3}")


@environments.register("shapes-v0")
class Shapes(ToolEnv):
    """How many red circles are in the picture? The prompt is a picture (PNG) and a question.

    The answer is a last line `Answer: N`. Reward: 1 for the right number. It can be played and evaluated with models
    that see (`engine=openai`); training it is refused until a trainer takes images.

    Args:
        max_count: the largest number that is asked for; the numbers from 0 on are equally frequent.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.

    Raises:
        ConfigError: a value out of its range.
    """

    modalities: ClassVar[frozenset[str]] = frozenset({"text", "image"})
    max_turns = 1

    def __init__(
        self, *, max_count: int = 9, train_size: int = 1024, validation_size: int = 128, test_size: int = 256
    ) -> None:
        self.max_count = max_count
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        checks = [
            ("max_count", max_count, 3 <= max_count <= 15, "from 3 to 15"),
            *((f"{name}_size", size, 1 <= size <= 20_000, "from 1 to 20000") for name, size in self._sizes.items()),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split: pictures that no other split has.

        Raises:
            ConfigError: no such split.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = tuple(self._generated(split))
        return self._tasks[split]

    def reward(self, episode: Episode) -> float:
        """1 for the right number."""
        said = final_answer(episode.final.content, AnswerForm.LINE) or ""
        number = _NUMBER.fullmatch(said.rstrip(" ."))
        return float(number is not None and int(number[0]) == episode.task.answer)

    def oracle(self, task: Task) -> Iterable[Reply]:
        """The right number."""
        yield Reply.of(as_reply(str(task.answer), AnswerForm.LINE))

    def _generated(self, split: str) -> Iterator[Task]:
        number = made = 0
        while made < self._sizes[split]:
            name = f"shapes {self.max_count} {number}"
            number += 1
            if split_of(name) == split:
                made += 1
                yield self._task(name, split, number - 1)

    def _task(self, name: str, split: str, number: int) -> Task:
        rng = np.random.default_rng([_SEED, self.max_count, number])
        wanted = {"kind": str(rng.choice(KINDS)), "colour": str(rng.choice(list(COLOURS)))}
        count = int(rng.integers(self.max_count + 1))
        total = int(rng.integers(max(_FEWEST, count + 3), min(_MOST, CELLS * CELLS) + 1))
        asked = [{"kind"}, {"colour"}, {"kind", "colour"}][int(rng.integers(3))]
        others = [
            (kind, colour)
            for kind in KINDS
            for colour in COLOURS
            if ("kind" in asked and kind != wanted["kind"]) or ("colour" in asked and colour != wanted["colour"])
        ]
        those = [
            (kind, colour)
            for kind in ([wanted["kind"]] if "kind" in asked else KINDS)
            for colour in ([wanted["colour"]] if "colour" in asked else COLOURS)
        ]
        drawn = [those[int(rng.integers(len(those)))] for _ in range(count)]
        drawn += [others[int(rng.integers(len(others)))] for _ in range(total - count)]
        picture = encode_png(draw(place(drawn, rng)))
        colour = f"{wanted['colour']} " if "colour" in asked else ""
        kind = f"{_plural(wanted['kind'])}" if "kind" in asked else "shapes"
        text = f"How many {colour}{kind} are in the picture? End with a line `Answer: NUMBER`."
        parts = (ImagePart(data=picture), TextPart(text=text))
        return Task(
            id=f"{split}/{number}",
            prompt=(Message(role=Role.USER, parts=parts),),
            answer=count,
            metadata={"shapes": total, "asked": sorted(asked)},
            split=split,
        )


def _plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"
