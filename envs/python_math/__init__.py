"""`python_math-v0`: arithmetic word problems, or problems from a file, answered with a Python tool."""

from miles_agents.envs.python_math.problems import Problem, generate_problems

__all__ = ["Problem", "generate_problems"]
