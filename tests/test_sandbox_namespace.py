"""The namespace launcher, for real: the contract, the bug reports, leaks, and what host and session do to another."""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import miles_agents
from miles_agents.checks.sandbox import CHECKS
from miles_agents.contracts import ExecStatus, SandboxLimits
from miles_agents.errors import ConfigError, SandboxError
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal
from miles_agents.tools.sandboxes.runner.cgroups import parent_folders

FOUND = probe()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]

REPOSITORY = Path(miles_agents.__file__).parents[1]


@pytest.fixture
async def provider():
    async with NamespaceSandboxes(preload=()) as running:
        yield running


def process_table() -> dict[int, tuple[int, str]]:
    """Parent and state of every process of the host, by process id."""
    table = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                table[int(folder.name)] = (int(fields[1]), fields[0])
    return table


def descendants(root: int) -> dict[int, str]:
    """States of all processes below `root`, by process id."""
    table, found, waiting = process_table(), {}, [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, (its_parent, _) in table.items() if its_parent == parent]
        found.update({pid: table[pid][1] for pid in children})
        waiting += children
    return found


def living() -> set[int]:
    return {pid for pid, (_, state) in process_table().items() if state != "Z"}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def groups_of(host: int) -> list[Path]:
    return [group for folder in parent_folders().values() for group in folder.glob(f"miles-agents-{host}-*")]


def own_groups() -> list[Path]:
    return groups_of(os.getpid())


