"""What hostile code tries in a sandbox, as a suite that every launcher passes.

    async with MySandboxes(limits=abuse.LIMITS) as provider:
        findings = await abuse.check_abuse(provider)        # [] means that nothing got through

Each case says in one sentence what must hold. It looks at what the calls gave, and at this side: bait files and
listeners that nobody may touch, and processes that nobody may leave.
"""

from miles_agents.checks.abuse.bait import Bait
from miles_agents.checks.abuse.case import (
    LIMITS,
    AbuseCase,
    After,
    Dial,
    Outcome,
    Pause,
    ReadFile,
    Reset,
    Run,
    Step,
    WriteFile,
)
from miles_agents.checks.abuse.suite import CASES, check_abuse, play

__all__ = [
    "CASES",
    "LIMITS",
    "AbuseCase",
    "After",
    "Bait",
    "Dial",
    "Outcome",
    "Pause",
    "ReadFile",
    "Reset",
    "Run",
    "Step",
    "WriteFile",
    "check_abuse",
    "play",
]
