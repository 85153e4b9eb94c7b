"""What the documents tell people to type, and the environment the README shows."""

from __future__ import annotations

import re
import shlex
from datetime import date
from pathlib import Path

import pytest

from miles_agents import Message, Reply
from miles_agents.checks.env import check_env
from miles_agents.command import compose_environments, load_env_class
from miles_agents.configs.compose import parse_overrides
from miles_agents.report import main as report
from miles_agents.types import ToolCall

ROOT = Path(__file__).parents[1]
EXAMPLE = "examples/my_env.py"
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "envs").rglob("*.md")]


def indented_and_fenced(text: str) -> list[str]:
    """Lines of code: indented by four spaces, or within fences that name no other language than bash."""
    lines, fence = [], None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line[3:]
        elif (fence in ("", "bash") or fence is None) and (fence is not None or line.startswith("    ")):
            lines.append(line.strip())
    return lines


def commands(pattern: str) -> list[str]:
    """The command lines of all documents that match, their comments cut off."""
    found: list[str] = []
    for path in DOCUMENTS:
        text = re.sub(r"\\\n *", "", path.read_text(encoding="utf-8"))  # lines that go on
        inline = re.findall(r"`([^`\n]+)`", text)
        lines = [line.split("  #")[0].strip() for line in [*indented_and_fenced(text), *inline]]
        found += [line for line in lines if re.match(pattern, line)]
    return sorted(set(found))


def words_of(command: str) -> list[str]:
    return shlex.split(command.split("miles_agents.", 1)[1])


RUNS = [line for line in commands(r"python -m miles_agents\.(train|evaluate) (?!compare )") if "…" not in line]
MAKES = commands(r"make( |$)")
TYPED = commands(r"python -m (?:miles_agents|benchmarks)\b")


def test_the_documents_show_commands() -> None:
    assert len(RUNS) > 10
    assert len(MAKES) >= 4


@pytest.mark.parametrize("command", RUNS)
def test_every_command_line_of_the_documents_composes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name, *words = words_of(command)
    words = [word for word in words if word not in ("--help", "--cfg", "job")]
    compose_environments(name, parse_overrides(words))


@pytest.mark.parametrize("command", TYPED)
def test_every_command_of_the_documents_exists(command: str) -> None:
    module = re.split(r"[\s]", command.removeprefix("python -m "), maxsplit=1)[0]
    path = ROOT / Path(*module.split("."))
    assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("command", MAKES)
def test_every_make_target_of_the_documents_exists(command: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert set(named) <= targets


def test_report_answers_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        report(["--help"])
    assert end.value.code == 0
    assert "run folder" in capsys.readouterr().out


def test_the_readme_quotes_the_example_to_the_letter() -> None:
    example = (ROOT / EXAMPLE).read_text(encoding="utf-8")
    assert f"```python\n{example}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 22


def test_the_python_blocks_of_the_documents_are_python() -> None:
    blocks = [
        (path, block)
        for path in DOCUMENTS
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)
    ]
    assert len(blocks) >= 4
    for path, block in blocks:
        compile(block, str(path), "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


# --- the example ------------------------------------------------------------------------------------------------------


@pytest.fixture
def weekdays(monkeypatch: pytest.MonkeyPatch) -> type:
    monkeypatch.chdir(ROOT)
    return load_env_class(f"./{EXAMPLE}:Weekdays")


async def test_the_example_keeps_the_contract_and_scores_only_right_answers(weekdays: type) -> None:
    await check_env(weekdays())
    env = weekdays()
    task = next(iter(env.tasks("test")))
    for reply, reward in ((task.answer, 1.0), (f"It was a {task.answer}.", 0.0), ("", 0.0)):
        await env.reset(seed=0, options={"task": task})
        step = await env.step(Reply.of(reply))
        assert (step.reward, step.terminated) == (reward, True)


async def test_the_calendar_of_the_example_knows_the_answer(weekdays: type) -> None:
    env = weekdays()
    task = next(iter(env.tasks("train")))
    assert task.answer == "Sunday"  # 1917-07-15, the 700,000th day: (700000 − 1) mod 7 = 6 days after a Monday
    assert task.prompt == (Message.user("Which weekday was 1917-07-15? Answer with its name only."),)
    await env.reset(seed=0, options={"task": task})
    call = ToolCall(id="c0", name="calendar", arguments={"day": "1917-07-15"}, raw="")
    step = await env.step(Reply(text="", calls=(call,)))
    assert [message.text for message in step.observation] == ["Sunday"]


def test_the_splits_of_the_example_are_disjoint(weekdays: type) -> None:
    ids = [[task.id for task in weekdays().tasks(split)] for split in ("train", "validation", "test")]
    assert [len(each) for each in ids] == [2000, 2000, 2000]
    assert len({each for split in ids for each in split}) == 6000
    assert date.fromordinal(700_000) == date(1917, 7, 15)
    assert weekdays.__module__.startswith("_miles_agents_file_my_env")


def test_every_metric_is_in_the_table_of_the_run_folder() -> None:
    documented = set(re.findall(r"`([a-z]+/\w+)`", (ROOT / "docs/run-folder.md").read_text(encoding="utf-8")))
    prefixes = r"(?:reward|rollout|tool|train|eval|buffer|sync|time|throughput|sandbox)"
    written: set[str] = set()
    for path in (ROOT / "miles_agents").rglob("*.py"):
        if path.name not in ("plot.py", "progress.py", "html_report.py"):  # these read metrics
            written |= set(re.findall(rf'"({prefixes}/[a-z_]+)"', path.read_text(encoding="utf-8")))
    assert len(written) > 30
    assert sorted(written - documented) == []


def test_the_keys_of_the_summary_are_documented() -> None:
    text = (ROOT / "docs/run-folder.md").read_text(encoding="utf-8").partition("## summary.json")[2]
    source = (ROOT / "miles_agents/training.py").read_text(encoding="utf-8").partition("summary = {")[2]
    keys = re.findall(r'^ +"(\w+)":', source.partition("}\n")[0], re.M)
    assert len(keys) > 10
    assert [key for key in keys if f"`{key}`" not in text] == []
