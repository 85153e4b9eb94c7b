"""The Docker launcher stopped where it hurts, on the fake engine: at every step of a start, in a close, from afar."""

import asyncio
import contextlib
import socket
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.docker import ContainerError, DockerSandboxes, DockerSettings, FakeContainerBackend
from miles_agents.tools.sandboxes.docker.dial_in import SOCKET_NAME, Door

ROUTES = ("socket", "stdio")
_STEPS = 60  # turns of the event loop; an open takes fewer


def docker_on(backend, **settings) -> DockerSandboxes:
    return DockerSandboxes(backend=backend, settings=DockerSettings(**{"pool_size": 0, **settings}))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def cancelled_after(steps, work) -> bool:
    """Let the work do so many turns of the event loop; False if it was faster."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


class SlowRemovals(FakeContainerBackend):
    async def remove(self, name):
        await asyncio.sleep(0.05)
        return await super().remove(name)


class SlowToAnswer(FakeContainerBackend):
    """Its sessions take a while to say that they are well."""

    async def _answer(self, message):
        await asyncio.sleep(0.1)
        return await super()._answer(message)


@pytest.mark.parametrize("transport", ROUTES)
@pytest.mark.parametrize("pool_size", [0, 2])
async def test_an_open_that_is_cancelled_at_any_step_leaves_nothing(transport, pool_size):
    backend = FakeContainerBackend()
    async with docker_on(backend, transport=transport, pool_size=pool_size) as provider:
        await provider.open()
        before = descriptors()
        cancelled = 0
        for step in range(_STEPS):
            cancelled += await cancelled_after(step, provider.open())
        assert cancelled > 0
        for sandbox in list(provider._open)[1:]:
            await sandbox.close()
        async with await provider.open() as sandbox:
            await sandbox.exec("x", timeout_s=5)
        async with asyncio.timeout(10):
            while descriptors() > before + 2 * pool_size or len(backend.containers) > 1 + pool_size:
                await asyncio.sleep(0.01)
    assert backend.attached == set()
    assert provider.left_behind == ()
    assert sorted(backend.created) == sorted(backend.removed)
    assert backend.containers == {}


@pytest.mark.parametrize("transport", ROUTES)
async def test_a_start_that_is_cancelled_at_any_step_leaves_nothing_and_can_be_made_again(transport, short_tmp_path):
    backend = FakeContainerBackend()
    provider = docker_on(backend, transport=transport)
    before = descriptors()
    for step in range(_STEPS):
        await cancelled_after(step, provider.start())
        await provider.close()
        assert backend.containers == {}, step
        assert list(short_tmp_path.iterdir()) == [], step
    assert descriptors() == before
    assert len(backend.created) > 2
    assert len(set(backend.created)) == len(backend.created)  # no name is made twice
    async with provider, await provider.open() as sandbox:
        await sandbox.exec("x", timeout_s=5)


async def test_a_close_that_is_cancelled_goes_on_and_the_next_one_waits_for_its_end():
    for step in range(40):
        backend = SlowRemovals()
        provider = docker_on(backend, pool_size=2)
        await provider.start()
        await provider.open()
        opening = asyncio.ensure_future(provider.open())
        await cancelled_after(step, provider.close())
        await provider.close()
        assert backend.containers == {}, step
        assert backend.closed, step
        with contextlib.suppress(SandboxError):
            await opening


async def test_a_session_that_is_being_looked_at_while_the_provider_closes_is_not_handed_out(monkeypatch):
    monkeypatch.setattr("miles_agents.tools.sandboxes.docker.sandboxes._FRESH_S", -1.0)
    backend = SlowToAnswer()
    provider = docker_on(backend)
    await provider.start()
    opening = asyncio.ensure_future(provider.open())
    await asyncio.sleep(0.03)
    await provider.close()
    assert backend.containers == {}
    assert provider.left_behind == ()
    with pytest.raises(SandboxError, match="closed"):
        await opening


async def test_calls_under_way_end_with_the_provider(monkeypatch):
    async def endless(request):
        await asyncio.sleep(600)

    backend = FakeContainerBackend(endless)
    provider = docker_on(backend)
    await provider.start()
    sandboxes = [await provider.open() for _ in range(5)]
    calls = [asyncio.ensure_future(each.exec("x", timeout_s=500)) for each in sandboxes]
    resetting = asyncio.ensure_future((await provider.open()).reset())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await provider.close()
        for call in (*calls, resetting):
            with pytest.raises(SandboxError):
                await call
    assert backend.containers == {}
    for sandbox in sandboxes:
        await sandbox.close()
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.exec("x", timeout_s=1)


@pytest.mark.parametrize("transport", ROUTES)
async def test_hundreds_of_opens_at_once_take_turns(transport):
    starting, most = 0, 0

    class Counting(FakeContainerBackend):
        async def create(self, name, body):
            nonlocal starting, most
            starting += 1
            most = max(most, starting)
            await super().create(name, body)

        async def start(self, name):
            nonlocal starting
            await super().start(name)
            starting -= 1

    backend = Counting(create_s=0.001)
    async with docker_on(backend, transport=transport, max_parallel_starts=4) as provider:
        sandboxes = await asyncio.gather(*(provider.open() for _ in range(300)))
        assert most == 4
        assert len({id(each._wire) for each in sandboxes}) == 300
    assert len(backend.removed) == len(backend.created) == 300
    assert backend.containers == {}


@pytest.mark.parametrize("steps", range(6))
async def test_a_connection_that_comes_when_nobody_waits_any_more_is_closed(tmp_path, steps, monkeypatch):
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    door = Door(Path("1"))
    dialled = door.expect()
    with socket.socket(socket.AF_UNIX) as container:
        container.connect(f"1/{SOCKET_NAME}")
        for _ in range(steps):
            await asyncio.sleep(0)
        dialled.cancel()
        await asyncio.sleep(0)
        door.close()
        container.settimeout(5)
        with contextlib.suppress(ConnectionResetError):  # it was not even accepted
            assert container.recv(1) == b""
    assert list(tmp_path.iterdir()) == []


async def test_after_its_close_a_provider_can_be_started_again():
    backend = FakeContainerBackend()
    provider = docker_on(backend)
    for _ in range(3):
        async with provider, await provider.open() as sandbox:
            await sandbox.exec("x", timeout_s=5)
        with pytest.raises(SandboxError, match="not running"):
            await provider.open()
    assert len(set(backend.created)) == 3
    assert backend.containers == {}


def test_another_event_loop_is_refused():
    backend = FakeContainerBackend()
    provider = docker_on(backend)
    with asyncio.Runner() as own, asyncio.Runner() as other:
        own.run(provider.start())
        for work in (provider.open, provider.close):
            with pytest.raises(SandboxError, match="another event loop"):
                other.run(work())
        own.run(provider.close())
    assert backend.containers == {}


class Registry(BaseHTTPRequestHandler):
    """A daemon that pulls an image: endless progress, or an error after the good status."""

    protocol_version = "HTTP/1.1"
    error = False

    def do_GET(self):
        body = b'{"ApiVersion": "1.45"}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        line = b'{"error": "toomanyrequests"}\n' if self.error else b'{"status": "Downloading"}\n'
        self.server.pulling.set()
        try:
            while not self.server.ended.is_set():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                time.sleep(0.02)
        except OSError:
            self.server.hung_up.set()
        self.close_connection = True

    def log_message(self, *words):
        pass


@pytest.fixture(params=[False, True], ids=["endless", "error"])
def puller(short_tmp_path, request):
    class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        pulling, hung_up, ended = threading.Event(), threading.Event(), threading.Event()

        def get_request(self):
            return super().get_request()[0], ("", 0)

    path = short_tmp_path / "docker.sock"
    handler = type("Handler", (Registry,), {"error": request.param})
    with Daemon(str(path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield request.param, server, f"unix://{path}"
        server.ended.set()
        server.shutdown()
        thread.join()
    path.unlink()


async def test_a_pull_that_fails_or_is_given_up_ends(puller):
    pytest.importorskip("aiodocker")
    from miles_agents.tools.sandboxes.docker.engine_backend import EngineBackend

    fails, server, host = puller
    backend = EngineBackend(host)
    pulling = asyncio.ensure_future(backend.pull("python:3.12"))
    if fails:
        with pytest.raises(ContainerError, match="toomanyrequests"):
            await pulling
    else:
        assert await asyncio.to_thread(server.pulling.wait, 20)
        pulling.cancel()
        await asyncio.wait([pulling])
        assert pulling.cancelled()
    assert await asyncio.to_thread(server.hung_up.wait, 20)
    await backend.close()


FORKED = """
import asyncio, os
from miles_agents.tools.sandboxes.docker import DockerSandboxes, DockerSettings, FakeContainerBackend

async def main():
    async with provider:
        print(os.getpid(), *backend.containers[backend.created[0]].body["Labels"].values(), flush=True)

backend = FakeContainerBackend()
provider = DockerSandboxes(backend=backend, settings=DockerSettings(pool_size=0))
if os.fork():
    os.wait()
asyncio.run(main())
"""


def test_a_provider_that_was_made_before_a_fork_owns_what_it_starts():
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    pids = []
    for line in ran.stdout.splitlines():
        pid, *labels = line.split()
        assert pid in labels
        pids.append(pid)
    assert len(set(pids)) == 2
