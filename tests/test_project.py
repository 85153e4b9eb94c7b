"""The project as a whole: layout, budgets of size, slim imports, names, configurations and registered entries."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import miles_agents
from miles_agents import registry
from miles_agents.command import compose_command
from miles_agents.configs import schema
from miles_agents.configs.compose import Override, config_names

ROOT = Path(__file__).parents[1]
LINKED = ("envs", "tools", "trainers", "configs")
CODE = ("miles_agents", *LINKED, "tests", "examples", "benchmarks")
SPOKEN = (*CODE, "docs", "docker", ".ci")

MAX_FUNCTION_LINES = 60
MAX_FUNCTION_LINES_P95 = 45
MAX_FILE_LINES = 500

HEAVY = (
    "torch",
    "transformers",
    "ray",
    "sglang",
    "vllm",
    "megatron",
    "matplotlib",
    "tensorboard",
    "wandb",
    "trackio",
    "trl",
)
SLIM = (
    "miles_agents",
    "miles_agents.answers",
    "miles_agents.chat",
    "miles_agents.configs",
    "miles_agents.contracts",
    "miles_agents.envs",
    "miles_agents.registry",
    "miles_agents.rollout",
    "miles_agents.tools",
)


def files_below(*tops: str) -> Iterator[Path]:
    """Real files of the project; links to folders are not followed, caches are left out."""
    for top in tops:
        for folder, names, files in os.walk(ROOT / top):
            names[:] = sorted(n for n in names if not n.startswith("__py") and not (Path(folder) / n).is_symlink())
            yield from (Path(folder) / name for name in sorted(files))


def python_files() -> list[Path]:
    return [path for path in files_below(*CODE) if path.suffix == ".py"]


def function_lengths(source: str) -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, functions)]
    return {f"{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1 for node in found}


def every_module() -> list[str]:
    """The full name of every module of the package."""
    return [info.name for info in pkgutil.walk_packages(miles_agents.__path__, "miles_agents.")]


def run_python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60)


# --- layout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKED)
def test_the_linked_packages_are_the_top_level_folders(name: str) -> None:
    link = ROOT / "miles_agents" / name
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{name}"
    assert (ROOT / name).is_dir()
    assert not (ROOT / name).is_symlink()
    module = importlib.import_module(f"miles_agents.{name}")
    assert Path(str(module.__file__)).resolve() == ROOT / name / "__init__.py"


@pytest.mark.parametrize("name", LINKED)
def test_a_bare_import_of_a_linked_folder_is_refused(name: str) -> None:
    done = run_python(f"import {name}")
    assert done.returncode == 1
    assert f"ImportError: import it as 'miles_agents.{name}'" in done.stderr


def test_required_files_are_there() -> None:
    wanted = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "docker/train.cpu.Dockerfile",
        "docs/architecture.md",
        "docs/results.md",
        "docs/status.md",
        ".ci/run",
    ]
    assert [path for path in wanted if not (ROOT / path).is_file()] == []
    assert os.access(ROOT / ".ci/run", os.X_OK)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_functions_and_files_stay_within_their_budgets() -> None:
    lengths: dict[str, int] = {}
    long_files: dict[str, int] = {}
    for path in python_files():
        source, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        lengths |= {f"{name}:{function}": lines for function, lines in function_lengths(source).items()}
        if (lines := len(source.splitlines())) > MAX_FILE_LINES:
            long_files[name] = lines
    assert long_files == {}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}
    assert len(lengths) > 1000, "the walk misses files"
    assert sorted(lengths.values())[int(0.95 * len(lengths))] <= MAX_FUNCTION_LINES_P95


def test_the_length_of_a_function_counts_its_first_and_last_line() -> None:
    source = "def one():\n    def inner():\n        pass\n    return inner\n\n\nasync def two(): ...\n"
    assert function_lengths(source) == {"one:1": 4, "inner:2": 2, "two:7": 1}


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    named = [path for path in python_files() if vague & {path.stem, *path.relative_to(ROOT).parts[:-1]}]
    assert named == []


# --- imports and names ------------------------------------------------------------------------------------------------


def slim_modules() -> list[str]:
    """The slim packages with all their modules."""
    prefixes = tuple(f"{name}." for name in SLIM if name != "miles_agents")
    return [*SLIM, *(name for name in every_module() if name.startswith(prefixes))]


@pytest.mark.parametrize("package", SLIM)
def test_a_slim_package_loads_no_heavy_library(package: str) -> None:
    modules = [name for name in slim_modules() if name == package or name.startswith(f"{package}.")]
    modules = [package] if package == "miles_agents" else modules
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_public_name_is_both_a_submodule_and_something_else() -> None:
    clashes = []
    for info in pkgutil.walk_packages(miles_agents.__path__, "miles_agents."):
        package, _, name = info.name.rpartition(".")
        importlib.import_module(info.name)
        if not name.startswith("_") and not inspect.ismodule(getattr(importlib.import_module(package), name)):
            clashes.append(info.name)
    assert clashes == []


def test_what_is_exported_is_there() -> None:
    for name in ["miles_agents", *every_module()]:
        module = importlib.import_module(name)
        missing = [each for each in getattr(module, "__all__", ()) if not hasattr(module, each)]
        assert missing == [], name


def all_registries() -> list[registry.Registry]:
    return [each for each in vars(registry).values() if isinstance(each, registry.Registry)]


def test_every_registered_entry_loads() -> None:
    registries = all_registries()
    assert len(registries) == 6
    for each in registries:
        assert each.names(), f"no {each.kind} is registered"
        for name in each.names():
            assert callable(each.get(name)), name


def test_the_lazy_targets_live_in_the_package() -> None:
    targets = [target for each in all_registries() for target in each._lazy.values()]
    assert targets
    assert all(target.startswith("miles_agents.") for target in targets)


# --- configurations ---------------------------------------------------------------------------------------------------


def group_choices(command: str) -> list[tuple[str, str, str]]:
    roots = {"train": schema.TrainConfig, "evaluate": schema.EvaluateConfig, "play": schema.PlayConfig}
    root = roots[command]
    groups = ["env", *(group for group in schema.GROUPS if group in root.__dataclass_fields__)]
    return [(command, group, name) for group in groups for name in config_names(group)]


@pytest.mark.parametrize(
    ("command", "group", "name"), [*group_choices("train"), *group_choices("evaluate"), *group_choices("play")]
)
def test_every_configuration_file_composes(command: str, group: str, name: str) -> None:
    config = compose_command(command, [Override(group, name)])
    assert OmegaConf.missing_keys(config) == set()


def test_every_configuration_file_is_in_a_known_group() -> None:
    found = {str(path.relative_to(ROOT / "configs")) for path in files_below("configs") if path.suffix == ".yaml"}
    known = {f"{group}/{name}.yaml" for group in ("env", *schema.GROUPS) for name in config_names(group)}
    assert found == known | {"train.yaml", "evaluate.yaml", "play.yaml"}


# --- dependencies -----------------------------------------------------------------------------------------------------


def requirement_name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;@]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_every_direct_dependency_has_one_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) >= {"sglang", "vllm", "megatron", "ray", "docker", "track", "dev", "smollm2", "bench"}
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[\w.+!-]+", pin)] == []
    names = [requirement_name(pin) for pin in pins]
    assert sorted(names) == sorted(set(names)), "a package is pinned twice"
    direct = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    assert sorted({requirement_name(each) for each in direct} - set(names)) == []


# --- what the files say -----------------------------------------------------------------------------------------------

# Split so that this file does not hold what it looks for.
ELSEWHERE = re.compile(
    "|".join(
        [
            r"/work" + r"/",  # folders of one machine
            r"/root/[.]?(?:pyenv|cache)/",
            r"file:" + r"//" + "/",
            r"\bshared/(?:design|style|cases|prototypes|hooks)\b",
            r"\b(?:issue|ticket) #?" + r"\d+\b",  # what the text says must stand without a tracker
            r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
        ]
    )
)


def test_the_files_speak_of_the_project_alone() -> None:
    found = []
    top = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in {".md", ".toml", ".txt", ""}]
    for path in [*files_below(*SPOKEN), *top]:
        if path.suffix in {".pyc", ".png", ".npz"} or path.name.startswith(".git"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if ELSEWHERE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in [*files_below("docs", "envs"), *ROOT.glob("*.md")]:
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            local = target.split("#", 1)[0]
            if local and "://" not in local and not (path.parent / local).exists():
                broken.append(f"{path.relative_to(ROOT)} → {target}")
    assert broken == []


def test_the_architecture_document_shows_the_layers_that_are_enforced() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    shown = re.findall(r"^    ([a-z][a-z_ |]*?)  ", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"), re.M)
    assert shown == contract["layers"]


def test_the_tests_that_documents_name_exist() -> None:
    defined = {name for path in files_below("tests") for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = {
        name
        for path in [*files_below("docs"), *ROOT.glob("*.md")]
        if path.suffix == ".md"
        for name in re.findall(r"\b(test_\w+[a-z0-9])\b(?!\.py)", path.read_text(encoding="utf-8"))
    }
    files = {path.stem for path in files_below("tests")}
    assert sorted(named - defined - files) == []


def test_every_case_that_tests_name_has_its_row_in_the_status() -> None:
    text = (ROOT / "docs/status.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([A-H]\d\d) \|.*?\| (.*) \|$", text, re.M))
    cases = {case for path in files_below("tests") for case in re.findall(r"def test_([A-H]\d\d)_", path.read_text())}
    assert sorted(cases ^ set(rows)) == [], "add or remove these rows in docs/status.md"
    for case, tests in rows.items():
        assert f"test_{case}_" in tests
