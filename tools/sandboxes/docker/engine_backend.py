"""Containers of a Docker daemon: sessions by aiodocker, everything before them by docker-py in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import aiodocker
import aiohttp
from aiodocker.stream import Stream

from miles_agents.errors import SandboxUnavailableError
from miles_agents.tools.sandboxes.docker.backend import (
    Chunk,
    ContainerError,
    ContainerRecord,
    EngineFacts,
    ImageFacts,
    Removal,
)
from miles_agents.tools.sandboxes.docker.daemon import Daemon, resolve_host, unreachable
from miles_agents.tools.sandboxes.docker.owned_tasks import OwnedTasks

_CONNECT_S = 10.0
_CALL_S = 60.0
_CLOSE_S = 10.0
_NOT_FOUND, _CONFLICT = 404, 409
_HTTP_ERRORS = range(400, 600)  # aiodocker has numbers of its own for what never reached the daemon
_STREAM_FAILURES = (aiohttp.ClientError, aiodocker.DockerError, RuntimeError, AssertionError)


class AttachedStreams:
    """The standard streams of one container, over a connection of their own.

    Args:
        client: for this attachment alone: as long as it lasts it holds one of the client's connections.
        stream: opened already.
        leave: takes what is left to do when the attachment is closed.
    """

    def __init__(
        self, client: aiodocker.Docker, stream: Stream, leave: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._client = client
        self._stream = stream
        self._leave = leave
        self._closed = False

    async def read(self) -> Chunk | None:
        """See `Attachment.read`."""
        try:
            message = await self._stream.read_out()
        except _STREAM_FAILURES as error:
            raise ConnectionError(str(error) or "the attached stream is closed") from error
        return None if message is None else Chunk(message.stream, message.data)

    async def write(self, data: bytes) -> None:
        """See `Attachment.write`."""
        try:
            await self._stream.write_in(data)
        except _STREAM_FAILURES as error:
            raise ConnectionError(str(error) or "the attached stream is closed") from error

    def close(self) -> None:
        """See `Attachment.close`."""
        if not self._closed:
            self._closed = True
            self._leave(_close(self._client, self._stream))


async def _close(client: aiodocker.Docker, stream: Stream) -> None:
    with contextlib.suppress(*_STREAM_FAILURES, OSError):  # the daemon was faster
        await stream.close()
    await client.close()


class EngineBackend:
    """A Docker daemon.

    Args:
        host: its address; empty for DOCKER_HOST, the current context, or the usual socket.
    """

    def __init__(self, host: str = "") -> None:
        self._given_host = host
        self._host = resolve_host(host)
        self._daemon = Daemon(host)
        self._client: aiodocker.Docker | None = None
        self._closing = OwnedTasks()

    @property
    def host(self) -> str:
        """See `ContainerBackend.host`."""
        return self._host

    async def connect(self) -> EngineFacts:
        """See `ContainerBackend.connect`."""
        facts = await asyncio.to_thread(self._daemon.facts)
        try:
            self._client = self._make_client()
            await self._client.version()
        except ImportError as error:
            raise SandboxUnavailableError(
                f"{self._host} needs a library that is not installed ({error}). Forward the socket instead:\n"
                "    ssh -nNL /tmp/remote-docker.sock:/var/run/docker.sock user@host &\n"
                "    sandbox.docker.host=unix:///tmp/remote-docker.sock sandbox.docker.transport=stdio"
            ) from error
        except (ValueError, aiodocker.DockerError, aiohttp.ClientError, OSError) as error:
            raise SandboxUnavailableError(unreachable(self._host, str(error))) from error
        return facts

    async def find_image(self, image: str) -> ImageFacts | None:
        """See `ContainerBackend.find_image`."""
        return await asyncio.to_thread(self._daemon.find_image, image)

    async def pull(self, image: str) -> None:
        """See `ContainerBackend.pull`."""
        given_up = threading.Event()
        try:
            await asyncio.to_thread(self._daemon.pull, image, given_up)
        finally:
            given_up.set()

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """See `ContainerBackend.create`."""
        async with _asking():
            await self._connected().containers.create(dict(body), name=name)

    async def attach(self, name: str, *, stdin: bool) -> AttachedStreams:
        """See `ContainerBackend.attach`."""
        client = self._make_client(self._connected().api_version)
        stream = client.containers.container(name).attach(stdout=True, stderr=True, stdin=stdin)
        try:
            async with _asking():
                await stream.__aenter__()
        except BaseException:
            self._closing.start(_close(client, stream))
            raise
        return AttachedStreams(client, stream, self._closing.start)

    async def start(self, name: str) -> None:
        """See `ContainerBackend.start`."""
        async with _asking():
            await self._connected().containers.container(name).start()

    async def ending(self, name: str) -> str:
        """See `ContainerBackend.ending`."""
        try:
            async with _asking():
                state = (await self._connected().containers.container(name).show())["State"]
        except ContainerError:  # the daemon has removed it by now
            return ""
        if state.get("Running"):
            return ""
        killed = ", killed for using more memory than its limit" if state.get("OOMKilled") else ""
        return f"exit code {state.get('ExitCode')}{killed}{' ' + state['Error'] if state.get('Error') else ''}"

    async def remove(self, name: str) -> Removal:
        """See `ContainerBackend.remove`."""
        try:
            async with _asking():
                await self._connected().containers.container(name).delete(force=True, v=True)
        except ContainerError as error:
            if error.status == _NOT_FOUND:
                return Removal.ABSENT
            if error.status == _CONFLICT:
                return Removal.IN_PROGRESS
            raise
        return Removal.REMOVED

    async def list(self, label: str) -> Sequence[ContainerRecord]:
        """See `ContainerBackend.list`."""
        return await asyncio.to_thread(self._daemon.containers, label)

    async def close(self) -> None:
        """See `ContainerBackend.close`."""
        await self._closing.finish(_CLOSE_S)
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        await asyncio.to_thread(self._daemon.close)

    def _connected(self) -> aiodocker.Docker:
        if self._client is None:
            raise ContainerError("not connected to the daemon")
        return self._client

    def _make_client(self, api_version: str = "auto") -> aiodocker.Docker:
        timeout = aiohttp.ClientTimeout(connect=_CONNECT_S)
        return aiodocker.Docker(self._given_host or None, timeout=timeout, api_version=api_version)


@contextlib.asynccontextmanager
async def _asking() -> AsyncIterator[None]:
    """One question to the daemon, with a deadline; whatever goes wrong is a `ContainerError`."""
    try:
        async with asyncio.timeout(_CALL_S):
            yield
    except aiodocker.DockerError as error:
        raise ContainerError(error.message, error.status if error.status in _HTTP_ERRORS else 0) from error
    except TimeoutError as error:
        raise ContainerError(f"the daemon did not answer within {_CALL_S:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise ContainerError(f"the daemon cannot be asked: {error}") from error
