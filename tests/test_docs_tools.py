"""The pages on tools and sandboxes show the code of the examples, and the examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from miles_agents import ToolError
from miles_agents.checks.env import check_env, play
from miles_agents.checks.sandbox import check_sandbox
from miles_agents.contracts import EnvResources, ToolContext, as_tool
from miles_agents.errors import SandboxError
from miles_agents.registry import load_object
from miles_agents.tools.sandboxes import NamespaceSandboxes, ScriptedSandboxes, probe, refusal

ROOT = Path(__file__).parents[1]
FOUND = probe()
in_sandbox = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]
SECTIONS = [
    ("docs/tools.md", "tool", "function"),
    ("docs/tools.md", "tool", "class"),
    ("docs/tools.md", "tool", "environment"),
    ("docs/sandboxes.md", "sandbox", "provider"),
    ("docs/sandboxes.md", "sandbox", "use"),
]


def of_example(name: str, attribute: str):
    return load_object(f"{ROOT}/examples/my_{name}.py:{attribute}")


def section(name: str, part: str) -> str:
    """What stands between `# NAME: PART` and the next such line of the example."""
    text = (ROOT / f"examples/my_{name}.py").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^ *# {name}: {part}\n(.*?)(?=^ *# {name}: )", text, re.S | re.M)
    return found.strip("\n")


@pytest.mark.parametrize(("page", "name", "part"), SECTIONS)
def test_the_page_shows_the_code_of_the_example(page: str, name: str, part: str) -> None:
    blocks = re.findall(r"```python\n(.*?)\n```", (ROOT / page).read_text(encoding="utf-8"), re.S)
    assert section(name, part) in blocks


@pytest.mark.parametrize("name", ["tool", "sandbox"])
def test_every_part_of_the_example_is_on_a_page(name: str) -> None:
    text = (ROOT / f"examples/my_{name}.py").read_text(encoding="utf-8")
    assert re.findall(rf"^ *# {name}: (\w+)$", text, re.M) == [
        *(part for _, which, part in SECTIONS if which == name),
        "end",
    ]


# --- my_tool.py -------------------------------------------------------------------------------------------------------


async def test_the_function_answers_or_says_what_to_do_instead() -> None:
    shelf_of = as_tool(of_example("tool", "shelf_of"))
    assert (await shelf_of.call({"topic": "Tea"}, ToolContext())).text == "shelves/tea.txt"
    with pytest.raises(ToolError, match="give one word"):
        await shelf_of.call({"topic": "../x"}, ToolContext())
    assert shelf_of.schema()["function"]["parameters"]["required"] == ["topic"]


async def test_the_class_counts_words_of_a_file_of_the_sandbox() -> None:
    tool = of_example("tool", "CountWords")(max_bytes=20)
    async with await ScriptedSandboxes([]).open() as sandbox:
        await sandbox.write_file("a", b"one three  seven")
        await sandbox.write_file("b", b"x" * 21)
        context = ToolContext(sandbox=sandbox)
        assert (await tool.call({"path": "a"}, context)).text == "3"
        assert (await tool.call({"path": "a", "least": 5}, context)).text == "2"
        with pytest.raises(ToolError, match="there is no file 'c'"):
            await tool.call({"path": "c"}, context)
        with pytest.raises(ToolError, match="has 21 bytes; at most 20"):
            await tool.call({"path": "b"}, context)
        with pytest.raises(ToolError, match="least"):
            await tool.call({"path": "a", "least": 0}, context)


async def test_the_environment_with_both_keeps_the_contract_and_its_oracle_scores_full() -> None:
    env = of_example("tool", "Tidy")()
    env.bind(EnvResources(sandboxes=ScriptedSandboxes([])))
    await check_env(env)
    task = next(iter(env.tasks("test")))
    results = await play(env, task, env.oracle(task), seed=0)
    assert results[1].observation[0].text == task.answer
    assert results[-1].reward == 1.0


# --- my_sandbox.py ----------------------------------------------------------------------------------------------------


async def test_sessions_are_made_ahead_and_all_are_closed_at_the_end() -> None:
    inner = ScriptedSandboxes([])
    async with of_example("sandbox", "ReadySandboxes")(inner, ready=2) as sandboxes:
        assert len(inner.opened) == 2
        first = await sandboxes.open()
        assert len(inner.opened) == 2
        await sandboxes.open()
        await sandboxes.open()
        assert len(inner.opened) == 3
        assert sandboxes.counters.starts == 3
        await first.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandboxes.open()


async def test_sessions_that_were_not_used_are_closed_too_and_so_they_are_if_the_start_fails() -> None:
    inner = ScriptedSandboxes([])
    async with of_example("sandbox", "ReadySandboxes")(inner, ready=2):
        pass
    assert [session.closed for session in inner.opened] == [True, True]
    inner = ScriptedSandboxes([], fail_opens=[1])
    with pytest.raises(SandboxError):
        await of_example("sandbox", "ReadySandboxes")(inner, ready=2).start()
    assert [session.closed for session in inner.opened] == [True]


class TestInASandbox:
    pytestmark = in_sandbox

    async def test_the_launcher_keeps_the_contract_of_sandboxes(self) -> None:
        async with of_example("sandbox", "ReadySandboxes")(NamespaceSandboxes(preload=())) as sandboxes:
            assert await check_sandbox(sandboxes) == []

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["examples/my_sandbox.py"], "2 kept ready: reward 1"),
            (["-m", "miles_agents.play", "env=./examples/my_tool.py:Tidy", "oracle=true"], "reward 1"),
        ],
    )
    def test_the_example_runs_as_it_says(self, words: list[str], says: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert says in done.stdout
