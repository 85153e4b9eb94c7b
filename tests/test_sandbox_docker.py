"""The Docker launcher on a real daemon: the contract over both transports, the bug reports, hardening, leaks."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_cases import (
    ENDLESS,
    code_over_its_limit_changes_nothing_later,
    endless_code_ends_at_the_limit,
    nothing_leaks_through_reset_or_between_sessions,
    time_out_with_strays,
)

from miles_agents import assembly
from miles_agents.checks.sandbox import CHECKS
from miles_agents.configs import schema
from miles_agents.contracts import ExecStatus, Language, SandboxLimits
from miles_agents.errors import SandboxError, SandboxUnavailableError
from miles_agents.tools.sandboxes.docker import DockerSandboxes, DockerSettings, Transport
from miles_agents.tools.sandboxes.docker.backend import ContainerError
from miles_agents.tools.sandboxes.docker.engine_backend import EngineBackend
from miles_agents.tools.sandboxes.docker.owner import LABEL
from miles_agents.tools.sandboxes.docker.settings import IMAGE

docker_client = pytest.importorskip("docker", reason="pip install 'miles_agents[docker]'")
pytestmark = pytest.mark.docker

ROUTES = ("socket", "stdio")


@pytest.fixture
def daemon(docker_host):
    """The daemon, as others see it."""
    with contextlib.closing(docker_client.DockerClient(base_url=docker_host)) as client:
        yield client


@pytest.fixture
async def provider(docker_host):
    async with DockerSandboxes(settings=DockerSettings(host=docker_host, pool_size=2)) as running:
        yield running


@pytest.fixture(params=ROUTES)
async def either_way(docker_host, request):
    """A provider over each transport; one session is always ready, since the checks open them one by one."""
    settings = DockerSettings(host=docker_host, pool_size=1, transport=Transport(request.param))
    async with DockerSandboxes(settings=settings) as running:
        yield running


def containers(daemon, label: str = LABEL) -> set[str]:
    found = daemon.api.containers(all=True, filters={"label": label})
    return {each["Names"][0].lstrip("/") for each in found}


def open_descriptors(daemon) -> int:
    daemon.close()  # its own connections; it opens new ones when it needs them
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition, *, within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


# --- the contract, and the bug reports -------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_docker_sandbox_keeps_the_contract(either_way, check):
    await check(either_way)


async def test_E01_fifty_timeouts_leave_no_process_zombie_or_descriptor(provider, daemon):  # case E01
    seen = []

    def processes() -> list[str]:
        rows = []
        for name in containers(daemon, provider.label):
            with contextlib.suppress(docker_client.errors.APIError):  # one that is made or removed just now
                rows += [row[0] for row in daemon.containers.get(name).top(ps_args="-eo stat,pid")["Processes"]]
        return rows

    async def note(sandboxes) -> None:
        # two processes a session, and as many in those that are kept ready
        assert await until(lambda: len(processes()) == 2 * (len(sandboxes) + 2)), processes()
        seen.append((sum(state.startswith("Z") for state in processes()), open_descriptors(daemon)))

    await time_out_with_strays(provider, rounds=13, settled=note)  # 52 in all
    (zombies_before, descriptors_before), (zombies_after, descriptors_after) = seen
    assert zombies_before == zombies_after == 0
    assert descriptors_after <= descriptors_before + 8  # idle connections to the daemon come and go


async def test_E02_code_over_its_limit_ends_and_changes_nothing_later(provider):  # case E02
    await code_over_its_limit_changes_nothing_later(provider)


@pytest.mark.parametrize("code", ENDLESS)
async def test_E02_endless_code_ends_at_the_limit(provider, code):  # case E02
    await endless_code_ends_at_the_limit(provider, code)


async def test_E04_nothing_leaks_through_reset_or_between_sessions(provider):  # case E04
    await nothing_leaks_through_reset_or_between_sessions(provider)


class FailingRemovals(EngineBackend):
    """A real daemon of which every fifth container can be removed at the third attempt only."""

    def __init__(self, host):
        super().__init__(host)
        self.attempts: dict[str, int] = {}
        self.failures = 0

    async def remove(self, name):
        attempt = self.attempts.setdefault(name, 0)
        self.attempts[name] += 1
        if int(name.rpartition("-")[2]) % 5 == 0 and attempt < 2:
            self.failures += 1
            raise ContainerError("removal fails: the test says so", 500)
        return await super().remove(name)


async def test_E07_no_container_is_left_whatever_happens_to_its_rollout(docker_host, daemon, caplog):  # case E07
    stranger = daemon.api.create_container(IMAGE, command=["sleep", "60"], name=f"other-{os.getpid()}")
    worker = start_host(docker_host)
    orphans = containers(daemon, f"miles-agents.pid={worker.pid}")
    assert orphans
    worker.kill()  # as kill -9
    worker.communicate()
    try:
        backend = FailingRemovals(docker_host)
        provider = DockerSandboxes(settings=DockerSettings(pool_size=2), backend=backend)
        async with provider:
            ends = await asyncio.gather(*(rollout(provider, number) for number in range(100)))
        assert {kind: ends.count(kind) for kind in set(ends)} == {"start": 34, "exec": 33, "timeout": 33}
        assert containers(daemon, provider.label) == set()
        assert provider.left_behind == ()
        assert backend.failures > 10
        assert provider.counters.failed_removals == backend.failures
        assert caplog.text.count("could not be removed (attempt") == backend.failures
        assert await until(lambda: orphans.isdisjoint(containers(daemon)))
        assert daemon.containers.get(stranger["Id"]).status == "created"
    finally:
        daemon.api.remove_container(stranger["Id"], force=True)


async def rollout(provider, number: int) -> str:
    """One of a third each: cancelled while its sandbox starts, while its code runs, or stopped at the time limit."""
    chance = random.Random(number)
    if number % 3 == 0:
        opening = asyncio.ensure_future(provider.open())
        await asyncio.sleep(chance.uniform(0, 0.6))
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()  # it was faster
        return "start"
    async with await provider.open() as sandbox:
        endless = sandbox.exec("import time\nwhile True: time.sleep(0.01)", timeout_s=0.2 if number % 3 == 1 else 60)
        if number % 3 == 1:
            assert (await endless).status is ExecStatus.TIMEOUT
            return "timeout"
        running = asyncio.ensure_future(endless)
        await asyncio.sleep(chance.uniform(0, 0.3))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    return "exec"


# --- the ends of hosts and containers --------------------------------------------------------------------------------

HOST = """
import asyncio, sys
from miles_agents.tools.sandboxes.docker import DockerSandboxes, DockerSettings

