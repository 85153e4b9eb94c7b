"""What machines differ in: control groups of both versions and who may make them, and what they refuse, for real.

What the machine at hand lacks is skipped: systemd, control groups version 2.
"""

import dataclasses
import errno
import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import miles_agents
from miles_agents.contracts import ExecStatus, SandboxLimits
from miles_agents.tools.sandboxes import NamespaceSandboxes, SandboxProbe, probe, refusal
from miles_agents.tools.sandboxes.runner import cgroups
from miles_agents.tools.sandboxes.runner.cgroups import ControlGroups, owner_name, parent_folders, sweep
from miles_agents.tools.sandboxes.runner.seccomp import build_filter

FOUND = probe()
pytestmark = pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))
needs_groups = pytest.mark.skipif(not parent_folders(), reason="control groups cannot be made here")
needs_systemd = pytest.mark.skipif(
    not Path("/run/systemd/system").exists() or not Path("/sys/fs/cgroup/cgroup.controllers").exists(),
    reason="needs systemd and control groups version 2",
)

LIMITS = SandboxLimits(memory_mb=128, tmp_mb=16, processes=16)
HOGS = """
import os, time
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        data = b"x" * (90 << 20)
        time.sleep(1)
        os._exit(0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in children))
"""


# --- control groups, where this process can make them ---------------------------------------------------------------


def groups_of_this_process() -> dict[str, list[Path]]:
    pattern = f"{owner_name(os.getpid())}*"
    return {name: sorted(folder.glob(pattern)) for name, folder in parent_folders().items()}


def value(folders: dict[str, list[Path]], controller: str, file: str) -> str:
    group = folders["" if "" in folders else controller][0]
    return (group / file).read_text().strip()


def events(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (line.split() for line in text.splitlines())}


@needs_groups
@pytest.mark.sandbox
async def test_a_sessions_group_has_the_limits_that_were_asked_for():
    async with NamespaceSandboxes(preload=(), limits=LIMITS) as provider, await provider.open():
        assert "control groups and rlimits" in provider.description
        groups = groups_of_this_process()
        memory = str((128 + 64) << 20)  # and the supervisor's 64 MB
        if "" in groups:
            expected = {"memory.max": memory, "memory.swap.max": "0", "memory.oom.group": "0", "pids.max": "24"}
            if "cpu" in value(groups, "", "cgroup.controllers").split():
                expected |= {"cpu.max": "100000 100000", "cpu.weight": "11"}
            assert {name: value(groups, "", name) for name in expected} == expected
        else:
            assert value(groups, "memory", "memory.limit_in_bytes") == memory
            assert value(groups, "pids", "pids.max") == "24"  # and the supervisor's 8
            assert value(groups, "cpu", "cpu.cfs_quota_us") == value(groups, "cpu", "cpu.cfs_period_us") == "100000"
            assert value(groups, "cpu", "cpu.shares") == "110"
    assert not any(groups_of_this_process().values())


@needs_groups
@pytest.mark.sandbox
async def test_hogs_that_pass_only_the_sessions_limit_are_killed_and_the_session_goes_on():
    async with NamespaceSandboxes(preload=(), limits=LIMITS) as provider, await provider.open() as sandbox:
        result = await sandbox.exec(HOGS, timeout_s=100)
        assert result.status is ExecStatus.OK, result
        assert int(result.stdout) < 3  # each passes 128 MB, three are more than 192
        assert (await sandbox.exec("6 * 7", timeout_s=60)).stdout == "42\n"
        groups = groups_of_this_process()
        file = "memory.events" if "" in groups else "memory.oom_control"
        assert events(value(groups, "memory", file))["oom_kill"] >= 1


# A fresh interpreter joins the group of the processes named and prints how many children it may have. A fork of the
# tests' own process would not do: its pages, copied as it touches them, count as the group's memory.
COUNT_CHILDREN = """
import os, sys
for file in sys.argv[1:]:
    with open(file, "w") as procs:
        procs.write(str(os.getpid()))
read, write = os.pipe()
made = []
try:
    while len(made) < 100:
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
        made.append(pid)
except BlockingIOError:
    pass
os.close(write)
for pid in made:
    os.waitpid(pid, 0)
print(len(made))
"""


@needs_groups
@pytest.mark.sandbox
def test_a_group_without_rlimits_bounds_the_number_of_processes():
    groups = ControlGroups(f"{owner_name(os.getpid())}_test", memory_mb=64, processes=5)
    groups.check()
    try:
        slot = groups.take()
        files = [str(folder / "cgroup.procs") for found in groups_of_this_process().values() for folder in found]
        count = [sys.executable, "-S", "-c", COUNT_CHILDREN, *files]
        made = subprocess.run(count, capture_output=True, text=True, timeout=60, check=True).stdout
        groups.release(slot)
    finally:
        groups.remove()
    assert int(made) == 5 + 8 - 1  # the supervisor's eight, and the process that joined
    assert not any(groups_of_this_process().values())


