"""Rewards of a `ToolEnv`: named components with weights, at the end or after each turn, and shaping from configuration.

    reward = Σ over components: weight × value

Components come from `reward(episode)`, from `rewards = [...]`, from methods marked with `@reward`, and from `shaping`.
Each is recorded under its name as it is, before weighting.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from miles_agents.contracts.threads import run_in_thread
from miles_agents.contracts.tool_calls import MAX_NAME_CHARS, is_cancelled, own_error_in, shortened
from miles_agents.errors import ConfigError, EpisodeError, GraderError, ToolErrorKind, UsageError, did_you_mean
from miles_agents.types import Episode

_MARK = "_miles_agents_reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One named component.

    `function` is given the `Episode` and gives a number (or an awaitable of one); plain functions run in a thread.
    """

    name: str
    function: Callable[[Episode], Any]
    weight: float = 1.0  # an environment's `reward_weights` go first
    per_turn: bool = False  # called after each turn, for that turn; the values are added up under the name


def reward(
    function: Callable[..., Any] | None = None, *, name: str = "", weight: float = 1.0, per_turn: bool = False
) -> Any:
    """Decorator: a function of an `Episode`, or a method of an environment, as a reward component.

    Args:
        function: as `@reward`; leave it out to give options, `@reward(weight=0.1)`.
        name: the component's; the function's own by default.
        weight: times this in the reward; 0 records it alone.
        per_turn: call it after each turn instead of at the end.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        made = Reward(
            name=name or getattr(function, "__name__", "reward"), function=function, weight=weight, per_turn=per_turn
        )
        setattr(function, _MARK, made)
        return function

    return decorate if function is None else decorate(function)


def as_reward(entry: Reward | Callable[..., Any]) -> Reward:
    """An entry of `ToolEnv.rewards`.

    Raises:
        UsageError: it is neither a `Reward` nor a function.
    """
    if isinstance(entry, Reward):
        return entry
    if not callable(entry):
        raise UsageError(f"{entry!r} in `rewards` is no reward: give functions of an Episode, or Reward(…)")
    marked = getattr(entry, _MARK, None)
    return marked if isinstance(marked, Reward) else Reward(name=getattr(entry, "__name__", "reward"), function=entry)


def marked_rewards(owner: object) -> tuple[Reward, ...]:
    """The methods of `owner` marked with `@reward`, bound to it, in the order they were written."""
    marked = _marked_of_class.get(type(owner))
    if marked is None:
        marked = _marked_of_class[type(owner)] = _find_marked(type(owner))
    return tuple(replace(each, function=each.function.__get__(owner)) for each in marked)


_marked_of_class: WeakKeyDictionary[type, tuple[Reward, ...]] = WeakKeyDictionary()


def _find_marked(owner: type) -> tuple[Reward, ...]:
    found: dict[str, Reward] = {}
    for cls in reversed(owner.__mro__):
        for attribute, value in vars(cls).items():
            marked = getattr(value, _MARK, None)
            if isinstance(marked, Reward) and inspect.isfunction(value):
                found[attribute] = replace(marked, function=value)
            else:
                found.pop(attribute, None)  # overridden without the mark
    return tuple(found.values())


def _events_with(episode: Episode, kind: ToolErrorKind) -> float:
    return float(sum(event.error_kind is kind for event in episode.tool_events))


SHAPING: Mapping[str, Callable[[Episode], float]] = {
    "per_turn": lambda episode: float(len(episode.replies)),
    "per_tool_call": lambda episode: float(len(episode.tool_events)),
    "per_tool_error": lambda episode: float(sum(not event.ok for event in episode.tool_events)),
    "per_malformed_call": lambda episode: _events_with(episode, ToolErrorKind.MALFORMED_CALL),
    "per_call_in_reasoning": lambda episode: float(sum(reply.calls_in_reasoning for reply in episode.replies)),
    "per_1000_chars": lambda episode: sum(len(reply.text) for reply in episode.replies) / 1000,
    "if_truncated": lambda episode: float(episode.truncated),
}
"""What `env.shaping={NAME: WEIGHT}` may count: each is a count over the episode so far; its increase counts in the turn
where it happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """How an environment's episodes are scored. Checked when made.

    Raises:
        UsageError: no component at all, two of one name, or an unknown name in `shaping`.
    """

    owner: str  # the environment's class, for messages
    whole: Callable[[Episode], Any] | None  # `ToolEnv.reward`: a number, or numbers by name
    rewards: Sequence[Reward] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    shaping: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.whole is None and not self.rewards:
            raise UsageError(f"{self.owner} has no reward: define reward(self, episode), or rewards = [...]")
        names = [each.name for each in self.rewards]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"{self.owner} has two rewards named '{twice[0]}'; rename one of them")
        for name, weight in self.shaping.items():
            if name not in SHAPING:
                raise ConfigError(f"env.shaping has no '{name}'. {did_you_mean(name, SHAPING)}")
            if not math.isfinite(weight):
                raise ConfigError(f"env.shaping.{name}={weight}: it must be a finite number")

    def weight_of(self, name: str) -> float:
        """The weight of a component of the final reward."""
        own = next((each.weight for each in self.rewards if each.name == name), 1.0)
        return float(self.weights.get(name, own))


