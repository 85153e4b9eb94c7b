"""The namespace launcher as an ordinary user, whoever runs the tests: the contract and the bug reports."""

import os
from pathlib import Path

import pytest
from host_processes import descendants, descriptors_of, process_table, until
from sandbox_as_user import USER, UserSandboxes
from sandbox_backends import host_of, running
from sandbox_cases import (
    ENDLESS,
    code_over_its_limit_changes_nothing_later,
    endless_code_ends_at_the_limit,
    nothing_leaks_through_reset_or_between_sessions,
    time_out_with_strays,
)

from miles_agents.checks.sandbox import CHECKS
from miles_agents.contracts import ExecStatus, SandboxLimits

pytestmark = pytest.mark.sandbox


@pytest.fixture
async def provider(request):
    async with running("user", request) as started:
        yield started


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_an_ordinary_users_sandbox_keeps_the_contract(provider, check):
    await check(provider)


async def test_it_really_is_an_ordinary_user_in_user_namespaces(provider):
    assert "user namespaces" in provider.description
    host = host_of(provider)
    assert Path(f"/proc/{host}").stat().st_uid == (USER if os.getuid() == 0 else os.getuid())
    async with await provider.open() as sandbox:
        result = await sandbox.exec("open('/proc/self/uid_map').read().split()[1:]", timeout_s=30)
        assert result.stdout == "['0', '1']\n"  # one user: the launcher's


async def test_E01_fifty_timeouts_leave_no_process_zombie_or_descriptor(provider):  # case E01
    zygote, host, seen = provider.process_id, host_of(provider), []

    async def note(sandboxes) -> None:
        if seen:
            assert await until(lambda: len(descendants(zygote)) == len(seen[0][0])), descendants(zygote)
        seen.append((descendants(zygote), descriptors_of(host)))

    await time_out_with_strays(provider, rounds=13, settled=note)  # 52 in all
    (before, descriptors_before), (after, descriptors_after) = seen
    assert list(after.values()).count("Z") == list(before.values()).count("Z")
    assert len(descriptors_after) == len(descriptors_before)
    assert await until(lambda: len(descendants(zygote)) == 1), descendants(zygote)


async def test_E02_code_over_its_limit_ends_and_changes_nothing_later(provider):  # case E02
    await code_over_its_limit_changes_nothing_later(provider)


@pytest.mark.parametrize("code", ENDLESS)
async def test_E02_endless_code_ends_at_the_limit(provider, code):  # case E02
    await endless_code_ends_at_the_limit(provider, code)


async def test_E04_nothing_leaks_through_reset_or_between_sessions(provider):  # case E04
    await nothing_leaks_through_reset_or_between_sessions(provider)


async def test_without_control_groups_the_supervisor_bounds_the_sessions_memory(request):
    hogs = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        data = b'x' * (90 << 20)\n"
    limits = SandboxLimits(memory_mb=128)
    async with running("user", request, limits=limits) as provider, await provider.open() as sandbox:
        if "no control groups" not in provider.description:
            pytest.skip("this user's group is delegated")
        result = await sandbox.exec(hogs + "        time.sleep(60)\ntime.sleep(60)", timeout_s=30)
    # four processes of 90 MB each pass their own limit of 128 MB, but not the session's
    assert result.status is ExecStatus.CRASHED
    assert "more memory than allowed" in result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_closing_ends_the_process_that_hosts_the_sandboxes():
    provider = UserSandboxes(preload=())
    await provider.start()
    await provider.open()
    everyone = {provider.host_id, *descendants(provider.host_id)}
    assert len(everyone) == 5  # the host, its launcher, the zygote, and a session's two
    await provider.close()
    assert everyone.isdisjoint(process_table())
