"""`reasoning_gym-v0`: one puzzle, one reply, the package's own score."""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterator, Mapping
from itertools import cycle, islice
from typing import Any

from miles_agents.contracts import ToolEnv
from miles_agents.envs.reasoning_gym.families import JUNK_SCORES, UNSOUND_FROM, WITHOUT_ANSWER, may_be_scored
from miles_agents.envs.reasoning_gym.puzzles import PuzzleSource, checked_settings, family_names
from miles_agents.envs.reasoning_gym.scorer import Puzzle, Score, shared_scorer
from miles_agents.envs.splits import normalised
from miles_agents.errors import ConfigError, DataError, GraderError, did_you_mean
from miles_agents.registry import environments
from miles_agents.types import Episode, Message, Reply, Task

INSTRUCTION = (
    "Solve the puzzle step by step. Then write the final answer, and nothing else, between <answer> and </answer>, in "
    "the form that the puzzle asks for."
)

_FIRST_SEED = {"test": 0, "validation": 10_000_000, "train": 20_000_000}  # in the order of their claim on a question
_SEEDS_APART = 100_000_000  # between two values of env.seed
_MAX_SEED = 20  # the package's seeds are below 2 ** 31
_MAX_REPEATS = 200  # puzzles in a row that were there before, after which a family counts as used up
_MAX_ANSWER_CHARS = 20_000

_log = logging.getLogger(__name__)


@environments.register("reasoning_gym-v0")
class ReasoningGym(ToolEnv):
    """Generated puzzles of the package `reasoning-gym`, one reply each, scored by the package.

    Rewards: `score`, what the package gives the text between the last `<answer>` and `</answer>` of the reply, 0 to 1;
    `solved`, 1 if that is the full score; `format`, 1 if the reply has such a text.

    Args:
        family: a family of puzzles, a list of families in turn, or all.
        settings: keys of the family's configuration, e.g. {max_animals: 5}; of several families {family: {key: value}}.
        seed: another one gives other puzzles.
        train_size: tasks of the train split, all families together.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        system_prompt: None explains the form of the answer; "" says nothing.
        score_weight: weight of the reward `score`.
        solved_weight: weight of the reward `solved`.
        format_weight: weight of the reward `format`.

    Raises:
        ConfigError: no such family or setting, or a value out of its range.
        UsageError: the package is not installed.
    """

    reward_timeout_s = 300.0  # for a worker to start on a busy machine, and for those that are before in the queue
    max_turns = 1

    def __init__(
        self,
        *,
        family: Any = "leg_counting",  # str or list[str]: a union that configuration schemas cannot express
        settings: Any = None,  # a mapping
        seed: int = 0,
        train_size: int = 512,
        validation_size: int = 64,
        test_size: int = 128,
        system_prompt: str | None = None,
        score_weight: float = 1.0,
        solved_weight: float = 0.0,
        format_weight: float = 0.0,
    ) -> None:
        self.families = _families(family)
        self.settings = _settings(self.families, settings)
        self.seed = seed
        self.system_prompt = INSTRUCTION if system_prompt is None else system_prompt
        self.reward_weights = {
            "score": score_weight,
            "solved": solved_weight,
            "format": format_weight,
            "unreadable": 0.0,
        }
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        self._check_ranges()
        weights = self.reward_weights.values()
        self.reward_range = (sum(min(weight, 0.0) for weight in weights), sum(max(weight, 0.0) for weight in weights))
        self.junk_reward = max(0.0, score_weight) * max(JUNK_SCORES.get(name, (0.0,))[0] for name in self.families)
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split, always the same and in the same order; no question is in two splits.

        Raises:
            ConfigError: no such split.
            DataError: the families have no question for it that is not in a stronger split, or cannot make one with
                these settings within a minute.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = tuple(islice(self._drawn(split), self._sizes[split]))
            found, wanted = len(self._tasks[split]), self._sizes[split]
            if not found:
                raise DataError(f"env.family={','.join(self.families)}: no question is left for split '{split}'")
            if found < wanted:
                _log.warning("reasoning_gym: %d tasks of %d in '%s': there are no more questions", found, wanted, split)
        return self._tasks[split]

    def reward(self, episode: Episode) -> dict[str, float]:
        """`score`, `solved`, `format`; where the scorer could not read the answer, `unreadable` is 1 too.

        Raises:
            GraderError: scoring took too long or failed; never a score of 0.
        """
        answer = tagged_answer(episode.final.content)
        rewards = {"score": 0.0, "solved": 0.0, "format": float(answer is not None), "unreadable": 0.0}
        if answer is None:
            return rewards
        score = self._score(episode.task, answer)
        rewards |= {"score": score.value, "solved": float(score.value >= 1.0)}
        return {**rewards, "unreadable": float(bool(score.unreadable))}

    def oracle(self, task: Task) -> list[Reply]:
        """The package's own answer.

        Raises:
            GraderError: it has none (`families.WITHOUT_ANSWER`).
        """
        if task.answer is None:
            raise GraderError(f"task {task.id}: the package has no answer of its own to it")
        return [Reply.of(f"<answer>{task.answer}</answer>")]

    def source(self, family: str, split: str) -> PuzzleSource:
        """The dataset that the puzzles of a family and split come from."""
        return PuzzleSource(
            family=family,
            settings=self.settings[family],
            seed=self.seed * _SEEDS_APART + _FIRST_SEED[split],
            size=self._sizes[split] + _MAX_REPEATS,
        )

    def _score(self, task: Task, answer: str) -> Score:
        family = task.metadata["family"]
        if len(answer) > _MAX_ANSWER_CHARS:
            return Score(0.0, "too long")
        if not may_be_scored(family, answer):
            return Score(0.0, "more than data or a formula")
        return shared_scorer().score(self.source(family, task.split), task.metadata["index"], answer)

    def _drawn(self, split: str) -> Iterator[Task]:
        stronger = list(_FIRST_SEED)[: list(_FIRST_SEED).index(split)]
        seen = {normalised(task.prompt[-1].text) for name in stronger for task in self.tasks(name)}
        places = dict.fromkeys(self.families, 0)
        used_up: set[str] = set()
        for family in cycle(self.families):
            if len(used_up) == len(places):
                return
            if family in used_up:
                continue
            found = _next_new(self.source(family, split), places[family], seen)
            if found is None:
                used_up.add(family)
                continue
            index, puzzle = found
            seen.add(normalised(puzzle.question))
            places[family] = index + 1
            yield self._task(family, split, index, puzzle)

    def _task(self, family: str, split: str, index: int, puzzle: Puzzle) -> Task:
        system = (Message.system(self.system_prompt),) if self.system_prompt else ()
        return Task(
            id=f"{split}/{family}/{index}",
            prompt=(*system, Message.user(puzzle.question)),
            answer=puzzle.own_answer,
            metadata={"family": family, "index": index},
            split=split,
        )

    def _check_ranges(self) -> None:
        checks = [
            ("seed", self.seed, 0 <= self.seed <= _MAX_SEED, f"between 0 and {_MAX_SEED}"),
            *((f"{name}_size", size, 1 <= size <= 10**6, "1 to 1,000,000") for name, size in self._sizes.items()),
            *((f"{name}_weight", value, math.isfinite(value), "finite") for name, value in self.reward_weights.items()),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))


