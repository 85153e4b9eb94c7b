"""`search_qa-v0`: questions whose answer is found by going from document to document."""

from miles_agents.envs.search_qa.world import World

__all__ = ["World"]
