"""Connections to MCP servers: opened by their first use on an event loop, shared by all who use the same server on it.

The package `mcp` wants a connection left by the task that entered it, so each one has a task of its own. It ends when
it is closed, when the server is lost, or with the event loop, which cancels it; the server's process ends with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_agents.contracts.threads import run_in_thread
from miles_agents.errors import InfrastructureError, ToolError, ToolErrorKind, UsageError
from miles_agents.tools.optional import library

if TYPE_CHECKING:
    import mcp
    import mcp_types

_CLOSE_S = 15.0  # a server's process is asked to end, then killed
_LOG_BYTES = 1 << 20  # kept of what a server writes to its stderr
_LOG_TAIL_BYTES = 300
_FROM = {"extra": "mcp", "needed_by": "MCPServer"}

# What the package says itself of an HTTP status that carries no answer of the server.
_NO_ANSWER = ("Session terminated", "Server returned an error response")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where an MCP server is: a command to start, or an address to connect to."""

    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # of the command, besides PATH, HOME and the like
    cwd: str | None = None
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # of each request to the url
    connect_timeout_s: float = 30.0

    def __str__(self) -> str:
        return f"MCP server '{self.url or ' '.join(self.command)}'"


class Connection:
    """One connection and the tools its server offers."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.client: mcp.Client | None = None
        self.tools: Sequence[mcp_types.Tool] = ()
        self._log = _ServerLog()
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting
        self._task = asyncio.get_running_loop().create_task(self._serve(), name=str(address))

    async def ready(self) -> None:
        """Wait until it is open.

        Raises:
            UsageError: the command cannot be started.
            InfrastructureError: the server is not there, ended, or gave no answer in time.
        """
        try:
            async with asyncio.timeout(self.address.connect_timeout_s) as deadline:
                await asyncio.shield(self._ready)
        except TimeoutError:
            if not deadline.expired():
                raise
            self.leave()
            seconds = f"{self.address.connect_timeout_s:g} s"
            raise InfrastructureError(f"{self.address} gave no answer in {seconds}{self._log.tail()}") from None

    async def call(self, tool: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        """Call one of the server's tools.

        Raises:
            ToolError: the server refuses the call.
            InfrastructureError: the server is lost; the next use of it connects anew.
        """
        assert self.client is not None, "ready() comes first"
        types, package = library("mcp_types", **_FROM), library("mcp", **_FROM)
        self._log.trim()
        try:
            return await self.client.call_tool(tool, arguments)
        except package.MCPError as error:
            if error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT) or error.message in _NO_ANSWER:
                self.leave()
                raise self._lost(error) from error
            kind = ToolErrorKind.BAD_ARGUMENTS if error.code == types.INVALID_PARAMS else ToolErrorKind.ERROR
            raise ToolError(error.message or f"the server answered with error {error.code}", kind=kind) from error
        except RuntimeError as error:
            if self._task.done() or self._stop.is_set():  # the client was left while the call was on its way
                raise self._lost(error) from error
            raise

    def leave(self) -> None:
        """Give the connection up; its task clears up behind it."""
        _forget(self)
        self._stop.set()

    async def close(self) -> None:
        """Give the connection up and wait until the server's process has ended."""
        self.leave()
        if not self._ready.done():
            self._task.cancel()  # it waits for the server, not for `_stop`
        await asyncio.wait([self._task], timeout=_CLOSE_S)

    def _lost(self, error: BaseException) -> InfrastructureError:
        return InfrastructureError(f"{self.address} was lost: {_reason(error)}{self._log.tail()}")

    async def _serve(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                # Off the event loop: importing the package takes a good part of a second.
                await run_in_thread(library, "mcp", **_FROM)
                self.client = await stack.enter_async_context(await self._client(stack))
                self.tools = await _listed(self.client)
                self._ready.set_result(None)
                await self._stop.wait()
        except asyncio.CancelledError:
            self._fail(InfrastructureError(f"{self.address} was closed"))
            raise
        except UsageError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 — seam: told to those who wait; in use, to the calls on their way
            self._fail(self._startup_error(error))
        finally:
            self.leave()
            self._log.close()

    def _fail(self, error: BaseException) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    def _startup_error(self, error: BaseException) -> Exception:
        first = _first(error)
        if self.address.command and isinstance(first, OSError):
            return UsageError(f"{self.address} cannot be started: {first}")
        return InfrastructureError(f"{self.address} cannot be reached: {_reason(first)}{self._log.tail()}")

    async def _client(self, stack: AsyncExitStack) -> mcp.Client:
        package = library("mcp", **_FROM)
        address = self.address
        if address.command:
            command, *args = address.command
            parameters = package.StdioServerParameters(
                command=command, args=args, env=dict(address.env) or None, cwd=address.cwd
            )
            transport = package.stdio_client(parameters, errlog=self._log.file)
        else:
            httpx = library("httpx2", **_FROM)
            # No read timeout: a tool may take its time, and the call's own deadline ends it.
            timeout = httpx.Timeout(address.connect_timeout_s, read=None, pool=None)
            limits = httpx.Limits(max_connections=None)
            http = httpx.AsyncClient(headers=dict(address.headers), timeout=timeout, limits=limits)
            await stack.enter_async_context(http)
            module = library("mcp.client.streamable_http", **_FROM)
            transport = module.streamable_http_client(address.url, http_client=http)
        client: mcp.Client = package.Client(transport, cache=None)
        return client


_connections: dict[asyncio.AbstractEventLoop, dict[Hashable, Connection]] = {}


async def connect(address: ServerAddress) -> Connection:
    """The connection to a server on the running event loop: the one that is open, or a new one.

    Raises:
        UsageError: its command cannot be started.
        InfrastructureError: it is not there, ended, or gave no answer in time.
    """
    loop = asyncio.get_running_loop()
    if loop not in _connections:
        for closed in [each for each in _connections if each.is_closed()]:
            del _connections[closed]
    of_loop = _connections.setdefault(loop, {})
    if address not in of_loop:
        of_loop[address] = Connection(address)
    connection = of_loop[address]
    await connection.ready()
    return connection


async def disconnect(address: ServerAddress) -> None:
    """Close the connection to a server on the running event loop, if there is one."""
    connection = _connections.get(asyncio.get_running_loop(), {}).get(address)
    if connection is not None:
        await connection.close()


def _forget(connection: Connection) -> None:
    for of_loop in list(_connections.values()):
        if of_loop.get(connection.address) is connection:
            del of_loop[connection.address]


async def _listed(client: mcp.Client) -> list[mcp_types.Tool]:
    found: list[mcp_types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return found


def _first(error: BaseException) -> BaseException:
    """The first exception that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class _ServerLog:
    """What a server writes to its stderr: the last of it, for error messages."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        flags = fcntl.fcntl(self.file, fcntl.F_GETFL)
        fcntl.fcntl(self.file, fcntl.F_SETFL, flags | os.O_APPEND)  # so that `trim` moves the server's writes, too

    def tail(self) -> str:
        """The last lines, to go behind a message."""
        if self.file.closed:
            return ""
        size = os.fstat(self.file.fileno()).st_size
        text = os.pread(self.file.fileno(), _LOG_TAIL_BYTES, max(size - _LOG_TAIL_BYTES, 0))
        said = " ".join(text.decode(errors="replace").split())
        return f"; its stderr ends with: {said}" if said else ""

    def trim(self) -> None:
        """Begin anew when it has become long."""
        if not self.file.closed and os.fstat(self.file.fileno()).st_size > _LOG_BYTES:
            self.file.truncate(0)

    def close(self) -> None:
        """Free it."""
        self.file.close()
