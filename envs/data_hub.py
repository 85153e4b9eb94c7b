"""Data files from the Hugging Face hub, kept in its own cache.

`hf://OWNER/NAME` means every data file of a data set, `hf://OWNER/NAME/PATTERN` those that a pattern below its root
finds: `hf://openai/gsm8k/main/*.parquet`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from miles_agents.envs.data_rows import FORMATS
from miles_agents.errors import DataError

PREFIX = "hf://"


def files_of_address(address: str) -> list[Path]:
    """The files of `hf://OWNER/NAME/PATTERN`, all in one folder.

    Raises:
        DataError: no such address, or the hub cannot be reached, or the files are in several folders; the message says
            what to type.
    """
    owner, _, rest = address.removeprefix(PREFIX).partition("/")
    name, _, pattern = rest.partition("/")
    if not owner or not name:
        raise DataError(f"env.data={address}: give {PREFIX}OWNER/NAME, or {PREFIX}OWNER/NAME/PATTERN")
    patterns = [pattern] if pattern else [f"*{each}" for each in FORMATS]
    files = fetch(f"{owner}/{name}", patterns, what="env.data", otherwise="or give a file or folder: env.data=PATH")
    folders = sorted({file.parent for file in files})
    if len(folders) > 1:
        first = next(file for file in files if file.parent == folders[0])
        names = ", ".join(each.name for each in folders)
        raise DataError(
            f"env.data={address}: data files are in {len(folders)} folders ({names}); "
            f"name one: {PREFIX}{owner}/{name}/{folders[0].name}/*{first.suffix}"
        )
    return files


def fetch(
    repository: str,
    patterns: Sequence[str],
    *,
    what: str,
    otherwise: str,
    download: Callable[..., str] | None = None,
) -> list[Path]:
    """The files of a data set on the hub that match, downloaded if they are not there yet; sorted.

    Args:
        repository: "owner/name".
        patterns: of paths below its root; as on the hub, `*` goes into folders.
        what: is fetched, for messages.
        otherwise: what to type instead, for messages.
        download: what fetches a repository; None is `huggingface_hub.snapshot_download`.

    Raises:
        DataError: the hub cannot be reached, or the repository has no such files.
    """
    from huggingface_hub import snapshot_download  # slow to load, and most runs fetch nothing
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        folder = Path((download or snapshot_download)(repository, repo_type="dataset", allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise DataError(
            f"{what}: cannot be fetched from the hub ({repository}: {type(error).__name__}); {otherwise}"
        ) from error
    paths = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.suffix in FORMATS]
    files = [folder / path for path in sorted(paths) if any(fnmatch(path, pattern) for pattern in patterns)]
    if not files:
        raise DataError(f"{what}: {repository} has no files {' '.join(patterns)}; {otherwise}")
    return files
