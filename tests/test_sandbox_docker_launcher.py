"""The Docker launcher without a daemon: ownership, transports, refusals and settings, on the fake engine."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from miles_agents import assembly
from miles_agents.configs import schema
from miles_agents.configs.ranges import check_ranges
from miles_agents.contracts import ExecStatus
from miles_agents.errors import ConfigError, SandboxError, SandboxUnavailableError, UsageError
from miles_agents.tools.sandboxes import NamespaceSandboxes
from miles_agents.tools.sandboxes.docker import (
    ContainerError,
    DockerSandboxes,
    DockerSettings,
    FakeContainerBackend,
    Pull,
    Transport,
)
from miles_agents.tools.sandboxes.docker import removals as removals_module
from miles_agents.tools.sandboxes.docker.backend import ContainerRecord, EngineFacts, ImageFacts
from miles_agents.tools.sandboxes.docker.daemon import unreachable
from miles_agents.tools.sandboxes.docker.owner import LABEL, Owner
from miles_agents.tools.sandboxes.docker.settings import IMAGE

ROOT = Path(__file__).parents[1]
ROUTES = ("socket", "stdio")


async def answer(request):
    """What the fake's sessions say: code is a number of seconds to take, or anything."""
    seconds = float(request["code"]) if request["code"].replace(".", "").isdigit() else 0.0
    await asyncio.sleep(min(seconds, request["timeout_s"]))
    return {"status": "timeout" if seconds > request["timeout_s"] else "ok", "stdout": "said"}


def docker_on(backend, **settings) -> DockerSandboxes:
    return DockerSandboxes(backend=backend, settings=DockerSettings(**{"pool_size": 0, **settings}))


async def refusal_of(backend, **settings) -> str:
    with pytest.raises(SandboxUnavailableError) as caught:
        await docker_on(backend, **settings).start()
    assert backend.closed
    assert backend.containers == {}
    return str(caught.value)


# --- sessions and ownership -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ROUTES)
async def test_a_session_is_a_container_of_its_own_and_is_discarded(transport):
    backend = FakeContainerBackend(answer)
    async with docker_on(backend, transport=transport) as provider:
        for _ in range(3):
            async with await provider.open() as sandbox:
                assert (await sandbox.exec("x", timeout_s=1)).stdout == "said"
                await sandbox.reset()
                assert (await sandbox.exec("x", timeout_s=1)).stdout == "said"
        assert provider.counters.starts == 6
    assert len(backend.created) == 6  # the first one was made by start()
    assert sorted(backend.created) == sorted(backend.removed)
    assert backend.containers == {}


async def test_E07_no_container_is_left_whatever_happens_to_its_rollout(monkeypatch, caplog):  # case E07
    monkeypatch.setattr(removals_module, "_FIRST_PAUSE_S", 0.001)
    failing = {number for number in range(400) if number % 5 in (0, 1)}
    backend = FakeContainerBackend(answer, create_s=0.02, start_s=0.02, fail_removals=failing)
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    start = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[19]
    of_worker = {**Owner.of_this_process().labels(), "miles-agents.pid": str(worker.pid), "miles-agents.start": start}
    backend.put(ContainerRecord("of-the-worker", of_worker))
    backend.put(ContainerRecord("a-neighbour's", Owner.of_this_process().labels()))
    backend.put(ContainerRecord("a-stranger's", {"some": "label"}))
    worker.kill()
    worker.wait()
    async with docker_on(backend, pool_size=3) as provider:
        ends = await asyncio.gather(*(rollout(provider, number) for number in range(100)))
    assert {kind: ends.count(kind) for kind in set(ends)} == {"start": 34, "exec": 33, "timeout": 33}
    assert set(backend.containers) == {"a-neighbour's", "a-stranger's"}
    assert sorted(backend.removed) == sorted([*backend.created, "of-the-worker"])
    failed = sum(number in failing for number in range(backend.removal_attempts))
    assert failed > 20
    assert provider.counters.failed_removals == failed
    assert caplog.text.count("could not be removed (attempt") == failed
    assert provider.left_behind == ()


async def rollout(provider, number: int) -> str:
    """One of a third each: cancelled while its sandbox starts, while its code runs, or stopped at the time limit."""
    chance = random.Random(number)
    if number % 3 == 0:
        opening = asyncio.ensure_future(provider.open())
        await asyncio.sleep(chance.uniform(0, 0.1))
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()  # it was faster
        return "start"
    async with await provider.open() as sandbox:
        if number % 3 == 1:
            assert (await sandbox.exec("60", timeout_s=0.02)).status is ExecStatus.TIMEOUT
            return "timeout"
        running = asyncio.ensure_future(sandbox.exec("60", timeout_s=60))
        await asyncio.sleep(chance.uniform(0, 0.05))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    return "exec"


