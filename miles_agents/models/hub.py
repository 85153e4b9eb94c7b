"""Models from the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from miles_agents.errors import UsageError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def fetch_model(name: str) -> Path:
    """The local copy of a hub model, fetched if it is not there yet.

    Raises:
        UsageError: no folder and no hub model of that name, or the hub cannot be reached.
    """
    if not _HUB_ID.fullmatch(name):
        raise UsageError(
            f"no model {name!r}: no config of that name (model=starter, model=smollm2), no such folder, "
            "and no hub id (owner/name). Write a folder as model=./FOLDER"
        )
    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UsageError(
            f"cannot fetch model {name!r} from the hub ({type(error).__name__}); give a local folder as model=./FOLDER"
        ) from error
