"""Text games written by others, played as environments of ours."""

from miles_agents.envs.foreign.env import ForeignEnv
from miles_agents.envs.foreign.game import Move, TextGame

__all__ = ["ForeignEnv", "Move", "TextGame"]
