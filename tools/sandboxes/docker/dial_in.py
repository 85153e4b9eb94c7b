"""Where containers dial in: a private folder with one folder and one socket for each of them.

A container sees its own folder alone, read-only. One connection is taken; then the socket is gone, so that nothing
that runs in the container later can dial as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
from pathlib import Path

from miles_agents.tools.sandboxes.docker.owner import Owner, is_alive

SOCKET_NAME = "socket"
_MAX_PATH_BYTES = 107  # of a unix socket
_NUMBER_BYTES = len("/1234567890/") + len(SOCKET_NAME)
_PREFIX = "miles-agents"


class Doors:
    """The folders of one run, inside one folder that only this user can enter.

    Args:
        owner: whose they are; folders of owners that are gone are removed.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._folder: Path | None = None

    def open(self) -> None:
        """Make the folder of the run, and remove those that killed processes left."""
        place = Path(tempfile.gettempdir())
        name = f"{_PREFIX}-{self._owner.place}-{self._owner.pid}-{self._owner.start}-"
        if len(str(place / f"{name}12345678")) + _NUMBER_BYTES > _MAX_PATH_BYTES:
            place = Path("/tmp")  # noqa: S108 — the folder made there is this user's alone
        self._sweep(place)
        self._folder = Path(tempfile.mkdtemp(prefix=name, dir=place))

    def make(self, container: str) -> Door:
        """A door for one container."""
        if self._folder is None:
            raise RuntimeError("the folder of the run is not open")
        return Door(self._folder / container.rpartition("-")[2])  # its number: paths of sockets are short

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self, place: Path) -> None:
        for folder in place.glob(f"{_PREFIX}-{self._owner.place}-*-*-*"):
            _, _, _, pid, start, _ = folder.name.split("-", 5)
            with contextlib.suppress(OSError):
                if folder.stat().st_uid == self._owner.user and not is_alive(pid, start):
                    shutil.rmtree(folder, ignore_errors=True)


class Door:
    """One container's folder, with the socket it dials.

    Args:
        folder: to be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._connection: socket.socket | None = None
        self._watched_by: asyncio.AbstractEventLoop | None = None
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)  # whatever the umask: the container's user is another one
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            address = folder / SOCKET_NAME
            self._listener.bind(str(address))
            address.chmod(0o666)  # inside a folder that only this user can enter
            self._listener.listen(1)
            self._listener.setblocking(False)
        except BaseException:
            self.close()
            raise

    def expect(self) -> asyncio.Future[None]:
        """Done when the one connection is there; from then on nobody can dial.

        The door has the connection at once: `sock_accept` would hand it over a turn of the event loop later, and lose
        it to a cancellation in between.
        """
        dialled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watched_by = dialled.get_loop()
        self._watched_by.add_reader(self._listener, self._let_in, dialled)
        return dialled

    def _let_in(self, dialled: asyncio.Future[None]) -> None:
        error: OSError | None = None
        try:
            self._connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as failure:  # no descriptor is left
            error = failure
        self._stop_listening()
        if dialled.done():
            return
        if error is None:
            dialled.set_result(None)
        else:
            dialled.set_exception(error)

    def take(self) -> socket.socket:
        """The connection, which is the caller's from now on."""
        connection, self._connection = self._connection, None
        if connection is None:
            raise RuntimeError("nobody has dialled in")
        return connection

    def close(self) -> None:
        """Stop listening, and drop a connection that nobody took. May be called twice."""
        self._stop_listening()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _stop_listening(self) -> None:
        if self._watched_by is not None:
            self._watched_by.remove_reader(self._listener)
            self._watched_by = None
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)
