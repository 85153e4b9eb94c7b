"""`python -m miles_agents.evaluate`: score a policy on held-out tasks.

python -m miles_agents.evaluate env=python_math model=outputs/last split=test samples=8
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from miles_agents.command import Invocation, finish, load_env_class, run_command

SUMMARY = "Score a language-model agent on held-out tasks."


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code comes back."""
    return run_command("evaluate", SUMMARY, _evaluate, words=words)


def _evaluate(invocation: Invocation) -> int:
    env_class = load_env_class(invocation.config.env.id)
    if invocation.config.dry_run:
        from miles_agents.dry_run import describe_evaluation

        sys.stdout.write(describe_evaluation(invocation.config))
        return 0
    from miles_agents.scoring import score  # loads torch

    return asyncio.run(score(invocation, env_class))


if __name__ == "__main__":
    finish(main(sys.argv[1:]))
