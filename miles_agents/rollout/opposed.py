"""An environment in which some seats are taken: what is left is an environment of the other seats.

```
step(reply) ─► env.step ─► a taken seat is to act? ─► it hears, answers ─► env.step ─► … ─► what our seat is told
```

Training and evaluation seat opponents in the player, which keeps a trajectory of every seat. This is for those who
step an environment themselves: Gymnasium's door, a person at the keyboard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from miles_agents.contracts import Env, EnvResources, Observation, ResetResult, StepResult
from miles_agents.contracts.tools import Tool
from miles_agents.errors import ConfigError, EpisodeError, UsageError, did_you_mean
from miles_agents.rollout.policy import EpisodeSpec, Policy, ScriptedPolicy, Seat, SeatSpec
from miles_agents.types import Message, StopReason, Task, Trajectory

_GROUP = "opposed"  # of the episodes: nothing is compared here
_MOST_MOVES = 10_000  # of taken seats in a row; an environment that never gives the turn back is a bug


class Opposed(Env):
    """The environment of the seats that are not taken.

    Rewards are those seats' own, as in `StepResult`: where one is left it is an environment of one seat, and neither
    `seat_rewards` nor `seat_components` are in `info`. `info["opponents"]` holds what the taken seats said since the
    last step, as (seat, text) pairs. A reward that a seat gets before its first step is paid with that step.

    Args:
        env: has several seats.
        others: who plays which seat.

    Raises:
        ConfigError: no such seat, or all are taken.
    """

    def __init__(self, env: Env, others: Mapping[str, Policy]) -> None:
        check_seats(env.seats, others)
        self._env = env
        self._others = dict(others)
        self.seats = tuple(name for name in env.seats if name not in others)
        self.reward_range = env.reward_range
        self.splits = env.splits  # type: ignore[misc]  # of this instance
        self._playing: _Playing | None = None

    def bind(self, resources: EnvResources) -> None:
        """As the wrapped environment."""
        self._env.bind(resources)

    def tasks(self, split: str) -> Iterable[Task]:
        """As the wrapped environment."""
        return self._env.tasks(split)

    def all_tools(self) -> tuple[Tool, ...]:
        """As the wrapped environment."""
        return self._env.all_tools()

    async def open_shared(self) -> None:
        """As the wrapped environment."""
        await self._env.open_shared()

    async def close_shared(self) -> None:
        """As the wrapped environment."""
        await self._env.close_shared()

    async def group_rewards(self, group: Sequence[Trajectory]) -> Sequence[Mapping[str, float]] | None:
        """As the wrapped environment."""
        return await self._env.group_rewards(group)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin, and let the taken seats act until another's turn comes.

        Raises:
            EpisodeError: the episode ended before that, or a taken seat's engine failed.
        """
        await self._leave()
        begun = await self._env.reset(seed=seed, options=options)
        task = (options or {}).get("task") or Task(id="", prompt=())
        drawn = int(np.random.default_rng().integers(2**63 - 1)) if seed is None else seed
        episode = EpisodeSpec(task=task, group_id=_GROUP, seed=drawn)
        seats = {
            name: policy.seat(SeatSpec(episode=episode, name=name, alone=False))
            for name, policy in self._others.items()
        }
        playing = _Playing(seats, tools=begun.info.get("tools", ()), acting=self._env.seats[0])
        self._playing = playing
        result = await self._answered(playing, StepResult(begun.observation, 0.0, False, False, begun.info))
        if result.terminated or result.truncated:
            raise EpisodeError(f"the episode ended before {' or '.join(self.seats)} could act")
        return ResetResult(result.observation, {**begun.info, **result.info})

    async def step(self, action: Any) -> StepResult:
        """A reply of the seat whose turn it is, and those of the taken seats after it.

        Raises:
            UsageError: no episode is running.
            EpisodeError: the episode is lost.
        """
        playing = self._current()
        actor = playing.acting
        result = await self._env.step(action)
        playing.pay(result)
        return self._paid(await self._answered(playing, result), playing, actor)

    async def truncate(self, reason: str) -> StepResult:
        """As the wrapped environment; with the rewards of the seats that are left."""
        playing = self._current()
        actor = playing.acting
        result = await self._env.truncate(reason)
        playing.pay(result)
        return self._paid(result, playing, actor)

    async def close(self) -> None:
        """As the wrapped environment; what the taken seats hold is freed."""
        await self._leave()
        await self._env.close()

    async def _leave(self) -> None:
        playing, self._playing = self._playing, None
        if playing is not None:
            for seat in playing.seats.values():
                await seat.close()

    async def _answered(self, playing: _Playing, result: StepResult) -> StepResult:
        """Let taken seats act as long as it is their turn; the result that the next of the others is shown."""
        said: list[tuple[str, str]] = []
        for _ in range(_MOST_MOVES):
            playing.pass_on(result.info, self._env.seats)
            if result.terminated or result.truncated or playing.acting not in playing.seats:
                break
            result = await self._move(playing, result.observation, said)
            playing.pay(result)
        else:
            raise EpisodeError(f"the turn never came back to {' or '.join(self.seats)}")
        over = result.terminated or result.truncated
        told: Observation = () if over and playing.acting in playing.seats else result.observation
        return result._replace(observation=told, info={**result.info, "opponents": tuple(said)})

    async def _move(self, playing: _Playing, observation: Observation, said: list[tuple[str, str]]) -> StepResult:
        name = playing.acting
        seat = playing.seats[name]
        await seat.hear(observation, playing.tools)
        sampled = await seat.generate()
        if sampled is None:
            return await self._env.truncate("context")
        if sampled.turn.stop_reason is StopReason.ABORT:
            raise EpisodeError(f"the reply of {name} was aborted")
        reply = seat.read(sampled, first_call=playing.calls.get(name, 0))
        playing.calls[name] = playing.calls.get(name, 0) + len(reply.calls)
        said.append((name, reply.content))
        return await self._env.step(reply)

    def _paid(self, result: StepResult, playing: _Playing, actor: str) -> StepResult:
        """The result with what the seats that are left get, and nothing of the others'."""
        shares = {name: playing.owed.pop(name, 0.0) for name in self.seats}
        components = result.info.get("seat_components", {})
        info = {key: value for key, value in result.info.items() if key not in ("seat_rewards", "seat_components")}
        if len(self.seats) > 1:
            info["seat_rewards"] = shares
            info["seat_components"] = {name: components.get(name, {}) for name in self.seats}
        if actor in components:
            info["rewards"] = dict(components[actor])
        if result.terminated or result.truncated:
            info.pop("seat", None)
        return result._replace(reward=shares[actor], info=info)

    def _current(self) -> _Playing:
        if self._playing is None:
            raise UsageError("step() before reset(), or after close(): call reset() first")
        return self._playing


