"""An evaluation from its configuration to its tables; `course.py` says in which order."""

from miles_agents.scoring.course import score
from miles_agents.scoring.tables import results_table

__all__ = ["results_table", "score"]
