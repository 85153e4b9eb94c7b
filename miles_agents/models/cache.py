"""Where models made on this machine are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$MILES_AGENTS_CACHE`, else `$XDG_CACHE_HOME/miles_agents`, else `~/.cache/miles_agents`; may not exist yet."""
    if own := os.environ.get("MILES_AGENTS_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "miles_agents"
