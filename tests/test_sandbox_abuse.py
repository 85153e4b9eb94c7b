"""What hostile code tries in a namespace sandbox: none of it may reach the host, another session or the runner."""

import asyncio
import os
import socket
import time

import pytest

from miles_agents.contracts import ExecStatus, SandboxLimits
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal

FOUND = probe()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]

LIMITS = SandboxLimits(memory_mb=128, tmp_mb=16, file_mb=8, processes=16)


@pytest.fixture
async def sandbox():
    async with NamespaceSandboxes(preload=(), limits=LIMITS) as provider, await provider.open() as opened:
        yield opened
        result = await opened.exec("6 * 7", timeout_s=60)  # whatever was tried, the session serves the next call
        assert (result.status, result.stdout) == (ExecStatus.OK, "42\n")


async def run(sandbox, code, timeout_s=60):
    return await sandbox.exec(code, timeout_s=timeout_s)


async def test_fork_bomb_meets_the_process_limit(sandbox):
    code = (
        "import os, time\ncount = 0\ntry:\n    while count < 400:\n        if os.fork() == 0:\n"
        "            time.sleep(60)\n            os._exit(0)\n        count += 1\n"
        "except BlockingIOError:\n    print('refused', count <= 16)"
    )
    result = await run(sandbox, code)
    assert result.stdout == "refused True\n"
    assert result.strays_killed >= 8


async def test_fork_bomb_that_multiplies_is_put_down(sandbox):
    code = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    started = time.monotonic()
    result = await run(sandbox, code, timeout_s=1)
    assert result.status is ExecStatus.TIMEOUT
    assert time.monotonic() - started < 20


async def test_memory_hog_gets_a_memory_error_and_keeps_its_state(sandbox):
    code = "kept = 1\nhoard = []\nwhile True:\n    hoard.append(bytearray(16 << 20))"
    result = await run(sandbox, code)
    assert result.status is ExecStatus.ERROR
    assert "MemoryError" in result.stderr
    assert (await run(sandbox, "hoard = None\nkept")).stdout == "1\n"


async def test_memory_hogs_together_meet_the_sessions_limit(sandbox):
    code = (
        "import os, time\nchildren = []\nfor _ in range(4):\n    pid = os.fork()\n    if pid == 0:\n"
        "        data = b'x' * (100 << 20)\n        time.sleep(2)\n        os._exit(0)\n    children.append(pid)\n"
        "print(sum(os.waitpid(pid, 0)[1] == 0 for pid in children))"
    )
    result = await run(sandbox, code)
    assert result.stdout != "4\n"  # 400 MB with a limit of 128: some are killed, or the session is stopped


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
async def test_filling_the_disk_meets_its_limit(sandbox, folder):
    code = (
        "written = 0\ntry:\n    for number in range(20):\n"
        f"        with open('{folder}/' + str(number), 'wb') as file:\n"
        "            for _ in range(7):\n                file.write(bytes(1 << 20))\n                file.flush()\n"
        "                written += 1\nexcept OSError as error:\n    print(error.strerror, written <= 16)"
    )
    assert (await run(sandbox, code)).stdout == "No space left on device True\n"
    await sandbox.reset()


async def test_making_endless_files_meets_its_limit(sandbox):
    code = (
        "try:\n    for number in range(100_000):\n        open(str(number), 'w').close()\n"
        "except OSError as error:\n    print(error.strerror, number < 2000)"
    )
    assert (await run(sandbox, code)).stdout == "No space left on device True\n"
    await sandbox.reset()