@pytest.mark.parametrize("transport", ROUTES)
@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.05, 0.07, 0.09])
async def test_cancelled_at_any_moment_of_its_start_a_container_is_removed(transport, after_s):
    backend = FakeContainerBackend(answer, create_s=0.04, start_s=0.04)
    async with docker_on(backend, transport=transport) as provider:
        (await provider.open()).close  # noqa: B018 — the first session, which start() made
        made = len(backend.created)
        opening = asyncio.ensure_future(provider.open())
        await asyncio.sleep(after_s)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()  # it was faster
        await asyncio.sleep(0.1)  # by now what was under way is made, and gone again: nobody waits for the end for it
        assert sorted(backend.created[made:]) == sorted(set(backend.removed) & set(backend.created[made:]))
    assert len(backend.created) - made in (0, 1)
    assert sorted(backend.created) == sorted(backend.removed)
    assert backend.containers == {}


async def test_what_could_not_be_removed_is_named_at_the_end(monkeypatch, caplog):
    monkeypatch.setattr(removals_module, "_FIRST_PAUSE_S", 0.001)
    backend = FakeContainerBackend(answer, fail_removals=range(1000))
    provider = docker_on(backend)
    async with provider:
        pass
    assert provider.left_behind == tuple(backend.created)
    assert f"docker rm --force {backend.created[0]}" in caplog.text


async def test_a_daemon_that_fails_for_a_while_fails_the_opens_of_that_while_only():
    backend = FakeContainerBackend(answer)
    async with docker_on(backend) as provider:
        await provider.open()
        backend.refuse_creations = "no space left on device"
        with pytest.raises(SandboxError, match="could not be set up: no space left on device"):
            await provider.open()
        assert provider.counters.failed_starts == 1
        backend.refuse_creations = ""
        async with await provider.open() as sandbox:
            assert (await sandbox.exec("x", timeout_s=1)).status is ExecStatus.OK


async def test_a_ready_session_costs_no_wait_and_a_full_house_is_counted_as_one():
    backend = FakeContainerBackend(answer, create_s=0.1)
    async with docker_on(backend, max_parallel_starts=1) as provider:
        await provider.open()
        assert provider.counters.start_s < 0.1
        await asyncio.gather(provider.open(), provider.open())
        # two launches of 0.1 s, one after the other: 0.1 + 0.2 s in all, of which the second waits 0.1 s for its turn
        assert provider.counters.start_s >= 0.29
        assert 0.09 <= provider.counters.pool_wait_s <= provider.counters.start_s - 0.19


# --- owners -----------------------------------------------------------------------------------------------------------


def test_only_containers_of_this_users_dead_processes_of_this_place_are_left_over():
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    me = Owner.of_this_process()
    labels = {**me.labels(), "miles-agents.pid": str(dead.pid), "miles-agents.start": "1"}
    assert me.may_reap(labels)
    assert me.may_reap({**labels, "miles-agents.pid": str(os.getpid())})  # the same number, another process
    assert not me.may_reap(me.labels())
    assert not me.may_reap(Owner.of_this_process().labels())  # another launcher of this process
    for key in labels:
        assert not me.may_reap({name: value for name, value in labels.items() if name != key}), key
    for key in ("miles-agents.place", "miles-agents.user"):
        assert not me.may_reap({**labels, key: "other"}), key


def test_an_owner_that_cannot_be_looked_at_is_alive(monkeypatch):
    me = Owner.of_this_process()
    labels = me.labels()
    monkeypatch.setattr("miles_agents.tools.sandboxes.docker.owner.start_time", lambda pid: None)
    assert not me.may_reap(labels)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert me.may_reap({**labels, "miles-agents.pid": str(gone.pid)})


def test_no_two_launchers_of_one_process_claim_the_same_name():
    one, two = Owner.of_this_process(), Owner.of_this_process()
    assert one.container_name(0) != two.container_name(0)
    assert one.container_name(1) != one.container_name(0)
    assert one.labels()[LABEL] == one.name
    assert str(os.getpid()) in one.name


async def test_folders_of_killed_hosts_are_removed_and_those_of_living_ones_are_not(short_tmp_path):
    tmp_path = short_tmp_path
    me = Owner.of_this_process()
    left = tmp_path / f"miles-agents-{me.place}-{os.getpid()}-1-abcdefgh"
    other = tmp_path / f"miles-agents-0123456789abcdef-{os.getpid()}-1-abcdefgh"
    for folder in (left, other):
        (folder / "7").mkdir(parents=True)
    async with docker_on(FakeContainerBackend(answer), transport="socket"):
        folders = set(tmp_path.iterdir()) - {other}
        assert len(folders) == 1
        assert left not in folders
        assert folders.pop().stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [other]


