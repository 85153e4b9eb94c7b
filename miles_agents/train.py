"""`python -m miles_agents.train`: train an agent.

python -m miles_agents.train env=python_math
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from miles_agents.command import Invocation, finish, load_env_class, run_command
from miles_agents.configs.compose import Override

SUMMARY = "Train a language-model agent by reinforcement learning over episodes with tools."


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code comes back."""
    return run_command("train", SUMMARY, _train, words=words, saved_overrides=_saved_overrides)


def _train(invocation: Invocation) -> int:
    env_class = load_env_class(invocation.config.env.id)
    if invocation.config.dry_run:
        from miles_agents.dry_run import describe_plan

        sys.stdout.write(describe_plan(invocation.config))
        return 0
    from miles_agents.training import train  # loads torch

    return asyncio.run(train(invocation, env_class))


def _saved_overrides(given: Sequence[Override]) -> Sequence[str]:
    """For `resume=true`: the words the run was started with; nothing otherwise."""
    values = {override.key: override.value for override in given}
    if values.get("resume", "false").lower() not in ("true", "1", "yes", "on"):
        return ()
    from miles_agents.runs.folder import RunFolder
    from miles_agents.runs.state import read_overrides

    folder = Path(values.get("run_dir", "outputs/last")).expanduser()
    with RunFolder.open(folder) as run:
        return [*read_overrides(run.path), f"run_dir={run.path}"]


if __name__ == "__main__":
    finish(main(sys.argv[1:]))
