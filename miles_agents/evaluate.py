"""`python -m miles_agents.evaluate`: score a policy on held-out tasks, or compare two such evaluations.

python -m miles_agents.evaluate env=python_math model=outputs/last split=test samples=8
python -m miles_agents.evaluate compare RUN_A RUN_B
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from miles_agents.command import Invocation, finish, load_env_class, run_command
from miles_agents.configs.compose import Override

SUMMARY = """Score a language-model agent on held-out tasks.

To compare two evaluations by task: python -m miles_agents.evaluate compare RUN_A RUN_B [--json]"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code comes back."""
    words = sys.argv[1:] if words is None else words
    if words and words[0] == "compare":
        from miles_agents.comparison import main as compare

        return compare(words[1:])
    return run_command("evaluate", SUMMARY, _evaluate, words=words, saved_overrides=_saved_overrides)


def _evaluate(invocation: Invocation) -> int:
    config = invocation.config
    for env in invocation.environments.values() or [config.env]:
        load_env_class(env.id)
    if config.dry_run:
        from miles_agents.dry_run import describe_evaluation

        plans = [replace(config, env=env) for env in invocation.environments.values()] or [config]
        sys.stdout.write("\n".join(describe_evaluation(each) for each in plans))
        return 0
    from miles_agents.scoring import score  # loads torch

    return asyncio.run(score(invocation))


def _saved_overrides(given: Sequence[Override]) -> Sequence[str]:
    """For `resume=true`: the words the evaluation was begun with; nothing otherwise."""
    values = {override.key: override.value for override in given}
    if values.get("resume", "false").lower() not in ("true", "1", "yes", "on") or not values.get("run_dir"):
        return ()
    from miles_agents.runs.folder import RunFolder
    from miles_agents.runs.state import read_overrides
    from miles_agents.scoring.records import model_of

    with RunFolder.open(Path(values["run_dir"]).expanduser()) as run:
        model_of(run.path)
        return read_overrides(run.path)


if __name__ == "__main__":
    finish(main(sys.argv[1:]))