# --- transports -------------------------------------------------------------------------------------------------------


class NoMounts(FakeContainerBackend):
    """An engine that sees other files than the host: behind a forwarded socket, or in a virtual machine."""

    async def create(self, name, body):
        if body["HostConfig"].get("Mounts"):
            raise ContainerError("invalid mount config: bind source path does not exist", 400)
        await super().create(name, body)


async def test_auto_takes_the_streams_where_a_socket_does_not_work_and_says_so(caplog):
    async with docker_on(NoMounts(answer)) as provider:
        assert "over stdio" in provider.description
        async with await provider.open() as sandbox:
            assert (await sandbox.exec("x", timeout_s=1)).stdout == "said"
    assert "a socket does not work: a sandbox session could not be set up: invalid mount config" in caplog.text


async def test_an_asked_for_socket_is_not_replaced():
    assert "invalid mount config" in await refusal_of(NoMounts(answer), transport="socket")


@pytest.mark.parametrize(
    ("host", "runtime", "route"),
    [
        ("unix:///var/run/docker.sock", "", "socket"),
        ("unix:///var/run/docker.sock", "crun", "socket"),
        ("unix:///var/run/docker.sock", "runsc", "stdio"),
        ("tcp://192.0.2.1:2376", "", "stdio"),
        ("ssh://user@192.0.2.1", "", "stdio"),
    ],
)
async def test_auto_dials_a_socket_only_where_engine_and_kernel_are_here(host, runtime, route):
    backend = FakeContainerBackend(answer, facts=EngineFacts(runtimes=("runc", "crun", "runsc")))
    backend.host = host
    async with docker_on(backend, runtime=runtime) as provider:
        assert f"over {route}" in provider.description
        assert (runtime or "runc") in provider.description
        created = backend.containers[backend.created[0]].body["HostConfig"]
        assert created.get("Runtime", "") == runtime


@pytest.mark.parametrize("transport", ROUTES)
async def test_a_session_that_refuses_says_why_and_is_not_tried_another_way(transport):
    backend = FakeContainerBackend(greeting={"failed": "ModuleNotFoundError: No module named 'numpyy'"})
    said = await refusal_of(backend, transport=transport)
    assert "No module named 'numpyy'" in said
    assert len(backend.created) == 1


@pytest.mark.parametrize("transport", ROUTES)
async def test_a_container_that_ends_before_its_greeting_is_explained(transport):
    backend = FakeContainerBackend(greeting={})
    said = await refusal_of(backend, transport=transport)
    assert "it broke: its script says so" in said
    assert "(exit code 1)" in said


async def test_user_ids_fit_into_a_mapping_where_the_engine_maps_them():
    for maps, lowest, highest in ((True, 20_000, 60_000), (False, 2_000_000_000, 2_100_000_000)):
        backend = FakeContainerBackend(answer, facts=EngineFacts(maps_user_ids=maps))
        async with docker_on(backend):
            user, _, group = backend.containers[backend.created[0]].body["User"].partition(":")
            assert user == group
            assert lowest <= int(user) < highest


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_a_missing_image_is_refused_with_the_command_that_makes_it():
    backend = FakeContainerBackend(answer)
    backend.images.clear()
    said = await refusal_of(backend)
    assert "make sandbox-image" in said
    assert "docker/build_offline.sh" in said


async def test_an_image_with_volumes_is_refused():
    backend = FakeContainerBackend(answer)
    backend.images["postgres:17"] = ImageFacts(volumes=["/var/lib/data"])
    said = await refusal_of(backend, image="postgres:17")
    assert "declares volumes (/var/lib/data)" in said


async def test_starts_and_closes_at_the_same_time_take_turns():
    backend = FakeContainerBackend(answer, create_s=0.05, start_s=0.05)
    provider = docker_on(backend)
    await asyncio.gather(provider.start(), provider.start())
    assert len(backend.created) == 1
    await asyncio.gather(provider.close(), provider.start(), provider.close())
    assert len(backend.created) == 2
    assert backend.containers == {}


async def test_a_foreign_image_is_fetched_only_when_that_is_allowed():
    said = await refusal_of(FakeContainerBackend(answer), image="python:3.12")
    assert "docker pull python:3.12" in said
    assert "sandbox.docker.pull=missing" in said
    backend = FakeContainerBackend(answer)
    async with docker_on(backend, image="python:3.12", pull="missing") as provider:
        assert "python:3.12" in provider.description
    assert "python:3.12" in backend.images


