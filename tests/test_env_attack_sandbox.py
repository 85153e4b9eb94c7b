"""The attack on environments whose tools run in sandboxes."""

from pathlib import Path

import pytest
from envs_bad.sound import Sound

from miles_agents.checks.env_attack import CHECKS, attack_env, describe_rows, failures
from miles_agents.checks.env_row import Outcome
from miles_agents.checks.env_subject import AttackSettings
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.registry import load_object
from miles_agents.tools import PythonTool
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal

BAD = Path(__file__).parent / "envs_bad"
FAST = AttackSettings(tasks_per_split=1, slack_s=2.0)
FOUND = probe()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


def failed_names(rows):
    return [row.name for row in failures(rows)]


@pytest.fixture
async def sandboxes():
    async with NamespaceSandboxes(preload=()) as provider:
        yield provider


async def test_a_grader_that_lies_in_the_models_sandbox_is_found(sandboxes):
    rows = await attack_env(load_object(f"{BAD}/grader_files.py:Bad"), sandboxes=sandboxes, settings=FAST)
    assert failed_names(rows) == ["grader files"], describe_rows(rows)
    (failed,) = failures(rows)
    assert "an agent that writes to the grader's files through 'python' scores 1, more than 0" in failed.seen
    assert "Grade where the model was not" in failed.advice


async def test_python_math_passes_every_check(sandboxes):
    rows = await attack_env(lambda: PythonMath(tool_timeout_s=1.0), sandboxes=sandboxes, settings=FAST)
    assert [row.outcome for row in rows] == [Outcome.PASSED] * len(CHECKS), describe_rows(rows)


async def test_a_session_that_stays_open_is_found(sandboxes):
    class Leaks(Sound):
        tools = (PythonTool(timeout_s=1),)

        async def begin(self, task):
            self.second = await self.resources.sandboxes.open()

    rows = await attack_env(Leaks, sandboxes=sandboxes, settings=FAST)
    assert failed_names(rows) == ["close"], describe_rows(rows)
    assert "there is still open sandbox sessions: 1" in failures(rows)[0].seen