async def until(condition, *, within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_namespace_sandbox_keeps_the_contract(provider, check):
    await check(provider)


AS_USER = """
import asyncio, json, os
from miles_agents.checks.sandbox import check_sandbox
from miles_agents.contracts import SandboxLimits
from miles_agents.tools.sandboxes import NamespaceSandboxes

async def main():
    async with NamespaceSandboxes(preload=(), limits=SandboxLimits(memory_mb=128)) as provider:
        findings = await check_sandbox(provider)
        async with await provider.open() as sandbox:
            hog = "import os, time\\nfor _ in range(4):\\n    if os.fork() == 0:\\n        data = b'x' * (90 << 20)\\n"
            result = await sandbox.exec(hog + "        time.sleep(60)\\ntime.sleep(60)", timeout_s=30)
            peek = "seen = []\\nfor name in ('mem', 'environ', 'maps'):\\n"
            peek += "    try: seen.append(open('/proc/1/' + name))\\n"
            peeked = await sandbox.exec(peek + "    except OSError: pass\\nprint(seen)", timeout_s=30)
        print(json.dumps([os.getuid(), findings, result.status, result.stderr, peeked.stdout]))

asyncio.run(main())
"""


def interpreter_for_everyone() -> str | None:
    """An interpreter of this version that an ordinary user can run with this process's packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    check = f"import sys, numpy, pydantic; assert sys.version.startswith('{version}.')"
    for candidate in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        with contextlib.suppress(OSError):
            if run_as_user(candidate, check).returncode == 0:
                return candidate
    return None


def run_as_user(interpreter: str, code: str) -> subprocess.CompletedProcess[str]:
    paths = [str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {"PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [interpreter, "-c", code],
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.skipif(os.getuid() != 0, reason="run as an ordinary user, every test here is that test")
def test_an_ordinary_user_gets_the_same_contract_through_user_namespaces():
    interpreter = interpreter_for_everyone()
    if interpreter is None:
        pytest.skip("no interpreter of this version with these packages that an ordinary user can run")
    ran = run_as_user(interpreter, AS_USER)
    assert ran.returncode == 0, ran.stderr
    uid, findings, status, stderr, peeked = json.loads(ran.stdout)
    assert uid == 65534
    assert findings == []
    assert peeked == "[]\n"  # nothing of the supervisor, though it is the same user
    # four processes of 90 MB each pass their own limit of 128 MB, but not the session's
    assert status == "crashed"
    assert "more memory than allowed" in stderr


# case E01
STRAYS = {
    "background": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n",
    "setsid": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\n",
    "double fork": "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(300)\n    os._exit(0)\n",
    "endless loop": "",
}


async def test_E01_fifty_timeouts_leave_no_process_zombie_or_descriptor(provider):
    zygote = provider.process_id
    sandboxes = {name: await provider.open() for name in STRAYS}
    await asyncio.gather(*(sandbox.exec("1", timeout_s=30) for sandbox in sandboxes.values()))
    processes, descriptors = descendants(zygote), open_descriptors()

    async def time_out(name: str) -> None:
        started = time.monotonic()
        result = await sandboxes[name].exec(STRAYS[name] + "while True: pass", timeout_s=0.1)
        assert result.status is ExecStatus.TIMEOUT
        assert time.monotonic() - started < 10  # limit + 2 s, and a busy machine

    for _ in range(13):  # 52 in all
        await asyncio.gather(*(time_out(name) for name in STRAYS))
    assert await until(lambda: len(descendants(zygote)) == len(processes)), descendants(zygote)
    assert sorted(descendants(zygote).values()).count("Z") == sorted(processes.values()).count("Z")
    assert open_descriptors() == descriptors
    for sandbox in sandboxes.values():
        await sandbox.close()
    # the launcher and the zygote are left
    assert await until(lambda: len(descendants(zygote)) == 1), descendants(zygote)


async def test_E02_code_over_its_limit_ends_and_changes_nothing_later(provider):  # case E02
    async with await provider.open() as sandbox:
        started = time.monotonic()
        result = await sandbox.exec("import time\ntime.sleep(4)\nx = 1", timeout_s=0.5)
        assert result.status is ExecStatus.TIMEOUT
        assert time.monotonic() - started < 3.5
        await asyncio.sleep(max(0.0, started + 4.5 - time.monotonic()))
        result = await sandbox.exec("x", timeout_s=30)
        assert "NameError" in result.stderr


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try: pass\n    except: pass",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import ctypes\nctypes.CDLL(None).sleep(100)\nwhile True: pass",
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
async def test_E02_endless_code_ends_at_the_limit(provider, code):  # case E02
    async with await provider.open() as sandbox:
        started = time.monotonic()
        result = await sandbox.exec(code, timeout_s=0.3)
        assert result.status is ExecStatus.TIMEOUT
        assert time.monotonic() - started < 10
        assert (await sandbox.exec("2 + 2", timeout_s=30)).stdout == "4\n"


FINGERPRINT = """
import gc, math, os, random, signal, socket, sys, threading
print(sorted(globals()), math.pi, os.getcwd(), os.listdir('.'), sorted(os.environ.items()), os.listdir('/dev/shm'))
print(threading.active_count(), [p for p in os.listdir('/proc') if p.isdigit()], sys.path, len(sys.modules))
print(random.random(), hash('a'), socket.gethostname(), signal.getsignal(signal.SIGTERM), os.umask(0o22))
"""
LEAKS = {
    "function": "def foo(): return 41",
    "file": "_ = open('a.txt', 'w').write('1')",
    "shared memory": "_ = open('/dev/shm/a', 'w').write('1')",
    "environment": "import os; os.environ['LEAK'] = '1'",
    "folder": "import os; os.mkdir('d'); os.chdir('d')",
    "module": "import math; math.pi = 3",
    "thread": "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "process": "import os, time\nif os.fork() == 0: time.sleep(99)",
    "signal": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "random state": "import random; random.seed(7)",
    "umask": "import os; os.umask(0)",
    "builtins": "import builtins; builtins.leak = 1",
}


async def test_E04_nothing_leaks_through_reset_or_between_sessions(provider):  # case E04
    async with await provider.open() as sandbox, await provider.open() as neighbour:
        fresh = (await sandbox.exec(FINGERPRINT, timeout_s=30)).stdout
        assert "3.14159" in fresh
        order = list(LEAKS)
        random.Random(0).shuffle(order)
        for name in order:
            result = await sandbox.exec(LEAKS[name], timeout_s=30)
            assert result.status is ExecStatus.OK, (name, result)
            await sandbox.reset()
            assert (await sandbox.exec(FINGERPRINT, timeout_s=30)).stdout == fresh, name
            await sandbox.reset()
        for code in LEAKS.values():
            await sandbox.exec(code, timeout_s=30)
        assert (await neighbour.exec(FINGERPRINT, timeout_s=30)).stdout == fresh


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
            "roots |= {path for path in sys.path if path.endswith('site-packages')}\n"
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
