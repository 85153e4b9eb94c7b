"""docs/engines.md shows examples/my_engine.py as it is, and both of its engines keep their contracts."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from command_runs import command

from miles_agents.checks.engine import check_engine
from miles_agents.errors import EngineError
from miles_agents.types import GenerateRequest, SamplingParams

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/my_engine.py"
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/engines.md").read_text(encoding="utf-8"), re.S)
WORDS = [f"env={ROOT}/examples/my_env.py:Weekdays", "engine=chat", "tasks=5", "run_dir=run"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("my_engine_of_the_docs", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_file_as_it_is() -> None:
    source = EXAMPLE.read_text(encoding="utf-8")
    head, chat, tokens = re.split(r"\n\n\n(?=class (?:Clerk|Dice)\()", source)
    assert [f"{chat}\n", tokens] == BLOCKS
    assert "import asyncio" in head


def test_the_chat_model_of_the_page_is_evaluated_by_the_command_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [line] = [line for line in EXAMPLE.read_text().splitlines() if line.startswith("python -m")]
    assert f"\n    {line}\n" in (ROOT / "docs/engines.md").read_text(encoding="utf-8")
    words = [word.replace("./examples", f"{ROOT}/examples") for word in line.split()[3:]]
    done = command("evaluate", *words, "tasks=5", "run_dir=run")
    assert done.code == 0, done.err
    results = json.loads(Path("run/results.json").read_text())
    assert (results["total"]["accuracy"], results["total"]["tool_calls"]) == (1.0, 1.0)
    assert results["model"] == words[2].partition("=")[2]
    # its arguments come from engine.options: of a tool that is not there nothing can be asked
    words = [*words, "engine.options={asks: clock}", "tasks=5", "run_dir=other"]
    done = command("evaluate", *words)
    assert done.code == 0, done.err
    results = json.loads(Path("other/results.json").read_text())
    assert (results["total"]["accuracy"], results["total"]["tool_calls"]) == (0.0, 0.0)


async def test_the_engine_of_the_page_keeps_the_contract(example: ModuleType) -> None:
    engine = example.Dice()
    await engine.start()
    await check_engine(engine, [np.arange(1, 9), np.arange(1, 30)])
    await engine.close()
    request = GenerateRequest(ids=np.arange(3), params=SamplingParams(max_new_tokens=4), request_id="r")
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(request)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine.name=./nowhere.py:Clerk"], "no file"),
        ([f"engine.name={EXAMPLE}:Clark"], "Did you mean 'Clerk'"),
        ([f"engine.name={EXAMPLE}:Dice"], "it is no miles_agents.contracts.chat_model.ChatModel class"),
        (["engine.name=locl"], "Did you mean 'local'"),
        ([f"engine.name={EXAMPLE}:Clerk", "engine.options={ask: x}"], "Did you mean 'asks'"),
        ([f"engine.name={EXAMPLE}:Clerk", "engine.optoins={}"], "engine.options"),
        (["engine.options={asks: x}"], "needs the class of the model: engine.name="),
        (["engine.name=openai"], "missing a required argument: 'server'"),
    ],
)
def test_an_engine_that_cannot_be_made_is_one_message_and_nothing_is_written(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("evaluate", *WORDS, *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_training_takes_no_chat_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("train", WORDS[0], "engine=chat", f"engine.name={EXAMPLE}:Clerk")
    assert (done.code, done.out) == (2, "")
    assert "gives no token ids" in done.err
