"""The package as others get it: built, installed elsewhere, used from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
LINKED = ("envs", "tools", "trainers", "configs")
BUILT_FROM = ("miles_agents", *LINKED, "pyproject.toml", "README.md", "LICENSE")
DATA = {".yaml", ".html", ".css", ".js", ".jinja", ".typed"}
EXTRAS = sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
BARE = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}  # no PYTHONPATH, no virtual environment


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout_s: float = 100) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def copy_source(target: Path) -> Path:
    """The files a build reads, links kept as links, so that building leaves nothing in the checkout."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in BUILT_FROM:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, ignore=ignore)
        else:
            shutil.copyfile(source, target / name)
    return target


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A source distribution, and the wheel built from it; needs no network."""
    folder = tmp_path_factory.mktemp("built")
    source = copy_source(folder / "source")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", source, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    return Built(wheel, sdist)


@dataclass(frozen=True)
class Installed:
    python: Path
    site: Path
    folder: Path  # another folder, to work in

    def run(self, *words: str) -> str:
        return run(self.python, *words, cwd=self.folder, env={**BARE, "HOME": str(self.folder)})


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a virtual environment of its own that borrows only the dependencies of this one."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", built.wheel, cwd=folder)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    # A path in a .pth file brings the packages there, but not that folder's own .pth files: not the editable install.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "elsewhere").mkdir()
    return Installed(python, site, folder / "elsewhere")


def data_files() -> set[str]:
    found = set()
    for folder, _, names in os.walk(ROOT / "miles_agents", followlinks=True):
        found |= {str((Path(folder) / name).relative_to(ROOT)) for name in names if Path(name).suffix in DATA}
    return found


def python_files() -> set[str]:
    found = set()
    for folder, _, names in os.walk(ROOT / "miles_agents", followlinks=True):
        found |= {str((Path(folder) / name).relative_to(ROOT)) for name in names if name.endswith(".py")}
    return found


def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(built: Built) -> None:
    names = {name for name in zipfile.ZipFile(built.wheel).namelist() if ".dist-info/" not in name}
    assert {Path(name).suffix for name in data_files()} == DATA
    assert names == data_files() | python_files()
    for linked in LINKED:
        assert f"miles_agents/{linked}/__init__.py" in names


def test_the_sdist_holds_the_same_files(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert data_files() | python_files() | {"README.md", "LICENSE", "pyproject.toml"} <= members


def test_it_is_imported_from_where_it_was_installed(installed: Installed) -> None:
    code = (
        "import miles_agents, miles_agents.envs, miles_agents.tools, miles_agents.trainers, miles_agents.configs\n"
        "for name in ('', '.envs', '.tools', '.trainers', '.configs'):\n"
        "    print(__import__('sys').modules['miles_agents' + name].__file__)\n"
    )
    files = [Path(line) for line in installed.run("-c", code).splitlines()]
    assert files == [
        installed.site / "miles_agents" / part / "__init__.py" for part in ("", "envs", "tools", "trainers", "configs")
    ]


def test_no_global_names_are_left(installed: Installed) -> None:
    code = f"import importlib.util as u; print([n for n in {LINKED!r} if u.find_spec(n)])"
    assert installed.run("-c", code).strip() == "[]"


def test_the_configuration_composes_elsewhere(installed: Installed) -> None:
    config = yaml.safe_load(installed.run("-m", "miles_agents.train", "--cfg", "job", "steps=3"))
    assert config["steps"] == 3
    assert config["env"]["id"] == "python_math-v0"


def test_an_environment_in_a_file_elsewhere_is_planned(installed: Installed) -> None:
    shutil.copyfile(ROOT / "examples" / "my_env.py", installed.folder / "my_env.py")
    plan = installed.run("-m", "miles_agents.train", "env=./my_env.py:Weekdays", "dry_run=true", "rollout.group_size=3")
    assert "× 3 episodes" in plan
    assert sorted(path.name for path in installed.folder.iterdir() if path.name != "__pycache__") == ["my_env.py"]


def test_templates_and_report_files_are_found_elsewhere(installed: Installed) -> None:
    code = (
        "from importlib.resources import files\n"
        "from miles_agents.chat import starter_chat_template\n"
        "print(len(starter_chat_template()) > 100)\n"
        "print(all(files('miles_agents.runs').joinpath('report.' + e).read_text() for e in ('html', 'css', 'js')))\n"
    )
    assert installed.run("-c", code).split() == ["True", "True"]


# --- needs the network; run by hand -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_can_be_installed(extra: str, tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--quiet"]
    run(*pip, "-c", ROOT / "constraints.txt", f".[{extra}]", cwd=source, timeout_s=590)


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.timeout(1800)
def test_a_clean_installation_trains_from_any_folder(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    run(*pip, "torch==2.13.*", cwd=tmp_path, timeout_s=900)
    run(*pip, source, cwd=tmp_path, timeout_s=900)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copyfile(ROOT / "examples" / "my_env.py", elsewhere / "my_env.py")
    small = ["steps=1", "eval.tasks=8", "eval.final_tasks=8", "rollout.groups_per_step=2", "rollout.group_size=2"]
    for env in ("python_math", "./my_env.py:Weekdays"):
        words = [f"env={env}", f"run_dir={env.rpartition(':')[2] or env}", *small]
        run(python, "-m", "miles_agents.train", *words, cwd=elsewhere, timeout_s=600)
    assert {path.name for path in elsewhere.glob("*/summary.json")} == {"summary.json"}
    assert (elsewhere / "python_math" / "report.html").is_file()
    assert (elsewhere / "Weekdays" / "report.html").is_file()
