"""Thousands of calls with kills, cancels and time-outs leave nothing; nor does a host that is killed."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from host_processes import descendants, groups_of, living, until
from sandbox_backends import BACKENDS, NAMESPACES, host_of, running
from sandbox_soak import KILLS, Soak, left_of, processes_in

from miles_agents.contracts import SandboxLimits

LIMITS = SandboxLimits(memory_mb=128, tmp_mb=16, processes=16)
KINDS = {"plain", "shell", "files", "time_out", "shell_time_out", "stubborn", "crash", "stray", "flood"}
KINDS |= {"cancel", "reset", "close"}
HOST_KINDS = {"kill_worker", "kill_supervisor"} if KILLS else set()


@pytest.fixture
def temporary(monkeypatch, request):
    """A folder of temporary files that nobody else uses; short, for the paths of sockets."""
    if request.node.get_closest_marker("docker"):
        request.getfixturevalue("docker_host")  # its daemon may be a private one with temporary files of its own
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    monkeypatch.undo()
    shutil.rmtree(folder)


def containers(request, label: str) -> list[str]:
    """Names of the containers with this label, whether or not they run."""
    import docker

    with contextlib.closing(docker.DockerClient(base_url=request.getfixturevalue("docker_host"))) as client:
        found = client.api.containers(all=True, filters={"label": label})
    return [each["Names"][0] for each in found]


async def soak(backend: str, request, temporary: Path, *, sessions: int, calls: int) -> Soak:
    """Run one and compare what there is before and after it."""
    before, others = left_of(os.getpid(), temporary), set(descendants(os.getpid()))
    async with running(backend, request, limits=LIMITS) as provider:
        host = host_of(provider)
        async with await provider.open() as first:
            await first.exec("1", timeout_s=60)
        if backend != "docker":
            # the launcher and the zygote
            assert await until(lambda: len(descendants(host).keys() - others) == 2), (others, descendants(host))
        started = left_of(host, temporary)
        soaked = Soak(provider, sessions=sessions, calls=calls)
        await soaked.run()
        if backend != "docker":  # where sessions are made ahead the numbers stand still only after the end
            assert await until(lambda: left_of(host, temporary)[:3] == started[:3]), (started, left_of(host, temporary))
    assert await until(lambda: not processes_in(soaked.places)), processes_in(soaked.places)
    assert await until(lambda: left_of(os.getpid(), temporary) == before), (before, left_of(os.getpid(), temporary))
    assert groups_of(host) == []
    if backend == "docker":
        assert containers(request, provider.label) == []
    print(f"\n{backend}: {dict(soaked.happened)}, {dict(soaked.besides)}")
    print(f"before and after: {before}; places of processes looked at: {len(soaked.places)}")
    return soaked


@pytest.mark.parametrize("backend", BACKENDS)
async def test_hundreds_of_calls_with_kills_cancels_and_timeouts_leave_nothing(backend, request, temporary):
    sessions = 10 if backend == "docker" else 20  # a container takes longer to start than all the rest
    soaked = await soak(backend, request, temporary, sessions=sessions, calls=300)
    assert soaked.happened.total() == 300
    assert set(soaked.happened) >= {"plain", "shell", "time_out", "cancel"} | HOST_KINDS
    assert set(soaked.besides) >= {"lost", "cancelled open", "respawned"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_ten_thousand_calls_over_two_hundred_sessions_leave_nothing(backend, request, temporary):
    began = time.monotonic()
    soaked = await soak(backend, request, temporary, sessions=200, calls=10_000)
    print(f"{time.monotonic() - began:.0f} s")
    assert soaked.happened.total() == 10_000
    assert set(soaked.happened) >= KINDS | HOST_KINDS


# --- a host that is killed --------------------------------------------------------------------------------------------

HOST = """
import asyncio, os, sys
from sandbox_backends import host_of, provider_for
from sandbox_soak import place_of, processes_in
from miles_agents.contracts import Language

STRAYS = "import os\\nfor _ in range(4):\\n    if os.fork() == 0:\\n        os.setsid()\\n        while True: pass\\n"

async def main(backend, docker_host):
    provider = provider_for(backend, docker_host=docker_host)
    await provider.start()
    sessions = [await provider.open() for _ in range(4)]
    places = [await place_of(each) for each in sessions]
    busy = [
        sessions[1].exec(STRAYS + "while True: pass", timeout_s=600),
        sessions[2].exec("trap '' TERM INT HUP; sleep 600 & sleep 600", timeout_s=600, language=Language.SHELL),
        sessions[3].exec("while True: print('x' * 1000)", timeout_s=600),
    ]
    busy = [asyncio.ensure_future(each) for each in busy]
    await asyncio.sleep(0.5)
    print(host_of(provider), *processes_in(places), flush=True)
    await asyncio.gather(*busy)

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.asynccontextmanager
async def busy_host(backend: str, docker_host: str = ""):
    """A process that uses sandboxes: the id of the one to kill, and of everything that runs for it."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", HOST, backend, docker_host]
    process = await asyncio.to_thread(
        subprocess.Popen, command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            host, *inside = map(int, (await asyncio.to_thread(process.stdout.readline)).split())
            assert len(inside) >= 10, "the sessions are busy"
            yield host, {*inside, *descendants(host)}
        finally:
            process.kill()


@pytest.mark.skipif(not KILLS, reason="an ordinary user does not see the namespaces of the sessions")
@pytest.mark.parametrize("backend", NAMESPACES)
async def test_everything_of_a_host_that_is_killed_is_gone_soon(backend):
    async with busy_host(backend) as (host, everyone):
        os.kill(host, signal.SIGKILL)
        began = time.monotonic()
        # 2 s on a machine with time to spare
        assert await until(lambda: everyone.isdisjoint(living()) and not groups_of(host)), everyone & living()
        print(f"\n{backend}: gone after {time.monotonic() - began:.2f} s")


@pytest.mark.docker
async def test_containers_of_a_host_that_is_killed_are_gone_after_the_next_start(docker_host, request):
    async with busy_host("docker", docker_host) as (host, everyone):
        os.kill(host, signal.SIGKILL)
        assert await until(lambda: host not in living())
        async with running("docker", request):
            label = f"miles-agents.pid={host}"
            assert await until(lambda: not containers(request, label), within_s=20), containers(request, label)
        assert await until(lambda: everyone.isdisjoint(living())), everyone & living()