class Scorer:
    """Scores one episode: `after_turn` each time the policy has spoken, then `at_end`.

    `left_running`: a reward function runs on in its thread after its deadline.
    """

    def __init__(self, scoring: Scoring, episode: Episode) -> None:
        self._scoring = scoring
        self._episode = episode
        self._sums: dict[str, float] = {each.name: 0.0 for each in scoring.rewards if each.per_turn}
        self._counts = dict.fromkeys(scoring.shaping, 0.0)
        self._scored_turns = 0
        self.left_running = False

    async def after_turn(self) -> float:
        """The reward of the turn that just ended.

        Raises:
            GraderError: a function raised, took too long, or gave no finite number.
        """
        total = self._shaping()
        if self._scored_turns == len(self._episode.replies):
            return total  # the run cut the episode off: no new turn
        self._scored_turns = len(self._episode.replies)
        per_turn = [each for each in self._scoring.rewards if each.per_turn]
        for name, value in (await self._values(per_turn)).items():
            self._sums[name] += value
            total += self._scoring.weight_of(name) * value
        return total

    async def at_end(self) -> tuple[float, dict[str, float]]:
        """The final reward, without that of turns, and all components by name.

        Raises:
            GraderError: as in `after_turn`.
        """
        task_id = self._episode.task.id
        named: dict[str, float] = {}
        if self._scoring.whole is not None:
            named |= checked_scores(await self._call("reward", self._scoring.whole), task_id)
        at_end = await self._values([each for each in self._scoring.rewards if not each.per_turn])
        both = sorted({*named} & {*at_end, *self._sums})
        if both:
            raise GraderError(f"task {task_id}: two rewards are named '{both[0]}'")
        named |= at_end
        total = sum(self._scoring.weight_of(name) * value for name, value in named.items())
        return total, {**named, **self._sums, **self._counts}

    def _shaping(self) -> float:
        total = 0.0
        for name, weight in self._scoring.shaping.items():
            count = SHAPING[name](self._episode)
            total += weight * (count - self._counts[name])
            self._counts[name] = count
        return total

    async def _values(self, rewards: Sequence[Reward]) -> dict[str, float]:
        """All at the same time."""
        if not rewards:
            return {}
        task_id = self._episode.task.id
        calls = [self._call(f"reward '{each.name}'", each.function) for each in rewards]
        values = [await calls[0]] if len(calls) == 1 else await _together(calls)
        return {each.name: _finite(value, each.name, task_id) for each, value in zip(rewards, values, strict=True)}

    async def _call(self, what: str, function: Callable[[Episode], Any]) -> Any:
        task_id, timeout_s = self._episode.task.id, self._scoring.timeout_s
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                if inspect.iscoroutinefunction(function):
                    return await function(self._episode)
                scored = await run_in_thread(function, self._episode)
                return await scored if inspect.isawaitable(scored) else scored
        except (EpisodeError, UsageError):
            raise
        except asyncio.CancelledError as error:
            self.left_running = True
            if is_cancelled():
                raise
            raise GraderError(f"task {task_id}: {what} was cancelled from inside") from error
        except Exception as error:  # seam: a bug in a reward is a grader error, never a plain 0
            if deadline.expired():
                self.left_running = True
                raise GraderError(f"task {task_id}: {what} took more than {timeout_s:g} s") from error
            reason = f"{what} raised {type(error).__name__}: {error}"
            own = own_error_in(error)
            raise (own or GraderError(f"task {task_id}: {reason}")) from (own.__cause__ if own else error)


async def _together(calls: Sequence[Any]) -> list[Any]:
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        own = own_error_in(failures)
        if own is None or is_cancelled():
            raise
        raise own from own.__cause__
    return [task.result() for task in running]


def checked_scores(scored: Any, task_id: str) -> dict[str, float]:
    """A reward's return value as finite floats by name (`{"reward": x}` for a plain number).

    Raises:
        GraderError: None, NaN, an empty dict, or anything that is no number; the task is named.
    """
    named = cast(Mapping[str, Any], scored if isinstance(scored, Mapping) else {"reward": scored})
    if not named:
        raise GraderError(f"task {task_id}: reward gave an empty dict")
    return {str(name): _finite(value, name, task_id) for name, value in named.items()}


def _finite(value: Any, name: Any, task_id: str) -> float:
    if isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    shown = shortened(repr(value), MAX_NAME_CHARS)
    raise GraderError(f"task {task_id}: reward '{name}' is {shown}, not a finite number")
