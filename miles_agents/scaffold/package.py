"""Writing a starting package from the templates beside this file."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from miles_agents import registry
from miles_agents.errors import UsageError

_TEMPLATES = {  # file → template; `NAME` is the package's
    "pyproject.toml": "pyproject.toml.jinja",
    "README.md": "README.md.jinja",
    "NAME/__init__.py": "init.py.jinja",
    "NAME/env.py": "env.py.jinja",
    "tests/test_NAME.py": "test.py.jinja",
}
_OWN_FOLDERS = ("tests", "build", "dist")  # folders that a package has besides its code


def check_name(name: str) -> None:
    """Refuse a name that cannot be one of a package and an environment.

    Raises:
        UsageError: it is no identifier, or something is called so already.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        plain = re.sub(r"\W+", "_", re.sub(r"-v\d+$", "", name), flags=re.ASCII).strip("_").lower()
        better = f", e.g. {plain}" if plain.isidentifier() and not keyword.iskeyword(plain) else ", e.g. my_env"
        raise UsageError(
            f"{name!r} cannot be the name of a package: give letters, digits and underscores that begin with a "
            f"letter and are no Python keyword{better}"
        )
    if name in registry.environments:
        raise UsageError(
            f"there is an environment {registry.environments.full_name(name)!r} already; give another name"
        )
    if name in _OWN_FOLDERS or importlib.util.find_spec(name) is not None:
        raise UsageError(f"there is a Python module {name!r} already, which the package would hide; give another name")


def class_name_of(name: str) -> str:
    """`my_env` → `MyEnv`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def write_package(name: str, folder: Path) -> list[Path]:
    """Write the package; nothing is written if any of its files is there.

    Args:
        name: of the package and, with `-v0`, of the environment.
        folder: where to; made if need be.

    Returns:
        The files.

    Raises:
        UsageError: a name that cannot be used, a file that is there, a folder that cannot be written to.
    """
    check_name(name)
    contents = {folder / file.replace("NAME", name): _rendered(template, name) for file, template in _TEMPLATES.items()}
    for path in contents:
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path} is there already, and nothing is overwritten; give --folder another folder")
    try:
        for path, text in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error} ({error.filename})") from error
    return list(contents)


def _rendered(template: str, name: str) -> str:
    # No autoescape: this is Python and TOML, and the names were checked.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    source = files("miles_agents.scaffold").joinpath(template).read_text(encoding="utf-8")
    return environment.from_string(source).render(name=name, class_name=class_name_of(name))
