"""`code-v0`: write a function or a program; hidden tests run in the sandbox, their results are compared on the host."""

from miles_agents.envs.code.checks import Check, read_check
from miles_agents.envs.code.judge import Judge, JudgeLimits

__all__ = ["Check", "Judge", "JudgeLimits", "read_check"]
