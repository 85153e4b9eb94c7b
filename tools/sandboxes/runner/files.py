"""Reading and writing the session's files for the host, as the session's own user."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from miles_agents.tools.sandboxes.runner.children import WORK_FOLDER


def read_file(path: str, max_bytes: int) -> bytes:
    """A regular file; never blocks on a pipe, never follows into /proc.

    Raises:
        OSError: no such file, no regular file, or a larger one.
    """
    fd = os.open(Path(WORK_FOLDER, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        _require_plain(fd, path)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, "File too large")
    return data


def write_file(path: str, data: bytes, max_bytes: int) -> None:
    """Write a regular file, making its folders.

    Raises:
        OSError: the data is larger, or the place is not for the session.
    """
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, "File too large")
    target = Path(WORK_FOLDER, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        _require_plain(fd, path)
        file.truncate(0)
        file.write(data)


def _require_plain(fd: int, path: str) -> None:
    found = os.fstat(fd)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    if not stat.S_ISREG(found.st_mode) or found.st_dev == os.stat("/proc").st_dev:  # noqa: PTH116
        raise PermissionError(errno.EACCES, "Not a regular file", path)
