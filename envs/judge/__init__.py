"""Open-ended tasks, scored by a rubric through a model."""

from miles_agents.envs.judge.env import Judged

__all__ = ["Judged"]
