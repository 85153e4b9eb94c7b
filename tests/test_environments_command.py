"""`python -m miles_agents.environments`: list, check and new, and what they say to bad input."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from miles_agents.checks.env_attack import CHECKS
from miles_agents.environments import main
from miles_agents.listing import Listing

ROOT = Path(__file__).parents[1]
ROOMS = f"{ROOT}/examples/rooms.py:Rooms"
BAD = Path(__file__).parent / "envs_bad"

# What the others of this file are made of.
PLAIN = """
import miles_agents as ma

class Plain(ma.ToolEnv):
    '''Says a number back.

    More about it.
    '''

    def __init__(self, *, rows: int = 4) -> None:
        self.rows = rows

    def tasks(self, split):
        for n in range(self.rows):
            prompt = (ma.Message.user(f"{n}, {split}?"),)
            yield ma.Task(id=f"{split}{n}", prompt=prompt, answer=f"{split} {n}", split=split)

    def reward(self, episode):
        return float(episode.final.content == episode.task.answer)

    def oracle(self, task):
        return [ma.Reply.of(task.answer)]
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """The command, run in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        code = main(list(words))
        out, err = self._capsys.readouterr()
        return Said(code, out, err)


@pytest.fixture
def environments(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with PLAIN as plain.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN, encoding="utf-8")
    return tmp_path


def refused(said: Said, *parts: str) -> None:
    """Bad input: exit code 2, one message that holds these parts, nothing else."""
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err, said.err


# --- list -------------------------------------------------------------------------------------------------------------

# A package as pip would have installed it: modules, and entry points that name what is and is not in them.
MODULES = {
    "ext_good.py": PLAIN,
    "ext_next.py": PLAIN.replace("Says a number back", "Says it better"),
    "ext_loud.py": PLAIN + "\nprint('LOUD')\nimport sys\nsys.stderr.write('LOUD')\n",
    "ext_slow.py": "import threading\nthreading.Event().wait()\n",
    "ext_dying.py": "import os\nos._exit(7)\n",
    "ext_broken.py": "import a_package_that_is_not_here\n",
    "ext_extra.py": PLAIN.replace("    def __init__", "    needs_package = 'gone'\n\n    def __init__", 1),
    "ext_mute.py": re.sub(r"'''.*?'''", "pass", PLAIN, flags=re.S),
    "ext_heavy.py": "import torch\n" + PLAIN,
}
POINTS = {
    **{
        f"{name}-v0": f"ext_{name}:Plain"
        for name in ("good", "loud", "slow", "dying", "broken", "extra", "mute", "heavy")
    },
    "good-v1": "ext_next:Plain",
    "absent-v0": "ext_good:NoSuchClass",
    "missing-v0": "ext_missing:Plain",
    "no_env-v0": "pathlib:Path",
}
LIST = """
import sys
from miles_agents.environments import main
code = main(sys.argv[1:])
sys.stderr.write(" ".join({"torch", "transformers", "ext_good", "gymnasium"} & set(sys.modules)))
raise SystemExit(code)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    for name, text in MODULES.items():
        (site / name).write_text(text, encoding="utf-8")
    info = site / "ext-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ext\nVersion: 1.0\n")
    points = "".join(f"{name} = {target}\n" for name, target in POINTS.items())
    (info / "entry_points.txt").write_text(f"[miles_agents.envs]\n{points}")
    return site


