"""What one launcher gives and another cannot: the table "What a launcher cannot give" in docs/sandboxes.md, row by row.

The rest of that table is shown in test_sandbox_machines.py and test_sandbox_user.py.
"""

import asyncio
import re
import resource
from pathlib import Path

import pytest
from host_processes import groups_of
from sandbox_backends import BACKENDS, host_of, running

from miles_agents.contracts import ExecResult, ExecStatus, SandboxLimits

TESTS = Path(__file__).parent

FULL_BUFFERS = """
import os, socket, time
def fill():
    ends, sent = [], 0
    try:
        while True:
            ends.append(socket.socketpair())
            ends[-1][0].setblocking(False)
            try:
                while True:
                    sent += ends[-1][0].send(bytes(1 << 16))
            except BlockingIOError:
                pass
    except OSError:  # no more descriptors
        return ends, sent
held = 0
for _ in range(12):
    read, write = os.pipe()
    if os.fork() == 0:
        ends, sent = fill()
        os.write(write, str(sent).encode())
        time.sleep(300)
    os.close(write)
    held += int(os.read(read, 99) or 0)
print(held >> 20)
"""

FILES_AND_HOGS = """
import os, time
for number in range(3):
    with open(str(number), "wb") as file:
        for _ in range(62):
            file.write(bytes(1 << 20))
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        data = b"x" * (95 << 20)
        time.sleep(1)
        os._exit(0)
print(sum(os.waitpid(child, 0)[1] == 0 for child in children))
"""

# Pipes of 1 MB, and of the usual size once those are refused: what a user may have of them without rights is 64 MB.
TAKE_PIPES = """
import fcntl, os, time
for _ in range(3):
    read, write = os.pipe()
    if os.fork() == 0:
        held, large = [], True
        while len(held) < 50:
            held.append(os.pipe())
            try:
                large and fcntl.fcntl(held[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20)
            except OSError:
                large = False
        os.write(write, b"x")
        time.sleep(300)
    _ = os.read(read, 1)
time.sleep(4)  # the neighbour looks
print("taken")
"""
SIZE_OF_A_PIPE = "import fcntl, os\n_, write = os.pipe()\nfcntl.fcntl(write, fcntl.F_GETPIPE_SZ)"


BURN = """
import os, time
started = time.monotonic()
for _ in range(3):
    if os.fork() == 0:
        while time.monotonic() < started + 2:
            pass
        os._exit(0)
for _ in range(3):
    os.wait()
used = os.times()
print((used.children_user + used.children_system) / (time.monotonic() - started))
"""


def has_groups(backend: str, provider) -> bool:
    """Whether the kernel counts what a session uses."""
    return backend == "docker" or bool(groups_of(host_of(provider)))


async def outcome(backend: str, request, code: str, limits: SandboxLimits) -> tuple[bool, ExecResult]:
    """Whether the kernel counts, and what became of the code; the session goes on in any case."""
    async with running(backend, request, limits=limits) as provider, await provider.open() as sandbox:
        result = await sandbox.exec(code, timeout_s=60)
        assert (await sandbox.exec("6 * 7", timeout_s=60)).stdout == "42\n"
        return has_groups(backend, provider), result


@pytest.mark.parametrize("backend", BACKENDS)
async def test_memory_that_the_kernel_holds_for_a_session_counts_only_in_a_control_group(backend, request):
    limits = SandboxLimits(memory_mb=64, tmp_mb=16, processes=16, open_files=256)
    counted, result = await outcome(backend, request, FULL_BUFFERS, limits)
    if counted:
        assert result.status is ExecStatus.CRASHED or int(result.stdout) < 64 + 16 + 128, result  # Docker's total
    else:
        assert int(result.stdout) > 200  # of at most 12 * 256 / 2 buffers, some 300 MB


@pytest.mark.parametrize("backend", BACKENDS)
async def test_files_count_as_memory_only_in_a_control_group(backend, request):
    limits = SandboxLimits(memory_mb=128, tmp_mb=192, file_mb=64, processes=16)
    counted, result = await outcome(backend, request, FILES_AND_HOGS, limits)
    # files of 186 MB and processes of 285 MB; a container may have 128 + 192 + 128 MB, a session of root 128 + 64
    if counted:
        assert result.status is ExecStatus.CRASHED or int(result.stdout) < 3, result
    else:
        assert result.stdout == "3\n", result


@pytest.mark.parametrize("backend", BACKENDS)
async def test_what_the_kernel_counts_for_a_user_is_a_sessions_own_only_if_its_user_is(backend, request):
    async with running(backend, request) as provider, await provider.open() as one, await provider.open() as two:
        taking = asyncio.ensure_future(one.exec(TAKE_PIPES, timeout_s=100))
        sizes = set()
        while not taking.done():
            sizes.add(int((await two.exec(SIZE_OF_A_PIPE, timeout_s=60)).stdout))
            await asyncio.sleep(0.1)
        assert (await taking).stdout == "taken\n"
        whole = resource.getpagesize() * 16
        own_user = "distinct user ids" in provider.description
        assert (min(sizes) == whole) is own_user, sizes


@pytest.mark.parametrize("backend", BACKENDS)
async def test_only_a_control_group_holds_a_session_to_one_processor(backend, request):
    async with running(backend, request) as provider, await provider.open() as sandbox:
        processors = float((await sandbox.exec(BURN, timeout_s=60)).stdout)
        if has_groups(backend, provider):
            assert processors < 1.3
        else:  # what it gets depends on who else is busy
            assert "no control groups" in provider.description


def test_the_table_names_tests_that_exist():
    document = (TESTS.parent / "docs/sandboxes.md").read_text()
    table = document.partition("## What a launcher cannot give")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    defined = set(re.findall(r"def (test_\w+)\(", "".join(each.read_text() for each in TESTS.glob("test_sandbox*.py"))))
    assert len(named) >= 7
    assert named <= defined, named - defined
