"""The namespace launcher, for real: the contract, the bug reports, leaks, and what host and session do to another."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from host_processes import descendants, groups_of, living, process_table, until
from sandbox_cases import (
    ENDLESS,
    code_over_its_limit_changes_nothing_later,
    endless_code_ends_at_the_limit,
    nothing_leaks_through_reset_or_between_sessions,
    time_out_with_strays,
)

from miles_agents.checks.sandbox import CHECKS
from miles_agents.contracts import ExecStatus, SandboxLimits
from miles_agents.errors import ConfigError, SandboxError
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal

FOUND = probe()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


@pytest.fixture
async def provider():
    async with NamespaceSandboxes(preload=()) as running:
        yield running


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def own_groups() -> list[Path]:
    return groups_of(os.getpid())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_namespace_sandbox_keeps_the_contract(provider, check):
    await check(provider)


async def test_E01_fifty_timeouts_leave_no_process_zombie_or_descriptor(provider):  # case E01
    zygote, seen = provider.process_id, []

    async def note(sandboxes) -> None:
        if seen:
            assert await until(lambda: len(descendants(zygote)) == len(seen[0][0])), descendants(zygote)
        seen.append((descendants(zygote), open_descriptors()))

    await time_out_with_strays(provider, rounds=13, settled=note)  # 52 in all
    (before, descriptors_before), (after, descriptors_after) = seen
    assert sorted(after.values()).count("Z") == sorted(before.values()).count("Z")
    assert descriptors_after == descriptors_before
    # the launcher and the zygote are left
    assert await until(lambda: len(descendants(zygote)) == 1), descendants(zygote)


async def test_E02_code_over_its_limit_ends_and_changes_nothing_later(provider):  # case E02
    await code_over_its_limit_changes_nothing_later(provider)


@pytest.mark.parametrize("code", ENDLESS)
async def test_E02_endless_code_ends_at_the_limit(provider, code):  # case E02
    await endless_code_ends_at_the_limit(provider, code)


async def test_E04_nothing_leaks_through_reset_or_between_sessions(provider):  # case E04
    await nothing_leaks_through_reset_or_between_sessions(provider)


async def test_output_of_an_earlier_calls_thread_is_never_shown_as_the_next_calls(provider):
    ticker = (
        "import threading, time\ndef tick():\n    while True:\n        print('tick')\n        time.sleep(0.01)\n"
        "threading.Thread(target=tick, daemon=True).start()\nprint('started')"
    )
    async with await provider.open() as sandbox:
        await sandbox.exec(ticker, timeout_s=30)
        late = ""
        for number in range(5):
            result = await sandbox.exec(f"time.sleep(0.05)\nprint({number})", timeout_s=30)
            assert result.stdout == f"{number}\n"
            late += result.late_output
        assert "tick\n" in late


async def test_a_fork_that_runs_to_the_end_of_the_code_has_no_say(provider):
    async with await provider.open() as sandbox:
        result = await sandbox.exec("import os\nchild = os.fork()\nprint('both')\nchild and os.wait()[1]", timeout_s=30)
        assert result.status is ExecStatus.OK
        assert not result.forged_frames
        assert sorted(result.stdout.split()) == ["0", "0", "both", "both"]
        assert (await sandbox.exec("child > 0", timeout_s=30)).stdout == "True\n"


async def test_exit_ends_the_call_and_keeps_the_state(provider):
    async with await provider.open() as sandbox:
        assert (await sandbox.exec("x = 1\nexit()", timeout_s=30)).status is ExecStatus.OK
        result = await sandbox.exec("import sys\nsys.exit('no luck')", timeout_s=30)
        assert (result.status, result.stderr) == (ExecStatus.ERROR, "no luck\n")
        assert (await sandbox.exec("x", timeout_s=30)).stdout == "1\n"


async def test_a_syntax_error_shows_the_code_and_nothing_of_the_runner(provider):
    async with await provider.open() as sandbox:
        result = await sandbox.exec("x = 1\ny = = 2", timeout_s=30)
        expected = '  File "<cell 1>", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n'
        assert result.stderr == expected


async def test_the_same_code_prints_the_same_in_every_run():
    code = "import random\nprint({'a', 'b', 'c', 'd'}, random.random())\nimport numpy\nprint(numpy.random.rand())"
    seen = set()
    for _ in range(2):
        async with NamespaceSandboxes(preload=("numpy",)) as provider, await provider.open() as sandbox:
            seen.add((await sandbox.exec(code, timeout_s=30)).stdout)
    assert len(seen) == 1


async def test_only_preloaded_packages_can_be_imported():
    async with NamespaceSandboxes(preload=("numpy",)) as provider, await provider.open() as sandbox:
        code = "import numpy\nimport numpy.polynomial\nfloat(numpy.linalg.det(numpy.eye(2)))"
        assert (await sandbox.exec(code, timeout_s=30)).stdout == "1.0\n"
        assert "ModuleNotFoundError" in (await sandbox.exec("import pydantic", timeout_s=30)).stderr
        assert "ModuleNotFoundError" in (await sandbox.exec("import miles_agents", timeout_s=30)).stderr
        installed = (
            "import os\nroots = {os.path.dirname(os.__file__) + '/site-packages'}\n"
            "roots |= {path for path in sys.path if path.endswith('-packages')}\n"
            "print(sorted({name.split('.')[0] for root in roots if os.path.isdir(root) for name in os.listdir(root)}))"
        )
        assert (await sandbox.exec("import sys\n" + installed, timeout_s=30)).stdout == "['numpy']\n"


async def test_a_package_that_is_not_installed_is_a_clear_error():
    with pytest.raises(ConfigError, match="no package 'numpyy' is installed"):
        await NamespaceSandboxes(preload=("numpyy",)).start()


async def test_subprocesses_and_multiprocessing_work(provider):
    code = (
        "import multiprocessing, subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True, text=True).stdout)\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n    print(pool.map(abs, [-1, -2]))"
    )
    async with await provider.open() as sandbox:
        result = await sandbox.exec(code, timeout_s=60)
        assert result.stdout == "42\n\n[1, 2]\n", result


async def test_a_cancelled_call_leaves_the_session_unusable_not_out_of_step(provider):
    sandbox = await provider.open()
    running = asyncio.ensure_future(sandbox.exec("import time\ntime.sleep(60)", timeout_s=90))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(SandboxError, match="cancelled"):
        await sandbox.exec("1", timeout_s=30)
    await sandbox.close()
    assert await until(lambda: len(descendants(provider.process_id)) == 1)


async def test_cancelled_opens_leave_nothing(provider):
    descriptors = open_descriptors()
    opening = [asyncio.ensure_future(provider.open()) for _ in range(20)]
    await asyncio.sleep(0.005)
    for each in opening:
        each.cancel()
    for done in await asyncio.gather(*opening, return_exceptions=True):
        if not isinstance(done, BaseException):
            await done.close()
    assert open_descriptors() == descriptors
    assert await until(lambda: len(descendants(provider.process_id)) == 1)


async def test_closing_a_session_ends_its_call_with_a_sandbox_error(provider):
    sandbox = await provider.open()
    running = asyncio.ensure_future(sandbox.exec("import time\ntime.sleep(60)", timeout_s=90))
    await asyncio.sleep(0.1)
    await sandbox.close()
    with pytest.raises(SandboxError):
        await running


async def test_a_session_whose_supervisor_dies_is_lost_and_the_others_go_on(provider):
    async with await provider.open() as lost:
        before = set(descendants(provider.process_id))
        async with await provider.open() as other:
            supervisor = min(set(before) - {min(before)})
            os.kill(supervisor, signal.SIGKILL)
            assert await until(lambda: supervisor not in living())
            with pytest.raises(SandboxError, match="lost"):
                await lost.exec("1", timeout_s=30)
            assert (await other.exec("1", timeout_s=30)).stdout == "1\n"


async def test_a_dead_zygote_loses_its_sessions_and_the_next_one_gets_a_new_zygote():
    async with NamespaceSandboxes(preload=()) as provider:
        sandbox = await provider.open()
        everyone = set(descendants(provider.process_id))
        assert len(everyone) == 3
        os.kill(provider.process_id, signal.SIGKILL)
        assert await until(lambda: everyone.isdisjoint(living()))
        with pytest.raises(SandboxError):
            await sandbox.exec("1", timeout_s=30)
        async with await provider.open() as fresh:
            assert (await fresh.exec("6 * 7", timeout_s=30)).stdout == "42\n"
        assert (provider.counters.starts, provider.counters.sessions_lost) == (2, 1)


async def test_sessions_outlive_the_thread_that_started_the_provider():
    provider = NamespaceSandboxes(preload=())
    starter = threading.Thread(target=lambda: asyncio.run(provider.start()))
    starter.start()
    await asyncio.to_thread(starter.join)
    async with provider, await provider.open() as sandbox:
        await asyncio.sleep(0.2)
        assert (await sandbox.exec("6 * 7", timeout_s=30)).stdout == "42\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root sees the descriptors of an undumpable process")
async def test_the_supervisor_holds_no_descriptor_of_the_zygote(provider):
    async with await provider.open() as sandbox:
        await sandbox.exec("1", timeout_s=30)
        zygote = min(descendants(provider.process_id))
        supervisor = min(descendants(zygote))
        links = sorted(str(link.readlink()).split(":")[0] for link in Path(f"/proc/{supervisor}/fd").iterdir())
        assert links == ["/dev/null"] * 3 + ["pipe"] * 5 + ["socket"]


async def test_closing_the_provider_leaves_no_process_descriptor_or_control_group():
    descriptors = open_descriptors()
    provider = NamespaceSandboxes(preload=())
    await provider.start()
    for _ in range(3):
        await provider.open()
    everyone = {provider.process_id, *descendants(provider.process_id)}
    assert len(everyone) == 2 + 3 * 2
    await provider.close()
    await provider.close()
    assert everyone.isdisjoint(process_table())
    assert open_descriptors() == descriptors
    assert own_groups() == []
    with pytest.raises(SandboxError, match="not running"):
        await provider.open()


HOST = """
import asyncio, sys
from miles_agents.tools.sandboxes import NamespaceSandboxes