async def main():
    settings = DockerSettings(host=sys.argv[1], pool_size=1, transport=sys.argv[2])
    provider = DockerSandboxes(settings=settings)
    await provider.start()
    sandbox = await provider.open()
    running = asyncio.ensure_future(sandbox.exec("while True: pass", timeout_s=600))
    await asyncio.sleep(0.1)
    print("running", flush=True)
    await running

asyncio.run(main())
"""


def start_host(host: str, transport: str = "socket") -> subprocess.Popen[str]:
    """A process that hosts a session with running code, and one that is kept ready."""
    process = subprocess.Popen([sys.executable, "-c", HOST, host, transport], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.parametrize("transport", ROUTES)
async def test_containers_of_a_killed_host_end_by_themselves(docker_host, daemon, transport):
    process = start_host(docker_host, transport)
    label = f"miles-agents.pid={process.pid}"
    assert containers(daemon, label)
    process.kill()
    process.communicate()
    assert await until(lambda: not daemon.api.containers(filters={"label": label}))


async def test_what_a_killed_host_left_unstarted_is_removed_by_the_next_start(docker_host, daemon):
    dead = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    provider = DockerSandboxes(settings=DockerSettings(host=docker_host, pool_size=0))
    mine = provider._owner.labels()
    living = {**mine, "miles-agents.run": "a-living-one"}
    start = Path(f"/proc/{dead.pid}/stat").read_text().rpartition(")")[2].split()[19]
    left = {**mine, "miles-agents.pid": str(dead.pid), "miles-agents.start": start, "miles-agents.run": "a-dead-one"}
    elsewhere = {**left, "miles-agents.place": "another-machine"}
    made = []
    for name, labels in (("living", living), ("left", left), ("elsewhere", elsewhere)):
        name = f"test-{name}-{os.getpid()}"
        daemon.api.create_container(IMAGE, command=["true"], name=name, labels=labels)
        made.append(name)
    try:
        async with provider:
            assert set(made) <= containers(daemon)
        dead.kill()
        dead.wait()
        async with DockerSandboxes(settings=DockerSettings(host=docker_host, pool_size=0)):
            pass
        assert set(made) & containers(daemon) == {made[0], made[2]}
    finally:
        dead.kill()
        for name in made:
            with contextlib.suppress(docker_client.errors.NotFound):
                daemon.api.remove_container(name, force=True)


async def test_a_container_that_is_killed_is_a_lost_session_and_the_others_go_on(provider, daemon):
    async with await provider.open() as lost, await provider.open() as other:
        await lost.write_file("mine", b"")
        daemon.containers.get(provider._names[lost._wire]).kill()
        with pytest.raises(SandboxError, match="lost"):
            await lost.exec("1", timeout_s=30)
        assert provider.counters.sessions_lost == 1
        assert (await other.exec("1", timeout_s=30)).stdout == "1\n"


async def test_a_ready_container_that_died_is_not_handed_out(docker_host, daemon):
    async with DockerSandboxes(settings=DockerSettings(host=docker_host, pool_size=1)) as provider:
        for name in containers(daemon, provider.label):
            daemon.containers.get(name).kill()
        await asyncio.sleep(1.5)  # it has waited for a while when it is wanted
        async with await provider.open() as sandbox:
            assert (await sandbox.exec("1", timeout_s=30)).stdout == "1\n"


async def test_closing_leaves_no_container_descriptor_or_folder(docker_host, daemon, short_tmp_path):
    async with DockerSandboxes(settings=DockerSettings(host=docker_host)):  # loads what is loaded once
        containers(daemon)
    descriptors = open_descriptors(daemon)
    for transport in Transport:
        provider = DockerSandboxes(settings=DockerSettings(host=docker_host, pool_size=2, transport=transport))
        await provider.start()
        for _ in range(3):
            await provider.open()
        assert len(containers(daemon, provider.label)) >= 3
        await provider.close()
        await provider.close()
        assert containers(daemon, provider.label) == set()
        with pytest.raises(SandboxError, match="not running"):
            await provider.open()
    assert list(short_tmp_path.iterdir()) == []
    assert open_descriptors(daemon) == descriptors


# --- what a container may do -----------------------------------------------------------------------------------------


async def test_a_container_is_hardened_and_bounded(docker_host, daemon):
    settings = DockerSettings(host=docker_host, pool_size=0)
    async with DockerSandboxes(settings=settings, limits=SandboxLimits(memory_mb=100, tmp_mb=20)) as provider:
        async with await provider.open() as sandbox:
            found = daemon.api.inspect_container(provider._names[sandbox._wire])
        host, config = found["HostConfig"], found["Config"]
        assert host["NetworkMode"] == "none"
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["CapAdd"] is None
        assert not host["Privileged"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert host["Memory"] == host["MemorySwap"] == (100 + 20 + 128) << 20
        assert host["PidsLimit"] == 32 + 8
        assert host["NanoCpus"] == 10**9
        assert host["AutoRemove"]
        assert host["LogConfig"]["Type"] == "none"
        assert int(config["User"].partition(":")[0]) >= 20_000
        assert [mount["RW"] for mount in found["Mounts"] if mount["Type"] == "bind"] == [False]
        labels = {f"miles-agents.{name}" for name in ("pid", "place", "run", "start", "user")}
        assert labels <= set(config["Labels"])


@pytest.mark.parametrize(("runtime", "route"), [("runc", "socket"), ("io.containerd.runc.v2", "stdio")])
async def test_the_runtime_can_be_chosen(docker_host, daemon, runtime, route):
    config = schema.SandboxConfig(
        name="docker", preload=[], docker=schema.DockerConfig(host=docker_host, pool_size=0, runtime=runtime)
    )
    async with await assembly.open_sandboxes(config) as provider, await provider.open() as sandbox:
        assert f"{runtime}, over {route}" in provider.description
        assert daemon.api.inspect_container(provider._names[sandbox._wire])["HostConfig"]["Runtime"] == runtime
        assert (await sandbox.exec("1", timeout_s=30)).stdout == "1\n"


async def test_an_image_that_is_removed_meanwhile_fails_the_opens_and_no_more(docker_host, daemon):
    name = f"miles-agents/test:{os.getpid()}"
    daemon.images.get(IMAGE).tag(name)
    try:
        settings = DockerSettings(host=docker_host, pool_size=0, image=name)
        async with DockerSandboxes(settings=settings) as provider, await provider.open() as sandbox:
            daemon.images.remove(name)
            with pytest.raises(SandboxError, match="could not be set up: No such image"):
                await provider.open()
            assert (await sandbox.exec("1", timeout_s=30)).stdout == "1\n"
            daemon.images.get(IMAGE).tag(name)
            await (await provider.open()).close()
        assert containers(daemon, provider.label) == set()
    finally:
        daemon.images.remove(name)


async def test_two_sessions_have_user_ids_of_their_own(provider):
    async with await provider.open() as one, await provider.open() as two:
        ids = [(await each.exec("import os\nos.getuid(), os.getgid()", timeout_s=30)).stdout for each in (one, two)]
        assert ids[0] != ids[1]


FILL = """
import os
n = 0
try:
    while n < {most}:
        open('{folder}/%d' % n, 'wb').write({data})
        n += 1
