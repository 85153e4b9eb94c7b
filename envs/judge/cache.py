"""Verdicts on disk: one small file each, under the hash of what was asked and whom."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miles_agents.envs.judge.asking import Asked, UnreadableVerdictError, Verdict, read_verdict
from miles_agents.errors import UsageError
from miles_agents.types import Message

_log = logging.getLogger(__name__)


class VerdictCache:
    """A folder of verdicts, for any number of processes at a time.

    A file is written beside its place and renamed into it, so that a reader finds a whole one or none; of two writers
    of one verdict the last one stays. A file that cannot be read is asked for again.

    Args:
        folder: where; made if it is not there.
        judge: what the verdict depends on besides the messages: model, sampling.

    Raises:
        UsageError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, judge: Mapping[str, Any]) -> None:
        self._folder = folder
        self._judge = dict(judge)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(f"env.cache={folder}: cannot be written to: {error.strerror or error}") from error

    def get(self, asked: Asked) -> Verdict | None:
        """The verdict; None if there is none yet."""
        path = self._path(asked)
        try:
            kept = json.loads(path.read_bytes())
            return read_verdict(kept["said"], asked)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, UnreadableVerdictError) as error:
            _log.warning("%s cannot be read and is asked for again: %s", path, error)
            return None

    def put(self, asked: Asked, said: str) -> None:
        """Keep what the judge said, a readable verdict. A full disk loses the entry, not the verdict."""
        path = self._path(asked)
        text = json.dumps({**self._judge, "messages": list(map(_plain, asked.messages)), "said": said}, indent=1)
        temporary = ""
        try:
            path.parent.mkdir(exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(path)
        except OSError as error:
            _log.warning("env.cache=%s: a verdict was not kept: %s", self._folder, error)
            if temporary:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()

    def _path(self, asked: Asked) -> Path:
        key = json.dumps([self._judge, list(map(_plain, asked.messages))], sort_keys=True)
        digest = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"


def _plain(message: Message) -> list[str]:
    return [message.role.value, message.text]