def _next_new(source: PuzzleSource, first: int, seen: Container[str]) -> tuple[int, Puzzle] | None:
    """The first puzzle from a place on whose question was not there before, and its place."""
    for index in range(first, first + _MAX_REPEATS):
        puzzle = shared_scorer().puzzle(source, index)
        if puzzle is None or normalised(puzzle.question) not in seen:
            return None if puzzle is None else (index, puzzle)
    return None


def sound_families() -> tuple[str, ...]:
    """What `env.family=all` means: the families with an answer of their own in which junk scores little."""
    unsound = {name for name, (most, _) in JUNK_SCORES.items() if most >= UNSOUND_FROM}
    return tuple(name for name in family_names() if name not in unsound and name not in WITHOUT_ANSWER)


def tagged_answer(content: str) -> str | None:
    """The text between the last `<answer>` and the `</answer>` behind it, without spaces around it; None if unclosed.

    Nothing inside `<think>` counts.
    """
    visible = content.rpartition("</think>")[2].partition("<think>")[0]
    _, opened, rest = visible.rpartition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return inside.strip() if opened and closed else None


def _families(given: Any) -> tuple[str, ...]:
    if given == "all":
        return sound_families()
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"env.family={given!r}: give a family, several different ones ([a,b]), or all")
    return names


def _settings(families: tuple[str, ...], given: Any) -> dict[str, str]:
    settings = {} if given is None else given
    if not isinstance(settings, Mapping):
        raise ConfigError(f"env.settings={given!r}: give keys and values: {{max_animals: 5}}")
    if len(families) == 1:
        return {families[0]: checked_settings(families[0], settings)}
    for name, each in settings.items():
        if name not in families or not isinstance(each, Mapping):
            raise ConfigError(
                f"env.settings.{name}: of several families give {{family: {{key: value}}}}. "
                f"{did_you_mean(str(name), families)}"
            )
    return {family: checked_settings(family, settings.get(family, {})) for family in families}
