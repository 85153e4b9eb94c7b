"""Policy-optimisation algorithms, one small file each. Nothing here imports torch when it is imported."""

from miles_agents.algorithms.aggregation import Aggregation
from miles_agents.algorithms.grpo import GRPO, KLEstimator, Normalize, ZeroVariance
from miles_agents.algorithms.supervised import Supervised

__all__ = ["GRPO", "Aggregation", "KLEstimator", "Normalize", "Supervised", "ZeroVariance"]
