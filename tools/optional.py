"""Libraries that only some tools need, imported when such a tool is used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from miles_agents.errors import UsageError


def require(package: str, *, extra: str, needed_by: str) -> None:
    """Find out now, without importing it, that a package is missing.

    Raises:
        UsageError: it is not installed; the message says what to type.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing(package, extra, needed_by)


def library(name: str, *, extra: str, needed_by: str) -> Any:
    """The module `name`, imported now.

    Raises:
        UsageError: it is not installed; the message says what to type.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise _missing(package, extra, needed_by) from error


def _missing(package: str, extra: str, needed_by: str) -> UsageError:
    return UsageError(f"{needed_by} needs the package {package}: pip install 'miles-agents[{extra}]'")
