"""Every environment that is shipped withstands `python -m miles_agents.environments check`."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from miles_agents import registry
from miles_agents.configs.compose import config_names
from miles_agents.environments import main
from miles_agents.tools.sandboxes import probe, refusal

SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
FOUND = probe()
PACKAGES = {"reasoning_gym": "reasoning_gym", "textarena": "textarena", "gem": "gem"}  # environment → its package


class Case(NamedTuple):
    name: str
    words: tuple[str, ...] = ()
    sandbox: bool = False
    data: bool = False
    slow: bool = False
    warns: tuple[str, ...] = ()  # checks that only ask to be looked at, and why that is right is said beside


QUICK = ("env.tool_timeout_s=1",)
CASES = [
    Case("python_math", QUICK, sandbox=True),
    Case("gsm8k", QUICK, sandbox=True, data=True, warns=("secrets",)),  # a few questions name the number asked for
    Case("svamp", QUICK, sandbox=True, data=True, slow=True),
    Case("mawps", QUICK, sandbox=True, data=True, slow=True),
    Case("code", QUICK, sandbox=True, slow=True),
    Case("repo_fix", sandbox=True, slow=True),
    Case("search_qa"),
    Case("guess_number"),
    Case("wordle", warns=("secrets",)),  # the prompt lists the words it may be
    Case("self_play"),
    Case("shapes"),
    Case("judge", ("env.judge=rules",)),  # a model that judges is a server
    Case("reasoning_gym"),
]
NOT_TRIED = {
    "aime": "its files are on the hub only; the class is python_math's",
    "dapo_math": "its files are on the hub only; the class is python_math's",
    "gem": "a library of games, each with rules and chances of its own",
    "textarena": "a library of games, each with rules and chances of its own",
    "gymnasium_text": "has no game of its own; tests/test_foreign_envs.py gives it some",
}


def _parameter(case: Case) -> object:
    marks = [
        *([pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))] if case.sandbox else []),
        *([pytest.mark.slow, pytest.mark.timeout(600)] if case.slow else []),
    ]
    if case.data:
        folder = SHARED / case.name
        reason = f"no {folder}; set MILES_AGENTS_DATA to the data folder"
        marks.append(pytest.mark.skipif(not folder.is_dir(), reason=reason))
    if (package := PACKAGES.get(case.name)) and importlib.util.find_spec(package) is None:
        marks.append(pytest.mark.skip(reason=f"pip install 'miles-agents[{case.name}]'"))
    return pytest.param(case, marks=marks, id=case.name)


@pytest.mark.parametrize("case", [_parameter(case) for case in CASES])
def test_it_withstands_every_attack(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.data:
        monkeypatch.setenv("MILES_AGENTS_DATA", str(SHARED))
    code = main(["check", case.name, *case.words, "--tasks", "1", "--json"])
    rows = json.loads(capsys.readouterr().out)
    failed = [(row["name"], row["seen"]) for row in rows if row["outcome"] == "failed"]
    assert (code, failed) == (0, [])
    assert tuple(row["name"] for row in rows if row["outcome"] == "warning") == case.warns


def test_every_environment_is_checked_or_it_is_said_why_not() -> None:
    # From the text: other tests of this process may have registered environments of their own.
    registered = re.findall(r'^environments\.add_lazy\("(\w+)-v\d+"', inspect.getsource(registry), re.M)
    assert len(registered) >= 10
    assert {*config_names("env"), *registered} == {case.name for case in CASES} | NOT_TRIED.keys()