except OSError as error:
    print(n <= 16, error.strerror)
for name in os.listdir('{folder}'):
    os.unlink('{folder}/' + name)
"""
BOMB = """
import os, time
n = 0
try:
    while n < 100:
        if os.fork() == 0:
            time.sleep(60)
        n += 1
except OSError:
    print(n <= 24)
"""


async def test_memory_disk_and_processes_are_bounded(docker_host):
    limits = SandboxLimits(memory_mb=128, tmp_mb=16, processes=16)
    settings = DockerSettings(host=docker_host, pool_size=0)
    async with DockerSandboxes(settings=settings, limits=limits) as provider, await provider.open() as sandbox:
        hogs = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        data = b'x' * (100 << 20)\n"
        result = await sandbox.exec(f"{hogs}        time.sleep(60)\n[os.wait()[1] for _ in range(2)]", timeout_s=60)
        assert "9" in result.stdout, result  # the kernel killed some of them
        for folder in ("/tmp", "/dev/shm"):
            result = await sandbox.exec(FILL.format(folder=folder, data="bytes(1 << 20)", most=99), timeout_s=60)
            assert result.stdout == "True No space left on device\n", result  # of 1 MB each, at most 16
            result = await sandbox.exec(FILL.format(folder=folder, data="b''", most=9999), timeout_s=60)
            assert result.stdout == "False No space left on device\n", result  # of empty ones more, but not endless
        result = await sandbox.exec(BOMB, timeout_s=60)
        assert result.stdout == "True\n", result
        assert (await sandbox.exec("1", timeout_s=30)).stdout == "1\n"


async def test_code_in_a_container_cannot_dial_the_host(provider):
    dial = (
        "import os, socket\nprint(os.listdir('/run/host'))\ntry:\n"
        "    socket.socket(socket.AF_UNIX).connect('/run/host/socket')\n"
        "except OSError as error:\n    print(error.strerror)"
    )
    async with await provider.open() as sandbox:
        assert (await sandbox.exec(dial, timeout_s=30)).stdout == "[]\nNo such file or directory\n"


async def test_preloaded_packages_of_the_image_are_there(docker_host):
    settings = DockerSettings(host=docker_host, pool_size=0)
    code = "import numpy, pandas, sympy\nprint(sympy.sqrt(8), numpy.arange(3).sum(), pandas.Series([1, 2]).mean())"
    async with DockerSandboxes(settings=settings, preload=("numpy", "sympy", "pandas")) as provider:
        assert "preloaded numpy, sympy, pandas" in provider.description
        async with await provider.open() as sandbox:
            assert (await sandbox.exec(code, timeout_s=60)).stdout == "2*sqrt(2) 3 1.5\n"
            shell = await sandbox.exec("python3 -c 'import numpy' && ls /", timeout_s=60, language=Language.SHELL)
            assert shell.status is ExecStatus.OK


# --- remote daemons --------------------------------------------------------------------------------------------------


async def test_a_daemon_over_tcp_is_reached_by_standard_streams(docker_host, daemon):
    from docker_daemon import over_tcp

    async with over_tcp(docker_host) as host:
        provider = DockerSandboxes(settings=DockerSettings(host=host, pool_size=1))
        async with provider:
            assert "over stdio" in provider.description
            data = os.urandom(1 << 20)
            async with await provider.open() as sandbox:
                await sandbox.write_file("data", data)
                assert await sandbox.read_file("data") == data
                assert (await sandbox.exec("6 * 7", timeout_s=30)).stdout == "42\n"
        assert containers(daemon, provider.label) == set()
    with pytest.raises(SandboxUnavailableError, match="transport=socket needs a daemon on this machine"):
        await DockerSandboxes(settings=DockerSettings(host="tcp://192.0.2.1:2375", transport="socket")).start()


async def test_more_attachments_than_a_client_has_connections(docker_host, daemon):
    backend = EngineBackend(docker_host)
    name = f"test-attached-{os.getpid()}"
    await backend.connect()
    try:
        await backend.create(name, {"Image": IMAGE, "Cmd": ["cat"], "OpenStdin": True, "Labels": {}})
        await backend.start(name)
        async with asyncio.timeout(60):
            attachments = [await backend.attach(name, stdin=True) for _ in range(110)]
            await attachments[-1].write(b"said")
            for attachment in attachments:
                assert (await attachment.read()).data == b"said"
        for attachment in attachments:
            attachment.close()
    finally:
        await backend.remove(name)
        await backend.close()
