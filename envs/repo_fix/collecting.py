"""Takes the files of a repository out of the session in which they were worked on."""

from __future__ import annotations

import base64
import json
import secrets

from miles_agents.contracts import ExecStatus, Sandbox
from miles_agents.envs.repo_fix.problems import MAX_BYTES, MAX_FILES, is_repository_path

_TIMEOUT_S = 20.0
_SKIPPED = [".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"]

# Regular files alone: a pipe would never end, a link could lead out of the repository.
_COLLECT = """
import base64, json, os, stat
def collect(target, skipped, max_files, max_bytes):
    found, room = {}, max_bytes
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in sorted(names):
            path = os.path.join(folder, name)[2:]
            if name.endswith(".pyc") or not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            with open(path, "rb") as file:
                data = file.read(room + 1)
            room -= len(data)
            if room < 0 or len(found) == max_files:
                return
            found[path.encode("utf-8", "backslashreplace").decode()] = base64.b64encode(data).decode()
    os.chmod(".", 0o700)
    with open(target, "w") as file:
        json.dump(found, file)
"""


async def collect_files(sandbox: Sandbox) -> dict[str, bytes] | None:
    """The files of the session's working folder by path; caches and what is no plain file are left out.

    None: they cannot be had, through what was done to them: too many, too large, made unreadable, no room left.

    Raises:
        SandboxError: the session was lost.
    """
    target = f".{secrets.token_hex(16)}"
    call = f"collect({target!r}, {_SKIPPED!r}, {2 * MAX_FILES}, {2 * MAX_BYTES})"
    result = await sandbox.exec(f"{_COLLECT}\n{call}\n", timeout_s=_TIMEOUT_S)
    if result.status is not ExecStatus.OK:
        return None
    try:
        found = json.loads(await sandbox.read_file(target))
        files = {str(path): base64.b64decode(data) for path, data in found.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None
    return {path: data for path, data in files.items() if is_repository_path(path)}