def listed(site: Path, *words: str) -> Said:
    environment = {**os.environ, "PYTHONPATH": f"{site}:{ROOT}", "MILES_AGENTS_DATA": ""}
    done = subprocess.run(
        [sys.executable, "-c", LIST, "list", *words], env=environment, capture_output=True, text=True, timeout=90
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def as_json(installed: Path) -> dict[str, dict[str, Any]]:
    said = listed(installed, "--json", "--timeout-s", "12")
    assert said.code == 0
    assert said.err == "", "something heavy, or an environment's own module, was loaded"
    rows = json.loads(said.out)
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
    return {row["name"]: row for row in rows}


def test_every_shipped_environment_is_listed_with_its_tools_tasks_and_description(
    as_json: dict[str, dict[str, Any]],
) -> None:
    shipped = {name: row for name, row in as_json.items() if row["id"] not in POINTS}
    assert len(shipped) >= 16
    assert [name for name, row in shipped.items() if not row["description"]] == []
    assert shipped["python_math"]["splits"] == {"train": 8192, "validation": 256, "test": 512}
    assert shipped["python_math"]["tools"] == ["python"]
    assert shipped["guess_number"]["tools"] == []
    known = [name for name, row in shipped.items() if not row["problem"]]
    assert {"code", "python_math", "search_qa", "self_play", "wordle"} <= set(known)
    assert all(shipped[name]["splits"] for name in known)


def test_a_preset_says_what_it_sets_and_where_its_data_is_looked_for(as_json: dict[str, dict[str, Any]]) -> None:
    assert as_json["gsm8k"]["id"] == "python_math-v0"
    assert as_json["gsm8k"]["settings"] == {"dataset": "gsm8k", "skip_unparsable": True}
    assert as_json["gsm8k"]["tools"] == ["python"]  # known before the data is


@pytest.mark.parametrize("package", ["gem", "textarena", "reasoning_gym"])
def test_a_missing_extra_is_shown_with_what_to_type(package: str, as_json: dict[str, dict[str, Any]]) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    assert f"pip install 'miles-agents[{package}]'" in as_json[package]["problem"]


def test_environments_of_other_packages_are_listed_by_their_entry_points(as_json: dict[str, dict[str, Any]]) -> None:
    good = as_json["good"]
    assert (good["id"], good["description"]) == ("good-v1", "Says it better.")  # a bare name is the newest
    assert as_json["good-v0"]["description"] == "Says a number back."
    assert (good["tools"], good["splits"]) == ([], {"train": 4, "validation": 4, "test": 4})
    assert as_json["loud"]["splits"] == good["splits"]
    assert as_json["heavy"]["splits"] == good["splits"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("slow", "not known within 12 s; to wait longer, type --timeout-s 60"),
        ("dying", "its process ended with exit code 7"),
        ("broken", "ModuleNotFoundError: No module named 'a_package_that_is_not_here'"),
        ("absent", "'ext_good' has no 'NoSuchClass'. Allowed: "),
        ("missing", "cannot import module 'ext_missing' of 'ext_missing:Plain': no module named 'ext_missing'"),
        ("no_env", "not a subclass of miles_agents.Env"),
        ("extra", "env=extra needs the package gone: pip install 'miles-agents[gone]'"),
    ],
)
def test_one_that_cannot_be_looked_at_says_why_and_holds_up_nothing(
    name: str, problem: str, as_json: dict[str, dict[str, Any]]
) -> None:
    assert problem in as_json[name]["problem"]


def test_for_people_each_has_a_line_for_what_it_is_its_tools_its_tasks_and_what_is_missing(
    as_json: dict[str, dict[str, Any]], environments: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = [Listing(**row) for row in as_json.values()]  # looked at once for all tests
    monkeypatch.setattr("miles_agents.environments.list_environments", lambda **given: listings)
    said = environments("list")
    assert (said.code, said.err) == (0, "")
    assert "LOUD" not in said.out
    rows = dict(re.findall(r"^(\w[\w-]*) +(.*(?:\n .*)*)", said.out, re.M))
    lines = {name: [line.strip() for line in text.splitlines()] for name, text in rows.items()}
    assert lines["good"] == ["Says it better.", "tools: none", "tasks: train 4, validation 4, test 4"]
    assert lines["mute"][0] == "(its class has no docstring)"
    assert lines["python_math"][1:] == ["tools: python", "tasks: train 8,192, validation 256, test 512"]
    assert lines["extra"][-1].startswith("not ready: env=extra needs the package gone")
    assert "Nothing was fetched for this list" in said.out


def test_a_configuration_of_ones_own_is_listed(folder: Path, environments: Command) -> None:
    (folder / "mine/env").mkdir(parents=True)
    text = "# Short games.\ndefaults: [_schema, _self_]\nid: guess_number-v0\nmax_turns: 3\n"
    (folder / "mine/env/short_games.yaml").write_text(text)
    said = environments("list", "--config-dir", "mine")
    assert said.code == 0
    assert re.search(r"^short_games +Short games\.\n +guess_number-v0 with env\.max_turns=3$", said.out, re.M)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--timeout-s", "0"), ("0 is no number above 0",)),
        (("--timeout-s", "nan"), ("nan is no number above 0",)),
        (("--config-dir", "nowhere"), ("no folder nowhere",)),
        (("python_math",), ("unrecognized arguments: python_math", "list [-h]")),
    ],
)
def test_a_list_refuses_bad_words(words: tuple[str, ...], parts: tuple[str, ...], environments: Command) -> None:
    refused(environments("list", *words), *parts)


# --- check ------------------------------------------------------------------------------------------------------------


def test_a_sound_environment_has_exit_code_0_and_a_row_for_each_check(environments: Command) -> None:
    said = environments("check", ROOMS, "--tasks", "1")
    assert said.code == 0
    *rows, summary = said.out.splitlines()
    assert [re.match(r"(passed|skipped) +(.*?)  ", row)[2] for row in rows] == [check.name for check in CHECKS]
    assert summary == "23 passed, 1 skipped"


