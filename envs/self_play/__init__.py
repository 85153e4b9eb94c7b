"""Two seats at one table: tic-tac-toe and a negotiation."""

from miles_agents.envs.self_play.env import SelfPlay

__all__ = ["SelfPlay"]
