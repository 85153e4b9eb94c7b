"""This side of an abuse case: files and listeners that no sandboxed code may reach, and the process table."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import select
import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType

_GONE_S = 5.0  # for processes of a call that ended; a busy machine takes its time


class Bait:
    """Everything here is open to every user of this machine: only the sandbox keeps the code away.

    Where sessions run on another machine (a remote daemon), the process table here says nothing of them.
    """

    def __init__(self) -> None:
        self.secret = f"secret-{secrets.token_hex(8)}"
        self._folder = Path(tempfile.mkdtemp(prefix="bait-"))
        self._folder.chmod(0o755)
        self._canary = self._folder / "canary"
        self._canary.write_text(self.secret)
        self._canary.chmod(0o666)
        self._abstract = f"bait-{secrets.token_hex(8)}"
        self._listeners: dict[str, socket.socket] = {}
        try:
            self._listen()
        except OSError:
            self.close()
            raise

    def _listen(self) -> None:
        path = str(self._folder / "socket")
        places: dict[str, tuple[int, int, str | tuple[str, int]]] = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self._abstract}"),
            "path": (socket.AF_UNIX, socket.SOCK_STREAM, path),
        }
        for name, (family, kind, address) in places.items():
            listener = self._listeners[name] = socket.socket(family, kind)
            listener.setblocking(False)
            listener.bind(address)
            if kind == socket.SOCK_STREAM:
                listener.listen()
        Path(path).chmod(0o666)

    def words(self, marker: str) -> dict[str, str]:
        """What stands in for the words between `@` in the code of a step.

        Args:
            marker: the name that the case's processes give themselves.
        """
        return {
            "@canary@": str(self._canary),
            "@secret@": self.secret,
            "@package@": __file__,
            "@tcp@": str(self._listeners["tcp"].getsockname()[1]),
            "@udp@": str(self._listeners["udp"].getsockname()[1]),
            "@abstract@": self._abstract,
            "@socket@": str(self._folder / "socket"),
            "@marker@": marker,
        }

    def touched(self) -> list[str]:
        """What was reached since the last look."""
        found = [f"a connection or datagram at the {name} listener" for name in self._reached_listeners()]
        if self._canary.read_text() != self.secret:
            found.append("the canary file was changed")
            self._canary.write_text(self.secret)
        names = {path.name for path in self._folder.iterdir()}
        if names != {"canary", "socket"}:
            found.append(f"files in the bait folder: {sorted(names)}")
        return found

    def _reached_listeners(self) -> list[str]:
        ready, _, _ = select.select(list(self._listeners.values()), [], [], 0)
        names = [name for name, listener in self._listeners.items() if listener in ready]
        for listener in ready:
            with contextlib.suppress(OSError):
                if listener.type == socket.SOCK_DGRAM:
                    listener.recv(1)
                else:
                    listener.accept()[0].close()
        return names

    async def left_processes(self, marker: str) -> list[int]:
        """Processes of this name that are still there after a while."""
        deadline = time.monotonic() + _GONE_S
        while left := await asyncio.to_thread(_processes_named, marker):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        return left

    def close(self) -> None:
        """Take the bait away. May be called twice."""
        for listener in self._listeners.values():
            listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Bait:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _processes_named(marker: str) -> list[int]:
    """Live processes with the marker in their name or arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = marker.encode() in (folder / "comm").read_bytes() + (folder / "cmdline").read_bytes()
            if named and (folder / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX":
                found.append(int(folder.name))
    return found