@dataclass(slots=True)
class _Playing:
    """An episode under way."""

    seats: dict[str, Seat]  # those that are taken
    tools: Any
    acting: str
    calls: dict[str, int] = field(default_factory=dict)  # of each taken seat so far
    owed: dict[str, float] = field(default_factory=dict)  # rewards that were not paid out yet

    def pass_on(self, info: Mapping[str, Any], seats: Sequence[str]) -> None:
        """Let the seat act that the environment names."""
        name = str(info.get("seat", self.acting))
        if name not in seats:
            raise EpisodeError(f"the environment names a seat {name!r}; its seats are {', '.join(seats)}")
        self.acting = name

    def pay(self, result: StepResult) -> None:
        """Note who gets what."""
        shares: Mapping[str, float] = result.info.get("seat_rewards", {self.acting: result.reward})
        for name, reward in shares.items():
            self.owed[name] = self.owed.get(name, 0.0) + float(reward)


def check_seats(seats: Sequence[str], taken: Iterable[str], *, key: str = "opponents") -> None:
    """Refuse opponents on seats that are not there, and on all of them.

    Args:
        seats: of the environment.
        taken: by opponents.
        key: what the operator typed them under.

    Raises:
        ConfigError: which seat, and what seats there are.
    """
    taken = list(taken)
    for seat in taken:
        if seat not in seats:
            raise ConfigError(f"{key}: no seat {seat!r} in this environment. {did_you_mean(seat, seats)}")
    if taken and set(taken) == set(seats):
        raise ConfigError(f"{key} takes all seats ({', '.join(seats)}); leave out the one to play")


def scripted_player(player: Callable[[str, np.random.Generator], Any], *, name: str) -> ScriptedPolicy:
    """A policy from a scripted player: (what the seat was told last, its own generator) → its reply."""

    def answer(messages: Sequence[Message], rng: np.random.Generator) -> Any:
        return player(messages[-1].text if messages else "", rng)

    return ScriptedPolicy(answer, name=name)
