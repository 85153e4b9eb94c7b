"""Finding things by name: lazy entries, versions, suggestions, files, modules, entry points."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from miles_agents import registry as registry_module
from miles_agents.errors import UnknownNameError, UsageError
from miles_agents.registry import Registry, environments, is_object_spec, load_object


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module on the path that says so when it is imported."""
    (tmp_path / "lazy_things.py").write_text("LOADED = True\nclass Thing:\n    class Inner: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lazy_things"
    sys.modules.pop("lazy_things", None)


def test_a_lazy_entry_is_imported_when_it_is_first_asked_for(module):
    things = Registry("thing")
    things.add_lazy("thing-v0", f"{module}:Thing")
    assert things.names() == ["thing-v0"]
    assert "thing" in things
    assert module not in sys.modules
    assert things.get("thing").__name__ == "Thing"
    assert things.get("thing") is sys.modules[module].Thing


def test_a_bare_name_means_the_newest_version_by_number():
    things = Registry("thing")
    for version in (2, 10, 9):
        things.register(f"thing-v{version}")(f"the {version}")
    assert things.full_name("thing") == "thing-v10"
    assert things.get("thing") == "the 10"
    assert things.get("thing-v2") == "the 2"
    assert "thing-v3" not in things


def test_an_unversioned_name_stands_for_itself():
    things = Registry("thing")
    things.register("thing")("plain")
    things.register("thing-v1")("versioned")
    assert things.get("thing") == "plain"


def test_an_unknown_name_lists_the_nearest_ones():
    things = Registry("environment")
    things.register("python_math-v0")(object)
    things.register("weather-v1")(object)
    with pytest.raises(UnknownNameError) as caught:
        things.get("pythn_math")
    expected = "unknown environment 'pythn_math'. Did you mean 'python_math'? Allowed: python_math, weather."
    assert str(caught.value) == expected


def test_two_classes_of_one_name_are_refused_and_the_first_stays():
    things = Registry("thing")
    first, second = type("First", (), {}), type("Second", (), {})
    things.register("thing-v0")(first)
    with pytest.raises(UsageError, match="thing 'thing-v0' is registered already"):
        things.register("thing-v0")(second)
    with pytest.raises(UsageError, match="give yours another name"):
        things.add_lazy("thing-v0", "somewhere:Else")
    assert things.get("thing") is first


def test_a_class_registered_again_by_its_reloaded_module_is_accepted():
    things = Registry("thing")
    for _ in range(2):
        things.register("thing-v0")(type("Same", (), {"__module__": "notebook"}))


def test_the_module_behind_a_lazy_entry_may_register_itself(tmp_path, monkeypatch):
    source = "from miles_agents.registry import algorithms\n@algorithms.register('own-v0')\nclass Own: ...\n"
    (tmp_path / "own_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry_module, "algorithms", Registry("algorithm"))
    registry_module.algorithms.add_lazy("own-v0", "own_module:Own")
    assert registry_module.algorithms.get("own").__name__ == "Own"
    sys.modules.pop("own_module")


def test_entry_points_add_names_without_loading_and_never_replace_own_ones(monkeypatch, module):
    points = [
        EntryPoint("extra-v0", f"{module}:Thing", "things"),
        EntryPoint("own-v0", "not_there:Nothing", "things"),
    ]
    asked = []

    def entry_points(*, group):
        asked.append(group)
        return points

    monkeypatch.setattr(registry_module, "entry_points", entry_points)
    things = Registry("thing", entry_point_group="things")
    things.register("own-v0")("own")
    assert things.names() == ["extra-v0", "own-v0"]
    assert module not in sys.modules
    assert things.get("extra").__name__ == "Thing"
    assert things.get("own") == "own"
    assert asked == ["things"]  # scanned once


@pytest.mark.parametrize(
    ("text", "is_spec"),
    [
        ("./my_env.py:MyEnv", True),
        ("package.module:Class", True),
        ("package.module:Outer.Inner", True),
        ("python_math", False),
        ("python_math-v0", False),
        ("a:b:c", False),
        ("file.py:", False),
        (":Class", False),
        ("file.py:not a name", False),
    ],
)
def test_object_specs_are_told_from_names(text, is_spec):
    assert is_object_spec(text) is is_spec


def test_a_class_is_loaded_from_a_module_or_a_file_once(module, tmp_path):
    assert load_object(f"{module}:Thing").__name__ == "Thing"
    assert load_object(f"{module}:Thing.Inner").__name__ == "Inner"
    first = load_object(f"{tmp_path}/lazy_things.py:Thing")
    assert first is load_object(f"{tmp_path}/../{tmp_path.name}/lazy_things.py:Thing")
    assert first.__module__ in sys.modules


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Thing", "cannot import module 'no_such_module' of 'no_such_module:Thing'"),
        ("miles_agents.no_such:Thing", "no module named 'miles_agents.no_such'"),
        ("./no_such_file.py:Thing", "no file .*no_such_file.py .*write it as ./file.py:Class"),
        ("lazy_things:Thign", "'lazy_things' has no 'Thign'. Did you mean 'Thing'"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_message(module, spec, message):
    with pytest.raises(UsageError, match=message):
        load_object(spec)


def test_errors_of_the_loaded_code_itself_are_not_hidden(tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_dependency_of_mine\n")
    for _ in range(2):  # nothing half-loaded is kept
        with pytest.raises(ModuleNotFoundError, match="no_such_dependency_of_mine"):
            load_object(f"{tmp_path}/broken.py:Thing")


def test_listing_environments_loads_no_environment():
    code = (
        "import sys; from miles_agents.registry import environments; assert 'python_math-v0' in environments.names();"
        "print([m for m in sys.modules if m.startswith('miles_agents.envs') or m in ('torch', 'transformers')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_python_math_is_found_by_its_bare_name():
    assert environments.full_name("python_math") == "python_math-v0"
