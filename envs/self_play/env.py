"""`self_play-v0`: two seats play a game against each other; each has a conversation and a reward of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from miles_agents.contracts import Env, Observation, ResetResult, StepResult
from miles_agents.envs.self_play.game import SEATS, Game, other
from miles_agents.envs.self_play.negotiation import Negotiation
from miles_agents.envs.self_play.tic_tac_toe import TicTacToe
from miles_agents.envs.splits import split_of
from miles_agents.errors import ConfigError, UsageError, did_you_mean
from miles_agents.registry import environments
from miles_agents.types import Message, Reply, Task

GAMES: dict[str, type[Game]] = {"negotiation": Negotiation, "tic_tac_toe": TicTacToe}


@environments.register("self_play-v0")
class SelfPlay(Env):
    """Two seats, `first` and `second`, play a game: tic-tac-toe, or a negotiation over items.

    One policy may play both, or two policies one each (`rollout.opponents={second: perfect}`, or a model's folder).
    Rewards, by seat: `game`, what the game gives (tic-tac-toe: 1 for a win, 0.5 for a draw; a negotiation: the share
    of the 10 points); and how many replies were `invalid`, which is recorded alone. A seat whose replies are invalid
    too often forfeits: it gets 0 and the other one 1. An episode that is cut off gives both 0.

    Args:
        game: `tic_tac_toe` or `negotiation`.
        max_invalid: a seat forfeits with its reply of this number that is no move.

    Raises:
        ConfigError: an unknown game, or `max_invalid` below 1.
    """

    seats = SEATS

    def __init__(self, *, game: str = "tic_tac_toe", max_invalid: int = 3) -> None:
        if game not in GAMES:
            raise ConfigError(f"env.game={game}: unknown game. {did_you_mean(game, GAMES)}")
        if max_invalid < 1:
            raise ConfigError(f"env.max_invalid={max_invalid}: it must be at least 1")
        self._game_class = GAMES[game]
        self._max_invalid = max_invalid
        self._name = game
        self._game: Game | None = None
        self._invalid = dict.fromkeys(SEATS, 0)
        self._told: set[str] = set()
        self._tasks: dict[str, list[Task]] = {}

    @property
    def opponents(self) -> Mapping[str, Any]:
        """Scripted players by name: (what the seat was told last, generator) → its reply."""
        return self._game_class.opponents

    def tasks(self, split: str) -> Iterable[Task]:
        """How games begin; each start is in one split.

        Raises:
            ConfigError: no such split.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if not self._tasks:
            self._tasks = {name: [] for name in self.splits}
            for start in self._game_class.starts():
                prompt = Message.user(f"{self._game_class.rules}\n\n{self._opening(start.setting)}")
                task = Task(
                    id=f"{self._name}/{start.id}",
                    prompt=(prompt,),
                    metadata={"game": self._name, "setting": dict(start.setting)},
                    split=split_of(prompt.text),
                )
                self._tasks[task.split].append(task)
        return tuple(self._tasks[split])

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetResult:
        """Begin a game.

        Raises:
            UsageError: no task was given.
        """
        task = (options or {}).get("task")
        if not isinstance(task, Task):
            raise UsageError("reset() needs options={'task': Task(…)}")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._game = self._game_class(task.metadata["setting"])
        self._invalid = dict.fromkeys(SEATS, 0)
        self._told = set()
        seat = self._game.to_act
        return ResetResult(self._tell(self._game, seat), {"tools": [], "seat": seat})

    async def step(self, action: Reply) -> StepResult:
        """A move of the seat whose turn it is."""
        game = self._current()
        seat = game.to_act
        problem = game.play(seat, action.content)
        if problem:
            self._invalid[seat] += 1
            if self._invalid[seat] >= self._max_invalid:
                return self._over(seat, {seat: 0.0, other(seat): 1.0}, said=problem)
            again = Message.user(f"{problem}\n\n{game.told(seat, at_first=False)}")
            return StepResult((again,), 0.0, False, False, {"seat": seat})
        if game.result is not None:
            return self._over(seat, game.result)
        return StepResult(self._tell(game, game.to_act), 0.0, False, False, {"seat": game.to_act})

    async def truncate(self, reason: str) -> StepResult:
        """An unfinished game is worth nothing to either side."""
        seat = self._current().to_act
        result = self._over(seat, dict.fromkeys(SEATS, 0.0))
        return StepResult((), 0.0, False, True, {**result.info, "truncated_by": reason})

    async def close(self) -> None:
        """Forget the game."""
        self._game = None

    def oracle(self, task: Task) -> Iterable[Reply]:
        """Replies of both seats, in turn, that give the first one everything."""
        return [Reply.of(text) for text in self._game_class.winning_line(task.metadata["setting"])]

    def _over(self, seat: str, rewards: Mapping[str, float], *, said: str = "") -> StepResult:
        """The end, with a closing message for the seat that acted last."""
        self._game = None
        closing = Message.user(f"{said}\n\nThe game is over: you get {rewards[seat]:g}.".strip())
        info = {
            "seat_rewards": dict(rewards),
            "seat_components": {name: {"game": rewards[name], "invalid": float(self._invalid[name])} for name in SEATS},
            "rewards": {"game": rewards[seat], "invalid": float(self._invalid[seat])},
        }
        return StepResult((closing,), rewards[seat], True, False, info)

    def _tell(self, game: Game, seat: str) -> Observation:
        at_first = seat not in self._told
        self._told.add(seat)
        told = game.told(seat, at_first=at_first)
        return (Message.user(f"{self._game_class.rules}\n\n{told}" if at_first else told),)

    def _opening(self, setting: Mapping[str, Any]) -> str:
        game = self._game_class(setting)
        return game.told(game.to_act, at_first=True)

    def _current(self) -> Game:
        if self._game is None:
            raise UsageError("step() before reset(), or after the game ended: call reset() first")
        return self._game