@needs_groups
@pytest.mark.sandbox
def test_groups_of_dead_owners_are_swept_and_those_of_living_ones_stay():
    ended = subprocess.Popen(["/bin/true"])
    dead = f"miles-agents-{ended.pid}-1_0"
    ended.wait()
    living = f"{owner_name(os.getpid())}_0"
    for owner in (dead, living):
        groups = ControlGroups(owner, memory_mb=64, processes=5)
        groups.check()
    other = [folder / "miles-agents-processes" for folder in parent_folders().values()]
    before = [folder.exists() for folder in other]
    sweep()
    left = {group.name for folder in parent_folders().values() for group in folder.glob("miles-agents-*-*-*")}
    assert f"{living}-0" in left
    assert f"{dead}-0" not in left
    assert [folder.exists() for folder in other] == before
    sweep(living)
    assert not any(groups_of_this_process().values())


# --- control groups of others -----------------------------------------------------------------------------------------

# Which group holds this process, what is in and below it, and what a session's group says.
ASK = """
import asyncio, json, os
from pathlib import Path
from miles_agents.contracts import SandboxLimits
from miles_agents.tools.sandboxes import NamespaceSandboxes

def own():
    return Path("/proc/self/cgroup").read_text().strip().split("::")[1]

def below(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())

async def main():
    before = own()
    folder = Path("/sys/fs/cgroup" + before)
    limits = SandboxLimits(memory_mb=128, tmp_mb=16, processes=16)
    async with NamespaceSandboxes(preload=(), limits=limits) as provider, await provider.open() as sandbox:
        async with NamespaceSandboxes(preload=(), limits=limits) as second, await second.open():
            shared = below(folder)
        result = await sandbox.exec(HOGS, timeout_s=200)
        answer = await sandbox.exec("6 * 7", timeout_s=60)
        groups = [folder / name for name in below(folder) if name.count("-") > 2]
        limits = [(group / "memory.max").read_text().strip() for group in groups]
        print(json.dumps({
            "description": provider.description, "hogs": [result.status, result.stdout], "answer": answer.stdout,
            "before": before, "after": own(), "shared": len(shared), "limits": limits,
        }), flush=True)
    print(json.dumps({"left": below(folder), "processes": (folder / "cgroup.procs").read_text().split()}))

asyncio.run(main())
""".replace("HOGS", repr(HOGS))


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(miles_agents.__file__).parents[1]), *filter(None, sys.path)])
    return {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def in_a_scope(*properties: str) -> tuple[dict, dict]:
    """What `ASK` prints in a fresh scope of systemd: of the user's own, or for root of the machine's."""
    whose = [] if os.getuid() == 0 else ["--user"]
    ran = subprocess.run(
        ["systemd-run", *whose, "--scope", "--quiet", *properties, sys.executable, "-c", ASK],
        env=os.environ | environment() | {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    if "Failed to connect to bus" in ran.stderr:
        pytest.skip("this user has no systemd of its own")
    assert ran.returncode == 0, ran.stderr
    running, ended = map(json.loads, ran.stdout.splitlines())
    return running, ended


@needs_systemd
@pytest.mark.timeout(600)
def test_a_delegated_group_is_divided_into_one_of_its_processes_and_one_a_session():
    running, ended = in_a_scope("--property=Delegate=yes")
    assert "control groups and rlimits" in running["description"]
    assert running["after"] == running["before"] + "/miles-agents-processes"
    assert running["limits"] == [str((128 + 64) << 20)]
    assert running["shared"] == 3  # two providers in one process, a session each
    assert running["hogs"][0] == "ok"
    assert int(running["hogs"][1]) < 3
    assert running["answer"] == "42\n"
    assert ended == {"left": ["miles-agents-processes"], "processes": []}


@needs_systemd
@pytest.mark.timeout(600)
def test_a_group_that_is_not_delegated_is_left_as_it_is():
    running, ended = in_a_scope()
    assert running["after"] == running["before"]
    assert running["shared"] == 0
    assert ended["left"] == []
    assert len(ended["processes"]) == 1
    assert running["answer"] == "42\n"
    if os.getuid() != 0:  # root's sessions are bounded below the machine's root group
        assert "no control groups" in running["description"]
        assert running["hogs"][0] == "crashed"  # the supervisor's look at the memory


CONTAINER = {"cgroup.type": "domain\n", "cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": ""}
MACHINE = {"cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": "cpu memory pids"}


@pytest.mark.skipif(os.getuid() != 0, reason="whom root may disturb")
@pytest.mark.parametrize(
    ("own", "files", "found"),
    [
        ("/a/b", MACHINE, ""),
        ("/", CONTAINER, None),  # its processes are in it, and they may not be ours
        ("/", CONTAINER | {"cgroup.subtree_control": "memory pids"}, None),
        ("/a/b/../given", MACHINE, ""),  # a way out of what the container sees
        ("/a/b", MACHINE | {"cgroup.subtree_control": "memory"}, None),
        ("/a/b", MACHINE | {"cgroup.subtree_control": "memory pids"}, ""),  # without the CPU
        ("/a/given", MACHINE, "a/given"),
        ("/a/given/miles-agents-processes", MACHINE, "a/given"),
        ("/a/given/other", MACHINE, ""),
    ],
)
@pytest.mark.sandbox
def test_roots_groups_are_below_its_delegated_group_or_that_of_the_machine(tmp_path, monkeypatch, own, files, found):
    for folder in ("a/b", "a/given/other", "a/given/miles-agents-processes"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in (tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())):
        for name, text in (files if folder == tmp_path else MACHINE | {"cgroup.procs": ""}).items():
            (folder / name).write_text(text)
    os.setxattr(tmp_path / "a/given", "trusted.delegate", b"1")
    monkeypatch.setattr(cgroups, "_MOUNTS", tmp_path)
    monkeypatch.setattr(cgroups, "_own_groups", lambda: {"": own})
    expected = {} if found is None else {"": tmp_path / found}
    assert parent_folders.__wrapped__() == expected


# --- what machines refuse ---------------------------------------------------------------------------------------------


# What a process finds: as it is, or as the root of a user namespace of its own, who is an ordinary user to the machine;
# with the filter given; and then without capabilities, if asked.
RESTRICTED = """
import asyncio, dataclasses, json, os, sys
from pathlib import Path
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe
from miles_agents.tools.sandboxes.runner import linux
from miles_agents.tools.sandboxes.runner.session import map_ids
words = sys.argv[2:]
if "inside" in words:
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER)
    map_ids(inside=(0, 0), outside=(uid, gid))
if "no more namespaces" in words:
    Path("/proc/sys/user/max_user_namespaces").write_text("0")  # of this user namespace alone
if "powerless" in words:
    linux.drop_capabilities()
linux.SeccompFilter(bytes.fromhex(sys.argv[1])).install()

async def session():
    async with NamespaceSandboxes(preload=()) as provider, await provider.open() as sandbox:
        return provider.description, (await sandbox.exec("6 * 7", timeout_s=60)).stdout

found = probe()
print(json.dumps([dataclasses.asdict(found), asyncio.run(session()) if found.works else []]))
"""
ALLOW = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF_0000)
MOUNT = {"x86_64": 165, "aarch64": 40}
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


def refusing(call: dict[str, int], error: int) -> bytes:
    """A filter that refuses one system call and nothing else."""
    load = struct.pack("=HBBI", 0x20, 0, 0, 0)
    skip = struct.pack("=HBBI", 0x15, 0, 1, call[platform.machine()])
    return load + skip + struct.pack("=HBBI", 0x06, 0, 0, 0x0005_0000 | error) + ALLOW


def found_when(*words: str, program: bytes = ALLOW) -> tuple[SandboxProbe, list[str]]:
    ran = subprocess.run(
        [sys.executable, "-c", RESTRICTED, program.hex(), *words],
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    found, session = json.loads(ran.stdout)
    return SandboxProbe(**found), session


as_root = pytest.mark.skipif(not FOUND.root, reason="needs root")


@pytest.mark.sandbox
def test_the_root_of_a_user_namespace_gets_the_sandbox_of_an_ordinary_user():
    found, (description, answer) = found_when("inside")
    assert not found.root
    assert "user namespaces" in description
    assert answer == "42\n"


@pytest.mark.sandbox
def test_a_filter_like_dockers_own_is_refused_with_the_container_to_start():
    found, _ = found_when("inside", program=build_filter())
    assert (found.failed_step, found.error_number) == ("unshare_user", errno.EPERM)
    message = refusal(dataclasses.replace(found, in_container=True, apparmor_restricts=1))
    assert "--cap-add SYS_ADMIN --security-opt seccomp=unconfined" in message


@as_root
@pytest.mark.sandbox
def test_root_without_capabilities_is_refused_with_the_container_to_start():
    found, _ = found_when("powerless")
    assert (found.failed_step, found.error_number) == ("unshare", errno.EPERM)
    assert "--cap-add SYS_ADMIN --security-opt seccomp=unconfined" in refusal(found)


@as_root
@pytest.mark.sandbox
def test_a_container_with_the_capability_but_dockers_own_filter_is_refused_before_anything_starts():
    found, _ = found_when(program=refusing(PIVOT_ROOT, errno.EPERM))
    assert (found.failed_step, found.error_number) == ("pivot_root", errno.EPERM)
    assert "--security-opt seccomp=unconfined" in refusal(found)


@pytest.mark.sandbox
def test_user_namespaces_without_rights_are_refused_with_the_setting_of_ubuntu():
    found, _ = found_when("inside", program=refusing(MOUNT, errno.EACCES))  # what AppArmor answers there
    assert (found.failed_step, found.error_number) == ("mount", errno.EACCES)
    message = refusal(dataclasses.replace(found, apparmor_restricts=1, in_container=False))
    assert "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0" in message


@pytest.mark.sandbox
def test_a_machine_that_allows_no_user_namespaces_is_refused_with_its_setting():
    found, _ = found_when("inside", "no more namespaces")
    assert (found.failed_step, found.error_number, found.max_user_namespaces) == ("unshare_user", errno.ENOSPC, 0)
    assert "sudo sysctl -w user.max_user_namespaces=15000" in refusal(found)
