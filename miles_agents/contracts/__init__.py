"""The contracts between the parts. Nothing here imports torch."""

from miles_agents.contracts.algorithm import Algorithm, Annotation, LossInputs, LossOutput
from miles_agents.contracts.buffer import Draw, TrajectoryBuffer
from miles_agents.contracts.engine import RolloutEngine
from miles_agents.contracts.env import Env, EnvResources, Observation, ResetResult, StepResult
from miles_agents.contracts.rewards import SHAPING, Reward, as_reward, reward
from miles_agents.contracts.sandbox import (
    ExecResult,
    ExecStatus,
    Language,
    OnDemandSandbox,
    Sandbox,
    SandboxCounters,
    SandboxLimits,
    SandboxProvider,
)
from miles_agents.contracts.tool_env import ToolEnv
from miles_agents.contracts.tools import (
    FunctionTool,
    Shared,
    Tool,
    ToolContext,
    ToolLimits,
    ToolOutput,
    ToolSource,
    as_tool,
    tool,
)
from miles_agents.contracts.trainer import Trainer, TrainerRank
from miles_agents.contracts.weight_sync import WeightSync

__all__ = [
    "SHAPING",
    "Algorithm",
    "Annotation",
    "Draw",
    "Env",
    "EnvResources",
    "ExecResult",
    "ExecStatus",
    "FunctionTool",
    "Language",
    "LossInputs",
    "LossOutput",
    "Observation",
    "OnDemandSandbox",
    "ResetResult",
    "Reward",
    "RolloutEngine",
    "Sandbox",
    "SandboxCounters",
    "SandboxLimits",
    "SandboxProvider",
    "Shared",
    "StepResult",
    "Tool",
    "ToolContext",
    "ToolEnv",
    "ToolLimits",
    "ToolOutput",
    "ToolSource",
    "Trainer",
    "TrainerRank",
    "TrajectoryBuffer",
    "WeightSync",
    "as_reward",
    "as_tool",
    "reward",
    "tool",
]
