"""Games of the package `textarena`."""

from miles_agents.envs.textarena.env import TextArena

__all__ = ["TextArena"]