def test_a_fault_has_exit_code_1_what_was_seen_and_what_to_do(environments: Command) -> None:
    said = environments("check", f"{BAD}/oracle.py:Bad", "--tasks", "2")
    assert said.code == 1
    assert re.search(
        r"^failed   oracle           the right answer scores full\n"
        r"         seen: in 1 of 4 tasks the oracle scores less than 1, e\.g\. task room-0: 0\n"
        r"         do:   Let the reward accept the answer that the task itself calls right, or mend the oracle\.$",
        said.out,
        re.M,
    )
    assert said.out.splitlines()[-1] == "22 passed, 1 failed, 1 skipped; to be mended: oracle"


def test_as_json_the_report_holds_the_rows_and_nothing_that_the_environment_prints(
    folder: Path, environments: Command
) -> None:
    (folder / "loud.py").write_text(PLAIN.replace("        for n in", "        print('LOUD')\n        for n in"))
    said = environments("check", "./loud.py:Plain", "--json", "--tasks", "1")
    assert said.code == 0
    rows = json.loads(said.out)
    assert [row["name"] for row in rows] == [check.name for check in CHECKS]
    assert rows[0].keys() == {"name", "must", "outcome", "seen", "advice", "duration_s"}
    assert "LOUD" in said.err


def test_the_words_after_the_name_are_the_environments_keys(folder: Path, environments: Command) -> None:
    said = environments("check", "./plain.py:Plain", "env.rows=2")
    assert (said.code, said.out.splitlines()[0]) == (0, "passed   tasks            train 2, validation 2, test 2")
    said = environments("check", "./plain.py:Plain", "env.rows=0")
    assert said.code == 1
    assert "seen: tasks('train') gave none" in said.out


def test_a_module_a_registered_name_and_a_configuration_can_be_named(environments: Command) -> None:
    for name in ("envs_bad.sound:Sound", "guess_number-v0", "guess_number"):
        assert environments("check", name, "--tasks", "1").code == 0


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("class Plain(", r"it raised SyntaxError: '\(' was never closed .*, from .*faulty\.py:1"),
        ("import not_installed_here\n", r"ModuleNotFoundError: .*not_installed_here.*, from .*faulty\.py:1"),
        (PLAIN.replace("self.rows = rows", "self.rows = {}[rows]"), r"it raised KeyError: 4, from .*faulty\.py:11"),
    ],
    ids=["syntax", "import", "init"],
)
def test_code_that_cannot_be_loaded_is_a_fault_with_its_place(
    source: str, seen: str, folder: Path, environments: Command
) -> None:
    (folder / "faulty.py").write_text(source)
    said = environments("check", "./faulty.py:Plain")
    assert said.code == 1
    assert re.search(rf"^failed   loading .*\n +seen: .*{seen}$", said.out, re.M), said.out
    assert said.out.endswith("1 failed; to be mended: loading\n")
    assert "Traceback" not in said.out + said.err


def test_one_that_never_answers_is_given_up_after_the_timeout(environments: Command) -> None:
    said = environments("check", f"{BAD}/waiting.py:Bad", "--timeout-s", "0.5")
    assert said.code == 1
    assert "seen: not over after 0.5 s" in said.out
    assert said.out.splitlines()[-1].endswith("to be mended: episodes")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ((), ("say what to check",)),
        (("env.rows=3",), ("say what to check",)),
        (("pythn_math",), ("unknown environment 'pythn_math'. Did you mean 'python_math'",)),
        (("./plain.py",), ("name the class too, env=./plain.py:MyEnv",)),
        (("./gone.py:Plain",), ("no file", "gone.py")),
        (("./plain.py:Plane",), ("has no 'Plane'. Did you mean 'Plain'?",)),
        (("gone.env:Plain",), ("no module named 'gone'",)),
        (("pathlib:Path",), ("not a subclass of miles_agents.Env",)),
        (("./plain.py:Plain", "env.row=3"), ("env.row", "rows")),
        (("./plain.py:Plain", "env.rows=many"), ("env.rows", "many")),
        (("./plain.py:Plain", "steps=3"), ("'steps' is no key of a check",)),
        (("./plain.py:Plain", "rows"), ("rows",)),
        (("./plain.py:Plain", "--tasks", "0"), ("0 is no whole number of 1 or more",)),
        (("./plain.py:Plain", "--timeout-s", "soon"), ("soon is no number above 0",)),
        (("./plain.py:Plain", "--seed", "x"), ("invalid int value: 'x'",)),
        (("./plain.py:Plain", "--jsn"), ("unrecognized arguments: --jsn",)),
        (("./plain.py:Plain", "--sandbox", "dockr"), ("dockr", "docker")),
        (("gsm8k", "env.data=./gone"), ("gone",)),
        (("wordle", "env.candidates=1000"), ("env.candidates=1000: it must be from 8 to 48",)),
    ],
    ids=lambda each: " ".join(each) if each else "nothing",
)
def test_a_check_refuses_bad_words(
    words: tuple[str, ...], parts: tuple[str, ...], folder: Path, environments: Command
) -> None:
    refused(environments("check", *words), *parts)


