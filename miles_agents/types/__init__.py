"""The core types: plain data, numpy only."""

from miles_agents.types.batch import Batch, collate, collate_samples
from miles_agents.types.episode import Episode
from miles_agents.types.generation import (
    Completion,
    FloatArray,
    GenerateRequest,
    IntArray,
    LogprobsMode,
    PauseMode,
    SamplingParams,
    StopReason,
    VersionSpan,
)
from miles_agents.types.messages import ImagePart, Message, Part, Reply, Role, TextPart, ToolCall
from miles_agents.types.tasks import Task
from miles_agents.types.trajectory import (
    EpisodeStatus,
    ToolEvent,
    TrainingSample,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

__all__ = [
    "Batch",
    "Completion",
    "Episode",
    "EpisodeStatus",
    "FloatArray",
    "GenerateRequest",
    "ImagePart",
    "IntArray",
    "LogprobsMode",
    "Message",
    "Part",
    "PauseMode",
    "Reply",
    "Role",
    "SamplingParams",
    "StopReason",
    "Task",
    "TextPart",
    "ToolCall",
    "ToolEvent",
    "TrainingSample",
    "Trajectory",
    "TrajectoryGroup",
    "Turn",
    "VersionSpan",
    "collate",
    "collate_samples",
]
