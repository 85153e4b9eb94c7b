"""Reading an answer out of a reply and comparing it with the gold one. Nothing is evaluated."""

from miles_agents.answers.extraction import extract_boxed
from miles_agents.answers.numeric import numbers_equal, parse_number

__all__ = ["extract_boxed", "numbers_equal", "parse_number"]