async def main():
    provider = NamespaceSandboxes(preload=())
    await provider.start()
    sandbox = await provider.open()
    print(provider.process_id, flush=True)
    await sandbox.exec("import time\\ntime.sleep(600)", timeout_s=900)

asyncio.run(main())
"""


async def test_when_the_host_is_killed_everything_of_it_is_gone_at_once():
    host = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", HOST], stdout=subprocess.PIPE)
    with host:
        zygote = int(await asyncio.to_thread(host.stdout.readline))
        assert await until(lambda: len(descendants(zygote)) == 3)
        everyone = {zygote, *descendants(zygote)}
        host.kill()
    assert await until(lambda: everyone.isdisjoint(living()) and not groups_of(host.pid))


async def test_the_groups_of_a_host_and_launcher_that_were_killed_are_swept_by_the_next_run():
    host = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", HOST], stdout=subprocess.PIPE)
    with host:
        launcher = int(await asyncio.to_thread(host.stdout.readline))
        assert await until(lambda: len(descendants(launcher)) == 3)
        everyone = {launcher, *descendants(launcher)}
        os.kill(launcher, signal.SIGSTOP)  # so that it cannot clear up when it sees the host's end
        host.kill()
        os.kill(launcher, signal.SIGKILL)
    assert await until(lambda: everyone.isdisjoint(living()))
    async with NamespaceSandboxes(preload=()):
        assert groups_of(host.pid) == []


async def test_128_sessions_open_run_and_close_at_the_same_time(provider):
    async def episode(number: int) -> str:
        async with await provider.open() as sandbox:
            return (await sandbox.exec(f"print({number} * 2)", timeout_s=60)).stdout

    assert await asyncio.gather(*map(episode, range(128))) == [f"{2 * number}\n" for number in range(128)]


async def test_limits_are_the_ones_asked_for():
    limits = SandboxLimits(output_kb=1, file_mb=1, tmp_mb=2)
    async with NamespaceSandboxes(preload=(), limits=limits) as provider, await provider.open() as sandbox:
        result = await sandbox.exec("print('x' * 5000)", timeout_s=30)
        assert len(result.stdout) < 1100
        result = await sandbox.exec("_ = open('f', 'wb').write(bytes(2 << 20))", timeout_s=30)
        assert "File too large" in result.stderr
        with pytest.raises(OSError, match="File too large"):
            await sandbox.write_file("big", bytes(2 << 20))
        await sandbox.write_file("part", bytes(900 << 10))
        with pytest.raises(OSError, match="No space"):
            await sandbox.write_file("more", bytes(1 << 20))
