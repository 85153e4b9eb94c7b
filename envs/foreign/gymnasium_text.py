"""`gymnasium_text-v0`: any `gymnasium.Env` whose observations and actions are texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_agents.envs.foreign.env import ForeignEnv
from miles_agents.envs.foreign.game import Move, TextGame
from miles_agents.errors import UsageError
from miles_agents.registry import environments, is_object_spec, load_object


@environments.register("gymnasium_text-v0")
class GymnasiumText(ForeignEnv):
    """A `gymnasium.Env` of texts.

    Args:
        game: an id in Gymnasium's registry, `module:Env-v0` (the module is imported first and registers it), or a class
            of your own: `./file.py:Class`.
        arguments: of the environment, as `gymnasium.make` takes them.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        max_turns: replies in one episode.
        step_timeout_s: seconds one call may take.
        reward_low: the least reward of an episode.
        reward_high: the reward of an episode that counts as solved.
        system_prompt: a system message before the first observation; "" gives none.
    """

    def make_game(self) -> TextGame:
        """The environment, made by Gymnasium."""
        return _GymnasiumGame(self.game, self.arguments)


class _GymnasiumGame(TextGame):
    def __init__(self, game: str, arguments: Mapping[str, Any]) -> None:
        import gymnasium  # not at import: listing environments loads no library

        if ".py:" in game and is_object_spec(game):
            made = load_object(game)(**arguments)
        else:
            try:
                made = gymnasium.make(game, disable_env_checker=True, **arguments)
            except (gymnasium.error.Error, ModuleNotFoundError) as error:
                raise UsageError(f"env.game={game}: {' '.join(str(error).split())}") from error
        if not isinstance(made, gymnasium.Env):
            raise UsageError(f"env.game={game} is {made!r:.80}, not a gymnasium.Env")
        self._env: Any = made

    def reset(self, seed: int) -> str:
        observation, _ = self._env.reset(seed=seed)
        if not isinstance(observation, str):
            raise UsageError(
                f"its observations are {type(observation).__name__}, not texts: wrap it in a "
                "gymnasium.ObservationWrapper that writes them down"
            )
        return observation

    def move(self, action: str) -> Move:
        if not self._env.action_space.contains(action):
            return Move(f"{action[:200]!r} is not an action here. Allowed: {self._env.action_space}", 0.0, False)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return Move(observation, reward, bool(terminated), bool(truncated))

    def close(self) -> None:
        self._env.close()
