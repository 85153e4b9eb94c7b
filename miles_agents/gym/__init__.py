"""Every environment as a synchronous `gymnasium.Env`: importing this registers them all with Gymnasium.

    gymnasium.make("miles_agents.gym:miles_agents/python_math-v0", level=1)

See `docs/gymnasium.md`.
"""

from miles_agents.gym.doors import BothDoors, Shown, both_doors
from miles_agents.gym.environment import TextEnv
from miles_agents.gym.registration import make, register_all
from miles_agents.gym.spaces import UnicodeText
from miles_agents.gym.texts import CutText
from miles_agents.gym.wrappers import RecordTrajectory, ScaleReward, TokenBudget

__all__ = [
    "BothDoors",
    "CutText",
    "RecordTrajectory",
    "ScaleReward",
    "Shown",
    "TextEnv",
    "TokenBudget",
    "UnicodeText",
    "both_doors",
    "make",
    "register_all",
]

register_all()
