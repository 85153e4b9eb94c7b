"""`gem-v0`: the environments of the package `gem-llm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_agents.envs.foreign.env import ForeignEnv
from miles_agents.envs.foreign.game import Move, TextGame
from miles_agents.envs.foreign.isolation import root_logger_kept
from miles_agents.errors import UsageError, did_you_mean
from miles_agents.registry import environments
from miles_agents.tools.optional import library


@environments.register("gem-v0")
class Gem(ForeignEnv):
    r"""A GEM environment without tools: games (`game:…`), puzzles (`rg:…`, made by reasoning-gym).

    The final move is written in `\boxed{}`, as the games say themselves. GEM marks the end by a turn limit as both
    terminated and truncated; it is a rule of the game, so here it is terminated. The reward of an episode is the sum
    of its moves'.

    The `rg:…` environments draw from a fixed list of questions whatever the seed: their splits share questions. Give
    `arguments={seed: …}` another value for a list to test on.

    Args:
        game: a name of GEM's registry; "" is `game:GuessTheNumber-v0-easy`.
        arguments: of the environment, e.g. `{max_number: 50}`.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        max_turns: replies in one episode; a game has a limit of its own besides.
        step_timeout_s: seconds one call of the game may take.
        reward_low: the least reward of an episode; None is −0.1, what GEM gives for a move that cannot be read.
        reward_high: the reward of a solved game; None is 1.
        system_prompt: a system message before the game's first text; "" gives none.
    """

    usual_game = "game:GuessTheNumber-v0-easy"
    usual_rewards = (-0.1, 1.0)
    needs_package = "gem"  # and the extra of this name; for lists, which do not import it

    def make_game(self) -> TextGame:
        """The environment, without GEM's wrappers."""
        return _Game(self.game, self.arguments)


class _Game(TextGame):
    def __init__(self, game: str, arguments: Mapping[str, Any]) -> None:
        with root_logger_kept():  # importing GEM sets up logging
            gem = library("gem", extra="gem", needed_by="env=gem")
            known = library("gem.envs.registration", extra="gem", needed_by="env=gem").ENV_REGISTRY
        if game not in known:
            raise UsageError(f"env.game={game}: GEM has no such environment. {did_you_mean(game, known)}")
        try:
            self._env: Any = gem.make(game, **arguments)
        except ImportError as error:
            raise UsageError(f"env.game={game} needs a package that is not here: {error}") from error

    def reset(self, seed: int) -> str:
        observation, info = self._env.reset(seed=seed)
        text: str = _with_hints(observation, info)
        return text

    def move(self, action: str) -> Move:
        observation, reward, terminated, truncated, info = self._env.step(action)
        if terminated or truncated:
            return Move(observation, reward, bool(terminated), bool(truncated and not terminated))
        return Move(_with_hints(observation, info), reward, False)


def _with_hints(observation: Any, info: Mapping[str, Any]) -> Any:
    """GEM's own wrappers put `info["prefix"]` and `info["suffix"]` around an observation."""
    if not isinstance(observation, str):
        return observation
    lines = (str(info.get("prefix") or ""), observation.rstrip("\n"), str(info.get("suffix") or ""))
    return "\n".join(line for line in lines if line)
