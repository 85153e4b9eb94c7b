"""Cases of the bug list that every sandbox launcher is tried on: what the code does, and what must be so after it."""

import asyncio
import random
import time

from miles_agents.contracts import ExecStatus, SandboxProvider

# case E01: what a program leaves running when it is stopped at its limit
STRAYS = {
    "background": "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n",
    "setsid": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\n",
    "double fork": "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: time.sleep(300)\n    os._exit(0)\n",
    "endless loop": "",
}

# case E02
ENDLESS = [
    "while True: pass",
    "while True:\n    try: pass\n    except: pass",
    "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    "import ctypes\nctypes.CDLL(None).sleep(100)\nwhile True: pass",
    "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
]

# case E04: everything a fresh session looks like, and what an episode may change of it
FINGERPRINT = """
import gc, math, os, random, signal, socket, sys, threading
print(sorted(globals()), math.pi, os.getcwd(), os.listdir('.'), sorted(os.environ.items()), os.listdir('/dev/shm'))
print(threading.active_count(), sum(p.isdigit() for p in os.listdir('/proc')), sys.path, len(sys.modules))
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


async def time_out_with_strays(provider: SandboxProvider, *, rounds: int, settled) -> None:
    """Case E01: sessions whose calls time out, again and again, with processes left over.

    Args:
        provider: started.
        rounds: of one time-out for each kind of stray.
        settled: called once with the sessions when they have run their first call and once at the end.
    """
    sandboxes = {name: await provider.open() for name in STRAYS}
    await asyncio.gather(*(sandbox.exec("1", timeout_s=30) for sandbox in sandboxes.values()))
    await settled(list(sandboxes.values()))

    async def time_out(name: str) -> None:
        started = time.monotonic()
        result = await sandboxes[name].exec(STRAYS[name] + "while True: pass", timeout_s=0.1)
        assert result.status is ExecStatus.TIMEOUT
        assert time.monotonic() - started < 10  # limit + 2 s, and a busy machine

    for _ in range(rounds):
        await asyncio.gather(*(time_out(name) for name in STRAYS))
    await settled(list(sandboxes.values()))
    for sandbox in sandboxes.values():
        await sandbox.close()


async def code_over_its_limit_changes_nothing_later(provider: SandboxProvider) -> None:
    """Case E02."""
    async with await provider.open() as sandbox:
        started = time.monotonic()
        result = await sandbox.exec("import time\ntime.sleep(4)\nx = 1", timeout_s=0.5)
        assert result.status is ExecStatus.TIMEOUT
        assert time.monotonic() - started < 3.5
        await asyncio.sleep(max(0.0, started + 4.5 - time.monotonic()))
        result = await sandbox.exec("x", timeout_s=30)
        assert "NameError" in result.stderr


async def endless_code_ends_at_the_limit(provider: SandboxProvider, code: str) -> None:
    """Case E02."""
    async with await provider.open() as sandbox:
        started = time.monotonic()
        result = await sandbox.exec(code, timeout_s=0.3)
        assert result.status is ExecStatus.TIMEOUT
        assert time.monotonic() - started < 10
        assert (await sandbox.exec("2 + 2", timeout_s=30)).stdout == "4\n"


async def nothing_leaks_through_reset_or_between_sessions(provider: SandboxProvider) -> None:
    """Case E04."""
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
