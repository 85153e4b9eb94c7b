"""`textarena-v0`: the single-player games of the package `textarena`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from miles_agents.envs.foreign.env import ForeignEnv
from miles_agents.envs.foreign.game import Move, TextGame
from miles_agents.errors import EpisodeError, UsageError, did_you_mean
from miles_agents.registry import environments
from miles_agents.tools.optional import library

_ALONE = 0  # the player's number in a game for one


@environments.register("textarena-v0")
class TextArena(ForeignEnv):
    """A TextArena game for one player.

    The wrappers that TextArena puts around a game are taken off: they repeat the conversation in every observation,
    which the model's context already holds, and add brackets to moves. So `Wordle-v0`, `Wordle-v0-raw` and
    `Wordle-v0-train` are the same game here. The reward is the one TextArena gives at the end.

    Games for several players are refused: the others would have to be played by something, and their rewards are of
    one side against the other.

    Args:
        game: a name of TextArena's registry; "" is `GuessTheNumber-v0`.
        arguments: of the game, e.g. `{max_number: 50}`.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        max_turns: replies in one episode; a game has a limit of its own besides.
        step_timeout_s: seconds one call of the game may take.
        reward_low: the least reward of an episode; None is −1, what many games give for invalid moves.
        reward_high: the reward of a solved game; None is 1.
        system_prompt: a system message before the game's first text; "" gives none.
    """

    usual_game = "GuessTheNumber-v0"
    usual_rewards = (-1.0, 1.0)
    needs_package = "textarena"  # and the extra of this name; for lists, which do not import it

    def make_game(self) -> TextGame:
        """The game without its wrappers."""
        return _Game(self.game, self.arguments)


class _Game(TextGame):
    def __init__(self, game: str, arguments: Mapping[str, Any]) -> None:
        textarena = library("textarena", extra="textarena", needed_by="env=textarena")
        known = textarena.envs.registration.ENV_REGISTRY
        if game not in known:
            raise UsageError(f"env.game={game}: TextArena has no such game. {did_you_mean(game, known)}")
        try:
            env = textarena.make(game, **arguments)
        except LookupError as error:  # NLTK's: a list of words that is not on this machine
            raise UsageError(
                f"env.game={game} needs word lists that NLTK could not fetch: "
                "python -m nltk.downloader words averaged_perceptron_tagger_eng"
            ) from error
        except TypeError as error:
            raise UsageError(f"env.game={game} does not take env.arguments={dict(arguments)}: {error}") from error
        while isinstance(env, textarena.Wrapper):
            env = env.env
        self._env: Any = env
        self._name = game

    def reset(self, seed: int) -> str:
        try:
            self._env.reset(num_players=1, seed=seed)
        except AssertionError as error:
            if "player" not in str(error).lower():
                raise
            raise UsageError(
                f"env.game={self._name} is a game for several players ({error}); only games for one can be played here"
            ) from error
        self._check_alone()
        return self._said()

    def move(self, action: str) -> Move:
        done, _ = self._env.step(action=action)
        said = self._said()
        if not done:
            return Move(said, 0.0, False)
        rewards, facts = self._env.close()
        why = str(facts.get(_ALONE, {}).get("reason") or "")
        text = said if why in said else f"{said}\n{why}".strip()
        return Move(text, (rewards or {}).get(_ALONE, 0.0), True)

    def _check_alone(self) -> None:
        players = getattr(self._env.state, "num_players", 1)
        if players != 1:
            raise UsageError(f"env.game={self._name} is a game for {players} players; only games for one can be played")

    def _said(self) -> str:
        """What the game said since the last time, without the player's own words."""
        player, messages = self._env.get_observation()
        if player != _ALONE:
            raise EpisodeError(f"{self._name} gave the turn to player {player}")
        return "\n".join(text for speaker, text, _ in messages if speaker != _ALONE)
