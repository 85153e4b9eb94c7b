"""A server of the Model Context Protocol with tools of every temper; over stdio, or over HTTP on the port given."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("demo", log_level="ERROR")
counted = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "woke"


@server.tool()
def count() -> int:
    """Count the calls of this process."""
    global counted
    counted += 1
    return counted


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


@server.tool()
def picture() -> list[Image | str]:
    """Draw."""
    return ["a picture:", Image(data=b"\x89PNG", format="png")]


@server.tool()
def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "(not set)")


@server.tool()
def die() -> str:
    """End the server."""
    print("the demo server gives up", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