async def test_host_files_and_environment_are_out_of_sight(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    canary = tmp_path / "canary"
    canary.write_text("hunter2")
    for folder in (canary, *canary.parents):
        if folder.stat().st_uid == os.getuid() and folder.is_relative_to(tmp_path):
            folder.chmod(0o777)
    code = (
        "import glob, os\nfound = []\n"
        f"names = ['{canary}', '/etc/shadow', '/etc/hostname', '/root/.bashrc', '/proc/1/root{canary}']\n"
        "for name in names + glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/task/*/environ'):\n"
        "    try:\n        data = open(name, 'rb').read()\n"
        "        if b'environ' not in name.encode() or b'hunter2' in data:\n            found.append(name)\n"
        "    except OSError:\n        pass\nprint(found, 'HOST_SECRET' in os.environ, os.path.exists('/home'))"
    )
    async with NamespaceSandboxes(preload=()) as provider, await provider.open() as sandbox:
        assert (await run(sandbox, code)).stdout == "[] False False\n"


async def test_the_worker_holds_no_descriptor_but_its_own_pipes(sandbox):
    code = (
        "import os\nfound = {}\nfor fd in os.listdir('/proc/self/fd'):\n"
        "    try: found[int(fd)] = os.readlink('/proc/self/fd/' + fd).split(':')[0]\n    except OSError: pass\n"
        "print(sorted(found.values()))"
    )
    assert (await run(sandbox, code)).stdout == f"{['/dev/null'] + ['pipe'] * 5}\n"


async def test_links_and_dotted_paths_lead_nowhere(sandbox, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("hunter2")
    await run(sandbox, f"import os\nos.symlink('{canary}', 'out')\nos.symlink('/proc/1/root', 'root')")
    for path in ("out", f"../../../..{canary}", f"root{canary}", f"/proc/1/cwd{canary}", "/proc/1/mem", "/etc/shadow"):
        with pytest.raises(OSError):
            await sandbox.read_file(path)
    with pytest.raises(OSError):
        await sandbox.write_file("out", b"overwritten")
    assert canary.read_text() == "hunter2"


async def test_the_hosts_network_is_out_of_reach(sandbox):
    reached = []
    listeners = [socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX)]
    name = f"\0miles-test-{os.getpid()}"
    listeners[0].bind(("127.0.0.1", 0))
    listeners[1].bind(name)
    for listener in listeners:
        listener.listen()
        listener.settimeout(0.2)
    code = (
        "import socket\nseen = []\n"
        f"places = ((2, ('127.0.0.1', {listeners[0].getsockname()[1]})), (1, {name!r}), (2, ('8.8.8.8', 53)))\n"
        "for family, address in places:\n"
        "    client = socket.socket(family)\n    client.settimeout(2)\n    try:\n        client.connect(address)\n"
        "        seen.append(address)\n    except OSError:\n        pass\n"
        "for family in (16, 17, 40):\n    try:\n        socket.socket(family, socket.SOCK_RAW if family < 40 else 1)\n"
        "        seen.append(family)\n    except OSError:\n        pass\nprint(seen)"
    )
    assert (await run(sandbox, code)).stdout == "[]\n"
    for listener in listeners:
        with listener, pytest.raises(TimeoutError):
            reached.append(listener.accept())


async def test_the_supervisor_cannot_be_killed_traced_or_read(sandbox):
    code = (
        "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\nseen = []\n"
        "for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGINT, signal.SIGCHLD):\n"
        "    try: os.kill(1, number)\n    except OSError: pass\n"
        "if libc.ptrace(16, 1, 0, 0) == 0: seen.append('ptrace')\n"
        "for name in ('mem', 'environ', 'maps', 'fd', 'root', 'cwd', 'auxv', 'stack', 'syscall'):\n"
        "    try:\n        os.listdir('/proc/1/fd') if name == 'fd' else os.stat('/proc/1/' + name + '/') \\\n"
        "            if name in ('root', 'cwd') else open('/proc/1/' + name, 'rb').read(1)\n        seen.append(name)\n"
        "    except OSError: pass\n"
        "for name in ('oom_score_adj', 'comm', 'mem'):\n"
        "    try:\n        os.close(os.open('/proc/1/' + name, os.O_WRONLY))\n        seen.append('write ' + name)\n"
        "    except OSError: pass\nprint(seen)"
    )
    assert (await run(sandbox, code)).stdout == "[]\n"
    await run(sandbox, "import os\nos.kill(-1, 9)")  # everything it may signal: nothing but itself is left


async def test_namespaces_mounts_and_kernel_settings_are_refused(sandbox):
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nseen = []\n"
        "def attempt(name, result):\n    if result != -1: seen.append(name)\n"
        "attempt('unshare', libc.unshare(0x10000000))\nattempt('unshare net', libc.unshare(0x40000000))\n"
        "attempt('setns', libc.setns(os.open('/proc/self/ns/net', 0), 0))\n"
        "attempt('mount', libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))\n"
        "attempt('umount', libc.umount2(b'/proc', 2))\n"
        "attempt('chroot', libc.chroot(b'/tmp'))\nattempt('keyctl', libc.syscall(250, 0, -3, 0))\n"
        "attempt('bpf', libc.syscall(321, 0, 0, 0))\nattempt('memfd', libc.memfd_create(b'x', 0))\n"
        "attempt('shmget', libc.shmget(0, 4096, 0o1600))\nattempt('setuid', libc.setuid(0))\n"
        "attempt('sethostname', libc.sethostname(b'x', 1))\nattempt('reboot', libc.reboot(0x89ABCDEF))\n"
        "for name in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/usr/x', '/etc/passwd'):\n"
        "    try:\n        os.close(os.open(name, os.O_WRONLY | os.O_CREAT))\n        seen.append(name)\n"
        "    except OSError: pass\n"
        "try:\n    os.write(os.open('/proc/self/uid_map', os.O_WRONLY), b'0 0 1')\n    seen.append('uid_map')\n"
        "except OSError: pass\n"
        "print(seen)"
    )
    assert (await run(sandbox, code)).stdout == "[]\n"


