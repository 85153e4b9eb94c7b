"""`MCPServer`: the tools of any server that speaks the Model Context Protocol, through the official package `mcp`."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from miles_agents.contracts import Tool, ToolContext, ToolLimits, ToolOutput
from miles_agents.contracts.tool_arguments import function_schema
from miles_agents.errors import UsageError, did_you_mean
from miles_agents.tools.mcp_connections import ServerAddress, connect, disconnect
from miles_agents.tools.optional import require

if TYPE_CHECKING:
    import mcp_types


class MCPServer:
    """The tools of an MCP server, for `ToolEnv.tools`, e.g. `tools = (MCPServer(command=["my-server"]),)`.

    Nothing is started before the first episode. Then one connection serves all episodes of the run: a server that keeps
    state keeps it across episodes. A server that is lost costs the episodes whose calls were on their way (cause
    `tool`), and the next call connects anew.

    Args:
        command: starts a server that talks over its standard input and output. It sees PATH, HOME and the like of the
            environment, no more.
        url: of a server that is there already, over streamable HTTP. One of `command` and `url` is given.
        env: further environment variables of the command.
        headers: of each request to the url.
        only: the server's tools to offer; None is all of them.
        limits: deadline, concurrency (of all the server's tools together) and retries of a call. Calls are tried again
            only if `retries` says so: a lost call may have had its effect.

    Raises:
        UsageError: not one of command and url, or the package `mcp` is missing.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        only: Collection[str] | None = None,
        limits: ToolLimits | None = None,
    ) -> None:
        if isinstance(command, str):
            raise UsageError(f"MCPServer: command is {command!r}; give a list of words: {command.split()}")
        if bool(command) == bool(url):
            raise UsageError("MCPServer: give either command=[…], which is started, or url=…, which is there already")
        require("mcp", extra="mcp", needed_by="MCPServer")
        self.address = ServerAddress(
            command=tuple(command),
            env=tuple(sorted((env or {}).items())),
            url=url,
            headers=tuple(sorted((headers or {}).items())),
        )
        self._only = None if only is None else tuple(only)
        self.limits = limits or ToolLimits()
        self._tools: tuple[MCPTool, ...] | None = None

    async def open(self) -> None:
        """Connect, and read what the server offers.

        Raises:
            UsageError: the command cannot be started, or a name of `only` is none of the server's.
            InfrastructureError: the server is not there or gives no answer.
        """
        if self._tools is not None:
            return
        connection = await connect(self.address)
        listed = {tool.name: tool for tool in connection.tools}
        for name in self._only or ():
            if name not in listed:
                raise UsageError(f"{self.address} has no tool '{name}'. {did_you_mean(name, listed)}")
        chosen = listed.values() if self._only is None else [listed[name] for name in self._only]
        self._tools = tuple(MCPTool(self.address, tool, self.limits) for tool in chosen)

    async def close(self) -> None:
        """Disconnect; a server that was started ends. The tools stay known, and the next call connects anew."""
        await disconnect(self.address)

    def tools(self) -> Sequence[Tool]:
        """What the server offers.

        Raises:
            UsageError: not before `open`.
        """
        if self._tools is None:
            raise UsageError(f"{self.address} is not open yet: its tools are known after `await env.open_shared()`")
        return self._tools


class MCPTool:
    """One tool of a server; its schema is the server's own, and so is the check of the arguments."""

    needs_sandbox = False

    def __init__(self, address: ServerAddress, tool: mcp_types.Tool, limits: ToolLimits) -> None:
        self.name = tool.name
        self.limits = limits
        self.definition: Hashable = ("mcp", address)
        self._address = address
        self._schema = function_schema(tool.name, tool.description or "", dict(tool.input_schema))

    def schema(self) -> dict[str, Any]:
        """The OpenAI-style schema."""
        return json.loads(json.dumps(self._schema))  # type: ignore[no-any-return]

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Call it on the server.

        Raises:
            ToolError: the server refuses the call.
            InfrastructureError: the server is lost or cannot be reached.
        """
        connection = await connect(self._address)
        return _as_output(await connection.call(self.name, dict(arguments)))


def _as_output(result: mcp_types.CallToolResult) -> ToolOutput:
    parts = [_as_text(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    if result.is_error:
        return ToolOutput(f"Error: {text or 'the tool failed'}", ok=False)
    return ToolOutput(text or "(no output)")


def _as_text(block: mcp_types.ContentBlock) -> str:
    """A piece of a result as the model is shown it: what is no text is named, not shown."""
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}, {block.mime_type}, {_base64_bytes(block.data)} bytes: not shown]"
        case "resource_link":
            return f"[resource {block.name}: {block.uri}]"
        case "resource":
            resource = block.resource
            if hasattr(resource, "text"):
                return resource.text
            return f"[resource {resource.uri}, {_base64_bytes(resource.blob)} bytes: not shown]"


def _base64_bytes(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")
