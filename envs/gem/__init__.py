"""Environments of the package `gem-llm`."""

from miles_agents.envs.gem.env import Gem

__all__ = ["Gem"]