async def test_no_new_privileges_no_capabilities_and_a_filter(sandbox):
    code = (
        "lines = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines())\n"
        "print([lines[name] for name in ('CapEff', 'CapPrm', 'CapInh', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')])"
    )
    none = "0000000000000000"
    assert (await run(sandbox, code)).stdout == f"{[none] * 5 + ['1', '2']}\n"


FORGERIES = {
    "an answer without the nonce": 'b\'\\x00\\x00\\x00\\x10{"status": "ok"}\'',
    "noise": "b'\\xff' * 50",
    "half a frame": "b'\\x00\\x00\\x00\\x20{'",
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES.keys())
async def test_forged_frames_are_noticed_and_the_interpreter_is_replaced(sandbox, forged):
    code = f"import os\nx = 1\nfor fd in range(3, 128):\n    try: os.write(fd, {forged})\n    except OSError: pass"
    result = await run(sandbox, code)
    assert result.forged_frames
    assert result.state_lost
    result = await run(sandbox, "x")
    assert "NameError" in result.stderr
    assert not result.forged_frames


async def test_a_frame_left_for_the_next_call_is_noticed(sandbox):
    code = (
        "import os, threading, time\ndef later():\n    time.sleep(0.2)\n    for fd in range(3, 128):\n"
        '        try: os.write(fd, b\'\\x00\\x00\\x00\\x10{"status": "ok"}\')\n        except OSError: pass\n'
        "threading.Thread(target=later, daemon=True).start()"
    )
    assert (await run(sandbox, code)).status is ExecStatus.OK
    time.sleep(0.6)
    result = await run(sandbox, "1 + 1")
    assert result.forged_frames
    assert result.state_lost
    assert result.stdout == "2\n"  # run by the new interpreter


async def test_an_answer_with_the_right_nonce_gains_nothing(sandbox):
    code = (
        "import gc, json, os\nworker = next(o for o in gc.get_objects() if type(o).__name__ == 'Worker')\n"
        "frame = next(f for f in iter_frames() if 'call' in f.f_locals)\n"
        "body = json.dumps({'nonce': frame.f_locals['call']['nonce'], 'status': 'ok'}).encode()\n"
        "os.write(worker._replies_fd, len(body).to_bytes(4, 'big') + body)\nprint('still here')"
    )
    walk = (
        "import sys\ndef iter_frames():\n    f = sys._getframe()\n    while f:\n        yield f\n        f = f.f_back\n"
    )
    first = await run(sandbox, walk + code)
    second = await run(sandbox, "print('next')")
    # The call ended when the code said so; the worker's own answer is then one too many, and is noticed.
    assert first.forged_frames or second.forged_frames
    assert second.forged_frames or second.stdout == "next\n"


async def test_closing_every_descriptor_is_a_crash(sandbox):
    result = await run(sandbox, "import os\nos.closerange(0, 1024)")
    assert result.status is ExecStatus.CRASHED


async def test_a_segmentation_fault_is_a_crash(sandbox):
    result = await run(sandbox, "import ctypes\nctypes.string_at(0)")
    assert (result.status, result.exit_code) == (ExecStatus.CRASHED, -11)


async def test_deep_recursion_and_a_broken_exception_are_errors(sandbox):
    assert "RecursionError" in (await run(sandbox, "def f(): f()\nf()")).stderr
    result = await run(sandbox, "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E")
    assert result.status is ExecStatus.ERROR
    assert "E" in result.stderr


async def test_broken_streams_and_builtins_cost_only_their_own_call(sandbox):
    await run(sandbox, "import sys\nsys.stdout = None\nsys.stderr = 5")
    assert (
        await run(sandbox, "sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__\nprint('back')")
    ).stdout == "back\n"
    await run(sandbox, "import builtins, os, json\nfor m in (builtins, os, json): vars(m).clear()")
    await sandbox.reset()


async def test_a_session_that_prints_for_ever_does_not_hold_up_the_event_loop(sandbox):
    printing = asyncio.ensure_future(run(sandbox, "while True: print('x' * 10_000)"))
    worst = 0.0
    while not printing.done():
        started = time.monotonic()
        await asyncio.sleep(0.002)
        worst = max(worst, time.monotonic() - started)
    result = await printing
    assert result.status is ExecStatus.OUTPUT_LIMIT
    assert len(result.stdout) < 100_000
    assert worst < 1
