"""The page on rewards shows the code of the example, and the example scores as the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import Scripted, call_text, pool_of, turn_of

import miles_agents as ma
from miles_agents.contracts import Draw
from miles_agents.contracts.rewards import SHAPING
from miles_agents.registry import load_object
from miles_agents.rollout.metrics import rollout_metrics
from miles_agents.types import GenerateRequest, TrajectoryGroup

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/my_rewards.py"
PAGE = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (python -m miles_agents\..*)$", PAGE, re.M)


def section(part: str) -> str:
    """What stands between `# rewards: PART` and the next such line of the example."""
    text = EXAMPLE.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^ *# rewards: {part}\n(.*?)(?=^ *# rewards: )", text, re.S | re.M)
    return found.strip("\n")


def test_the_page_shows_the_code_of_the_example_and_nothing_else() -> None:
    blocks = re.findall(r"```python\n(.*?)\n```", PAGE, re.S)
    assert blocks == [section(part) for part in ("function", "service", "environment")]


def test_the_page_lists_what_shaping_counts() -> None:
    assert re.findall(r"^\| `(per_\w+|if_\w+)` \|", PAGE, re.M) == list(SHAPING)


@pytest.mark.parametrize("command", [each for each in COMMANDS if ".train" not in each])
def test_the_commands_of_the_page_run(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", [each for each in COMMANDS if ".train" in each])
def test_the_configurations_of_the_page_are_taken(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:], "dry_run=true"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def bill() -> type[ma.ToolEnv]:
    """The example's environment."""
    loaded: type[ma.ToolEnv] = load_object(f"{EXAMPLE}:Bill")
    return loaded


async def _played(scripts: Sequence[Sequence[str]], **attributes: Any) -> TrajectoryGroup:
    """One draw of the task "What do 2 pieces of pear and one quince cost together?" (2 · 29 + 53 = 111)."""

    def made() -> ma.Env:
        env = bill()()
        for name, value in attributes.items():
            setattr(env, name, value)
        return env

    def script(request: GenerateRequest) -> str:
        sibling = int(request.request_id.split("/")[-2])
        return scripts[sibling][turn_of(request)]

    workers = Scripted(script, max_tokens=1600, max_new=200).workers(pool_of(made), group_size=len(scripts))
    task = next(iter(bill()().tasks("train")))
    return await workers.play_group(Draw(index=0, task=task, version=0))


PEAR, QUINCE = call_text("price", fruit="pear"), call_text("price", fruit="quince")


async def test_the_components_of_the_example_are_weighted_as_the_page_says() -> None:
    both, again = PEAR + "\n" + QUINCE, "Thank you for waiting so long; I gladly say that it is 111"
    group = await _played([[both, "111"], [PEAR, QUINCE, PEAR, again], [both, "112"]])
    # answer + 0.1·brief − 0.05·repeated + 0.2·fewest_calls; given and friendly weigh 0.
    assert [each.reward for each in group.trajectories] == pytest.approx([1 + 0.1 + 0.2, 1 - 0.05, 0.0], abs=1e-12)
    assert group.trajectories[1].rewards == {
        "answer": 1.0,
        "given": 1.0,
        "brief": 0.0,
        "friendly": 1.0,
        "repeated": 1.0,
        "fewest_calls": 0.0,
    }
    assert [turn.reward for turn in group.trajectories[1].turns] == pytest.approx([0, 0, -0.05, 1], abs=1e-12)
    metrics = rollout_metrics([group], trainer_version=0)
    assert metrics["reward/fewest_calls"] == pytest.approx(1 / 3)
    assert metrics["reward/friendly"] == pytest.approx(1 / 3)
    assert metrics["reward/raw_reward"] == pytest.approx(2.25 / 3)


async def test_weights_and_shaping_of_the_configuration_go_first() -> None:
    wrong_call = call_text("price", fruit="plane")
    weights = {"given": 0.0, "brief": 0.5, "fewest_calls": 0.0}
    group = await _played([[wrong_call, "111"]], reward_weights=weights, shaping={"per_tool_error": -0.25})
    assert group.trajectories[0].reward == pytest.approx(1 + 0.5 - 0.25, abs=1e-12)
    assert [turn.reward for turn in group.trajectories[0].turns] == pytest.approx([-0.25, 1.5], abs=1e-12)