@pytest.mark.parametrize(
    ("facts", "settings", "said"),
    [
        (EngineFacts(limits_memory=False), {}, ("cannot limit memory", "Delegate=cpu cpuset io memory pids")),
        (EngineFacts(limits_processes=False), {}, ("cannot limit processes",)),
        (EngineFacts(system="windows"), {}, ("windows containers",)),
        (EngineFacts(), {"runtime": "runsc"}, ("no runtime 'runsc', only runc", "runsc install")),
    ],
)
async def test_a_daemon_that_cannot_hold_sessions_to_their_limits_is_refused(facts, settings, said):
    message = await refusal_of(FakeContainerBackend(answer, facts=facts), **settings)
    for part in said:
        assert part in message


async def test_what_a_session_can_go_without_is_a_warning(caplog):
    facts = EngineFacts(limits_swap=False, limits_cpu=False)
    async with docker_on(FakeContainerBackend(answer, facts=facts)):
        assert "cannot limit swap" in caplog.text
        assert "cannot limit the processor" in caplog.text


async def test_no_daemon_is_refused_with_what_to_type(tmp_path):
    pytest.importorskip("aiodocker")
    host = f"unix://{tmp_path}/docker.sock"
    with pytest.raises(SandboxUnavailableError) as caught:
        await DockerSandboxes(settings=DockerSettings(host=host)).start()
    assert f"sandbox=docker cannot run here: no Docker daemon answers at {host}" in str(caught.value)
    assert "sudo systemctl start docker" in str(caught.value)


def test_a_forbidden_socket_and_a_silent_host_say_what_to_type():
    denied = unreachable("unix:///var/run/docker.sock", "PermissionError(13, 'Permission denied')")
    assert "sudo usermod -aG docker $USER" in denied
    assert "docker --host tcp://there:2376 info" in unreachable("tcp://there:2376", "refused")


def test_without_the_libraries_the_refusal_says_what_to_install():
    code = (
        "import asyncio, sys\nsys.modules['aiodocker'] = None\n"
        "from miles_agents.tools.sandboxes.docker import DockerSandboxes\nasyncio.run(DockerSandboxes().start())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "SandboxUnavailableError" in ran.stderr
    assert "pip install 'miles_agents[docker]'" in ran.stderr


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"pull": "always"}, {"transport": "tcp"}, {"pool_size": -1}, {"max_parallel_starts": 0}, {"image": " "}],
)
def test_a_bad_value_is_refused_at_once_and_named(wrong):
    (key,) = wrong
    with pytest.raises(UsageError, match=f"sandbox.docker.{key}"):
        DockerSettings(**wrong)


def test_bad_values_of_the_configuration_are_refused_before_anything_starts():
    docker = schema.DockerConfig(pull="always", transport="tcp", pool_size=-1, max_parallel_starts=0)
    with pytest.raises(ConfigError) as caught:
        check_ranges(schema.TrainConfig(sandbox=schema.SandboxConfig(docker=docker)))
    for key in ("pull", "transport", "pool_size", "max_parallel_starts"):
        assert f"sandbox.docker.{key}=" in str(caught.value)


def test_configuration_launcher_and_image_agree():
    assert (ROOT / "docker/sandbox.version").read_text() == f"{IMAGE.rpartition(':')[2]}\n"
    config = schema.DockerConfig()
    assert DockerSettings(**vars(config)) == DockerSettings()
    assert (config.image, config.pull, config.transport) == (IMAGE, Pull.NEVER, Transport.AUTO)
    exact = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    image = (ROOT / "docker/sandbox.constraints.txt").read_text().splitlines()
    packages = dict(line.split("==") for line in image if "==" in line)
    assert {"numpy", "sympy", "pandas"} <= set(packages)
    assert {name: exact.get(name, version) for name, version in packages.items()} == packages


async def test_auto_takes_docker_where_namespaces_are_refused_and_says_which(monkeypatch, caplog):
    async def refuse(self):
        raise SandboxUnavailableError("no namespaces here")

    monkeypatch.setattr(NamespaceSandboxes, "start", refuse)
    backend = FakeContainerBackend(answer)
    monkeypatch.setattr("miles_agents.tools.sandboxes.docker.sandboxes._engine_backend", lambda host: backend)
    provider = await assembly.open_sandboxes(schema.SandboxConfig(docker=schema.DockerConfig(pool_size=1)))
    async with provider:
        assert provider.description.startswith("docker (")
    assert "sandbox=auto takes docker, since no namespaces here" in caplog.text
    backend.images.clear()
    with pytest.raises(SandboxUnavailableError) as caught:
        await assembly.open_sandboxes(schema.SandboxConfig())
    assert "no namespaces here" in str(caught.value)
    assert "make sandbox-image" in str(caught.value)