# --- new --------------------------------------------------------------------------------------------------------------


def test_a_new_package_passes_its_check_and_says_what_to_type_next(folder: Path, environments: Command) -> None:
    said = environments("new", "tea_shop")
    assert said.code == 0
    written = sorted(str(path.relative_to(folder)) for path in (folder / "tea_shop").rglob("*") if path.is_file())
    assert written == [
        "tea_shop/README.md",
        "tea_shop/pyproject.toml",
        "tea_shop/tea_shop/__init__.py",
        "tea_shop/tea_shop/env.py",
        "tea_shop/tests/test_tea_shop.py",
    ]
    assert [line for line in said.out.splitlines() if line in written] == [
        written[1], written[0], *written[2:]
    ]  # fmt: skip
    assert "next: cd tea_shop\n" in said.out
    assert "check ./tea_shop/env.py:TeaShop\n" in said.out
    assert environments("check", "./tea_shop/tea_shop/env.py:TeaShop", "--tasks", "1").code == 0


@pytest.mark.parametrize("there", ["README.md", "tea_shop/env.py", "tests/test_tea_shop.py"])
def test_nothing_is_written_where_one_of_the_files_is_there(there: str, folder: Path, environments: Command) -> None:
    kept = folder / "tea_shop" / there
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    refused(environments("new", "tea_shop"), there, "nothing is overwritten; give --folder")
    assert [path for path in (folder / "tea_shop").rglob("*") if path.is_file()] == [kept]
    assert kept.read_text() == "mine"


def test_a_link_to_nowhere_is_not_followed(folder: Path, environments: Command) -> None:
    (folder / "tea_shop").mkdir()
    (folder / "tea_shop/README.md").symlink_to(folder / "elsewhere")
    refused(environments("new", "tea_shop"), "README.md is there already")
    assert not (folder / "elsewhere").exists()


def test_another_folder_can_be_given_and_other_files_in_it_stay(folder: Path, environments: Command) -> None:
    (folder / "a place").mkdir()
    (folder / "a place/notes.txt").write_text("mine")
    said = environments("new", "tea_shop", "--folder", "a place")
    assert said.code == 0
    assert "next: cd 'a place'\n" in said.out
    assert (folder / "a place/tea_shop/env.py").is_file()
    assert (folder / "a place/notes.txt").read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_told(folder: Path, environments: Command) -> None:
    (folder / "tea_shop").write_text("mine")
    refused(environments("new", "tea_shop"), "tea_shop")
    assert (folder / "tea_shop").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("", ("'' cannot be the name of a package",)),
        ("tea-shop", ("cannot be the name of a package", "e.g. tea_shop")),
        ("tea_shop-v0", ("cannot be the name of a package", "e.g. tea_shop")),
        ("1st", ("cannot be the name of a package",)),
        ("class", ("cannot be the name of a package",)),
        ("thé", ("cannot be the name of a package",)),
        ("../up", ("cannot be the name of a package", "e.g. up")),
        ("python_math", ("there is an environment 'python_math-v0' already",)),
        ("json", ("there is a Python module 'json' already",)),
        ("dist", ("there is a Python module 'dist' already",)),  # its code would be in dist/, where wheels go
        ("miles_agents", ("there is a Python module 'miles_agents' already",)),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(
    name: str, parts: tuple[str, ...], folder: Path, environments: Command
) -> None:
    before = sorted(folder.rglob("*"))
    refused(environments("new", name), *parts)
    assert sorted(folder.rglob("*")) == before


# --- the command itself -----------------------------------------------------------------------------------------------


def test_without_a_word_it_says_what_there_is(environments: Command) -> None:
    said = environments()
    assert said.code == 2
    assert environments("--help") == (0, said.out, "")
    for name in ("list", "check", "new"):
        assert f"miles_agents.environments {name}" in said.out
        helped = environments(name, "--help")
        assert helped.code == 0
        assert helped.out.startswith(f"usage: python -m miles_agents.environments {name}")


def test_an_unknown_command_is_refused_with_the_nearest_one(environments: Command) -> None:
    refused(environments("chek"), "unknown command 'chek'. Did you mean 'check'?")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from miles_agents.environments import main; main(['check', '--help']); "
        "raise SystemExit(' '.join({'torch', 'transformers', 'ray', 'sympy', 'gymnasium'} & set(sys.modules)) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
