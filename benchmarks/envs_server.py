"""A scripted server of chat completions, in a process of its own: `python -m benchmarks.envs_server` prints its port.

It reads little of a request (how many replies of the model there are says which turn it is) and answers 50 ms later
with bytes made beforehand, so that it never is what the others wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import envs_work

_ROOT = Path(__file__).parents[1]
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_REPLIES = re.compile(rb'"role":\s?"assistant"')
_AS_TEXT = re.compile(rb'"model":\s?"%s"' % envs_work.TEXT_MODEL.encode())


def _http(body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 200 OK\r\nserver: scripted\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_MODELS = _http(b'{"object": "list", "data": [{"id": "m", "object": "model"}, {"id": "text", "object": "model"}]}')
_ANSWERS = {
    as_text: [_http(envs_work.response(turn, as_text=as_text)) for turn in range(envs_work.TURNS)]
    for as_text in (False, True)
}


class _Connection(asyncio.Protocol):
    """One kept-alive connection; requests are answered one after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while True:
            head, end, rest = self._received.partition(b"\r\n\r\n")
            length = _LENGTH.search(head)
            size = int(length[1]) if length else 0
            if not end or len(rest) < size:
                return
            self._received = rest[size:]
            self._answer(head, rest[:size])

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET "):
            self._transport.write(_MODELS)
            return
        turn = min(len(_REPLIES.findall(body)), envs_work.TURNS - 1)
        answer = _ANSWERS[_AS_TEXT.search(body) is not None][turn]
        asyncio.get_running_loop().call_later(envs_work.DELAY_S, self._write, answer)

    def _write(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the other side goes


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The base URL of a server that another process runs, until the end."""
    command = [sys.executable, "-m", "benchmarks.envs_server"]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()
            process.wait(10)


if __name__ == "__main__":
    envs_work.allow_many_files()
    asyncio.run(_serve())
