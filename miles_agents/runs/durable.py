"""Writing files so that a crash or a full disk leaves the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Serializers that swallow errno (safetensors' Rust side, torch.save's C++ writer) leave only text or nothing at all:
# with less than this free right after the failure, the disk is what failed.
_FULL_BELOW_BYTES = 64 * 1024


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) into a hidden sibling, fsync it and rename it to `path`."""
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until the file's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the folder's entries (creations and renames in it) are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_full(error: BaseException, folder: Path) -> bool:
    """True if `error`, or one it was raised from, comes from a full disk or quota that holds `folder`."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if "No space left on device" in str(seen) or "os error 28" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
