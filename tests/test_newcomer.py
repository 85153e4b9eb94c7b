"""A newcomer in an empty folder who does what docs/environments.md says, to the letter, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

from miles_agents.tools.sandboxes import probe, refusal

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
FOUND = probe()


def section(title: str) -> str:
    """The text below a heading of the page, to the next one."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def code(title: str) -> tuple[str, str]:
    """The file that a section shows: its name and its text."""
    name = re.search(r"`(examples/\w+\.py)`", section(title))
    block = re.search(r"^```python\n(.*?)^```", section(title), re.M | re.S)
    assert name is not None
    assert block is not None
    return name[1], block[1]


def commands(title: str) -> list[str]:
    """The lines of a section that are to be typed."""
    without_code = re.sub(r"^```.*?^```", "", section(title), flags=re.M | re.S)
    return [line.strip() for line in without_code.splitlines() if line.startswith("    ")]


class Said(NamedTuple):
    code: int
    out: str
    err: str


class Newcomer:
    """Somebody with a shell, a folder, and a Python of their own in which miles_agents is installed.

    Args:
        home: where the Python is made, and the folder.
    """

    def __init__(self, home: Path) -> None:
        self.python = home / "python"
        self.folder = home / "empty"
        self.folder.mkdir()
        venv.EnvBuilder(with_pip=False, symlinks=True).create(self.python)
        # Its packages are those of the tests: installing them again would take minutes and a network.
        (own,) = self.python.glob("lib/python*/site-packages")
        shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({path!r})" for path in sorted(shared)]
        (own / "shared.pth").write_text("\n".join([*lines, str(ROOT)]) + "\n", encoding="utf-8")

    def save(self, name: str, text: str) -> None:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def type(self, command: str, *, timeout_s: float = 100) -> Said:
        """Run a line in the folder; `cd` moves on."""
        if command.startswith("cd "):
            self.folder /= shlex.split(command)[1]
            return Said(0 if self.folder.is_dir() else 1, "", "")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
        environment |= {"PATH": f"{self.python / 'bin'}:{environment.get('PATH', '')}", "PIP_NO_INDEX": "1"}
        environment["PIP_NO_BUILD_ISOLATION"] = "0"  # "no" to isolation: pip would fetch setuptools
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def follow(self, title: str) -> list[str]:
        """Type all that a section says; the outputs."""
        told = []
        for command in commands(title):
            said = self.type(command)
            assert said.code == 0, f"{command}\n{said.out[-3000:]}\n{said.err[-3000:]}"
            told.append(said.out)
        assert told, f"'{title}' shows nothing to type"
        return told


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


@pytest.mark.parametrize("title", ["Write one", "A tool of its own"])
def test_the_page_shows_files_that_are_tested_to_the_letter(title: str) -> None:
    name, text = code(title)
    assert text == (ROOT / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 30


@pytest.mark.sandbox
@pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))
@pytest.mark.timeout(500)  # the starter model may have to be made first
def test_an_environment_of_one_file_is_checked_played_trained_on_and_evaluated(
    newcomer: Newcomer, starter: Path
) -> None:
    newcomer.save(*code("Write one"))

    (checked,) = newcomer.follow("Check it")
    assert checked.splitlines()[-1] == "24 passed"

    by_oracle, typed = newcomer.follow("Play it")
    assert "reward 1\n" in by_oracle
    assert "[tool python]\n478\n" in typed
    assert "reward 1\n" in typed

    newcomer.follow("Train on it")
    run = newcomer.folder / "outputs/last"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = {row["step"]: row["reward/raw_reward"] for row in rows if "reward/raw_reward" in row}
    assert sorted(rewards) == [1, 2, 3, 4, 5]
    assert rewards[1] < 0.1
    assert rewards[5] > 0.25  # 0.56 on the machine this was written on
    (results,) = newcomer.folder.glob("outputs/eval-*/results.json")
    assert json.loads(results.read_text())["total"]["accuracy"] > 0.25


def test_an_environment_with_a_tool_of_its_own_is_checked_and_played(newcomer: Newcomer) -> None:
    newcomer.save(*code("A tool of its own"))
    checked, typed = newcomer.follow("A tool of its own")
    assert checked.splitlines()[-1] == "23 passed, 1 skipped"
    assert "[tool door_code]\n955900\n" in typed
    assert "reward 0\n" in typed


def test_a_package_is_begun_tested_installed_and_known_by_its_name(newcomer: Newcomer) -> None:
    begun = newcomer.folder
    _, _, checked, tested, _, by_name, played = newcomer.follow("Give it away")
    assert checked.splitlines()[-1] == "23 passed, 1 skipped"
    assert "1 passed" in tested
    assert by_name == checked
    assert "reward 1\n" in played

    newcomer.folder = begun  # known everywhere, not only in its folder
    preset = re.search(r"`DIR/env/hard_rooms\.yaml`.*?^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    assert preset is not None
    newcomer.save("settings/env/hard_rooms.yaml", preset[1])
    listed = newcomer.type("python -m miles_agents.environments list --config-dir settings")
    assert re.search(r"^hard_rooms +What is .*\n +my_rooms-v0 with env\.max_turns=2\n", listed.out, re.M)
    assert re.search(
        r"^my_rooms +What is the code of a room's door\? Only the tool knows\.\n +tools: door_code\n"
        r" +tasks: train 800, validation 100, test 100$",
        listed.out,
        re.M,
    )
    again = newcomer.type("python -m miles_agents.environments new my_rooms")
    assert again.code == 2
    assert "'my_rooms-v0' already" in again.err


def test_the_entry_point_of_the_page_is_the_packages_and_its_module_can_be_named(newcomer: Newcomer) -> None:
    newcomer.type("python -m miles_agents.environments new my_rooms")
    shown = re.search(r"^```toml\n(.*?)^```", section("Three ways to name it"), re.M | re.S)
    assert shown is not None
    assert shown[1] in (newcomer.folder / "my_rooms/pyproject.toml").read_text()
    newcomer.folder /= "my_rooms"
    words = "python -m miles_agents.environments check my_rooms.env:MyRooms --tasks 1"
    assert newcomer.type(words).out.splitlines()[-1] == "23 passed, 1 skipped"
