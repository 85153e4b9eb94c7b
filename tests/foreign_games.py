"""Text games as others write them: for the tests of the adapters."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np

from miles_agents.envs.foreign import ForeignEnv, Move, TextGame
from miles_agents.gym.spaces import UnicodeText


class HotCold(gymnasium.Env[str, str]):
    """Guess a number; draws from its own `np_random`, as Gymnasium asks."""

    def __init__(self, high: int = 8, turns: int = 4) -> None:
        self.high = high
        self.turns = turns
        self.observation_space = UnicodeText(200)
        self.action_space = gymnasium.spaces.Text(3, min_length=1, charset="0123456789")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1, self.high + 1))
        self.guesses = 0
        return f"Guess a number from 1 to {self.high}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.guesses += 1
        guess = int(action)
        if guess == self.number:
            return "Right.", 1.0, True, False, {}
        return ("Higher." if guess < self.number else "Lower."), 0.0, False, self.guesses >= self.turns, {}


class Counting(gymnasium.Env[int, str]):
    """Its observations are numbers."""

    observation_space = gymnasium.spaces.Discrete(5)
    action_space = UnicodeText(9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        return 3, {}


class RudeGame(TextGame):
    """Prints, draws from the global generators, blocks or fails as it is told."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.closed = False

    def reset(self, seed: int) -> str:
        random.seed(seed)
        np.random.seed(seed)
        self.secret = random.randint(0, 10**9) + int(np.random.randint(10**9))
        print("LOADING", threading.current_thread().name)
        sys.stderr.write("and COMPLAINING\n")
        return str(self.settings.get("begin", f"secret {self.secret}"))

    def move(self, action: str) -> Move:
        print("MOVED", action)
        match action:
            case "draw":
                return Move(f"{random.random()} {np.random.random()}", 0.0, False)
            case "block":
                time.sleep(self.settings.get("seconds", 3.0))
            case "raise":
                raise KeyError("lost")
            case "exit":
                sys.exit(3)
            case "nan":
                return Move("oops", float("nan"), False)
            case "number":
                return Move(7, 0.0, False)  # type: ignore[arg-type]
            case "cut":
                return Move("no more", 0.5, False, True)
            case "both":
                return Move("over", 0.5, True, True)
            case "empty":
                return Move("", 0.25, True)
        return Move("go on", 0.25, False)

    def close(self) -> None:
        self.closed = True


class Rude(ForeignEnv):
    """`RudeGame` as an environment."""

    def __init__(self, *, game: str = "rude", **settings: Any) -> None:
        super().__init__(game=game, train_size=5, validation_size=3, test_size=2, max_turns=6, **settings)
        self.games: list[RudeGame] = []

    def make_game(self) -> TextGame:
        self.games.append(RudeGame(**self.arguments))
        return self.games[-1]
