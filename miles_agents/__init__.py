"""miles_agents: train language-model agents by reinforcement learning over multi-turn, tool-using episodes."""

from miles_agents.contracts import Env, Reward, Tool, ToolContext, ToolEnv, ToolLimits, ToolOutput, reward, tool
from miles_agents.errors import EpisodeError, InfrastructureError, ToolError
from miles_agents.registry import environments as _environments
from miles_agents.types import Episode, Message, Reply, Task, Trajectory

__version__ = "0.1.0"

register = _environments.register

__all__ = [
    "Env",
    "Episode",
    "EpisodeError",
    "InfrastructureError",
    "Message",
    "Reply",
    "Reward",
    "Task",
    "Tool",
    "ToolContext",
    "ToolEnv",
    "ToolError",
    "ToolLimits",
    "ToolOutput",
    "Trajectory",
    "register",
    "reward",
    "tool",
]
