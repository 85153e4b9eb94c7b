"""Staying longer than allowed: endless code, hidden processes; and dying at the wrong place."""

from __future__ import annotations

from miles_agents.checks.abuse.case import (
    SHORT_S,
    AbuseCase,
    Outcome,
    Pause,
    Run,
    both,
    ends,
    fails,
    first,
    prints,
    python,
    shell,
)
from miles_agents.contracts import ExecStatus, Language

_TIMES_OUT = ends(ExecStatus.TIMEOUT)


def _endless(
    name: str, code: str, must: str = "it ends at the limit of time, and the next call is served"
) -> AbuseCase:
    return AbuseCase(name=name, must=must, steps=python(code, timeout_s=SHORT_S), holds=_TIMES_OUT)


def _endless_shell(name: str, command: str) -> AbuseCase:
    """Variables of the interpreter live on beside a command that is killed."""
    return AbuseCase(
        name=name,
        must="the command ends at the limit of time, and the interpreter's variables live on",
        steps=(*python("x = 7"), *shell(command, timeout_s=SHORT_S), *python("print(x)")),
        holds=both(lambda outcome: outcome.runs[1].status is ExecStatus.TIMEOUT, prints("7\n")),
    )


_DEAF = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""

_MANY_LOOPS = """
import threading
def turn():
    while True:
        pass
for _ in range(8):
    threading.Thread(target=turn).start()
turn()
"""

# Forks inherit the name; the interpreter itself takes another one at the end.
_NAMED = (
    "import ctypes, os, subprocess, sys, time\nprctl = ctypes.CDLL(None).prctl\n_ = prctl(15, b'@marker@', 0, 0, 0)\n"
)
_ANONYMOUS = "\n_ = prctl(15, b'python', 0, 0, 0)\n"
_STARTED = "read, write = os.pipe()\n"
_WAITED = "_ = os.read(read, 1)"

_STRAYS = {
    "background process": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)', '@marker@'])",
    "session of its own": (
        "if os.fork() == 0:\n    os.setsid()\n    os.write(write, b'x')\n    time.sleep(300)\n    os._exit(0)\n"
        + _WAITED
    ),
    "double fork": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.write(write, b'x')\n"
        "        time.sleep(300)\n    os._exit(0)\nos.wait()\n" + _WAITED
    ),
    "stopped child": (
        "if os.fork() == 0:\n    os.write(write, b'x')\n    os.kill(os.getpid(), 19)\n    os._exit(0)\n" + _WAITED
    ),
    "deaf child": (
        "import signal\nif os.fork() == 0:\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "    os.write(write, b'x')\n    while True: time.sleep(300)\n" + _WAITED
    ),
    "child that adopts its grandchildren": (
        "if os.fork() == 0:\n    prctl(36, 1, 0, 0, 0)\n    for _ in range(3):\n"
        "        if os.fork() == 0:\n            if os.fork() == 0: time.sleep(300)\n            os._exit(0)\n"
        "    os.write(write, b'x')\n    time.sleep(300)\n" + _WAITED
    ),
    "child with a name that is no text": (
        "if os.fork() == 0:\n    prctl(15, b'\\xff) Z \\xfe', 0, 0, 0)\n    os.write(write, b'x')\n"
        "    time.sleep(300)\n    os._exit(0)\n" + _WAITED
    ),
    "child that hides": (
        "if os.fork() == 0:\n    prctl(4, 0, 0, 0, 0)\n    os.write(write, b'x')\n"
        "    time.sleep(300)\n    os._exit(0)\n" + _WAITED
    ),
}


def _stray(name: str, code: str) -> AbuseCase:
    return AbuseCase(
        name=name,
        must="a process that outlives its call is killed and counted, however it hid",
        steps=python(_NAMED + _STARTED + code + _ANONYMOUS),
        holds=lambda outcome: outcome.last.status is ExecStatus.OK and outcome.last.strays_killed >= 1,
    )


# One process at a time, always a new one: it has forked and ended before anyone can signal it.
_HOPPER = """
if os.fork() == 0:
    while True:
        if os.fork():
            os._exit(0)
"""

_SIGNALS = """
import ctypes, fcntl, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for pid in {1, os.getppid()} - {os.getpid()}:
    for number in range(1, 65):
        for send in (lambda: os.kill(pid, number), lambda: libc.tgkill(pid, pid, number),
                     lambda: signal.pidfd_send_signal(os.pidfd_open(pid), number),
                     lambda: libc.sigqueue(pid, number, None)):
            try:
                send()
            except OSError:
                pass
    for number in (0, signal.SIGKILL, signal.SIGTERM, signal.SIGIO):
        read, write = os.pipe()
        try:
            fcntl.fcntl(read, fcntl.F_SETOWN, pid)
            fcntl.fcntl(read, 10, number)
            fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
            os.write(write, b"x")
        except OSError:
            pass
print("sent")
"""


def _crash(name: str, code: str, exit_code: int | None, must: str) -> AbuseCase:
    return AbuseCase(
        name=name,
        must=must,
        steps=python("x = 1\n" + code, "print('x' in globals())"),
        holds=both(
            first(
                lambda outcome: (
                    outcome.last.status is ExecStatus.CRASHED
                    and outcome.last.state_lost
                    and exit_code in (None, outcome.last.exit_code)
                )
            ),
            prints("False\n"),
        ),
    )


_DEATH = "the interpreter's death is a result with its exit code, and a fresh interpreter serves the next call"


def _late_output_apart(outcome: Outcome) -> bool:
    """Each call shows its own output alone; the thread's is late output."""
    later = outcome.runs[1:]
    own = all(each.stdout == "own\n" and each.stderr == "" for each in later)
    return own and "tick" in "".join(each.late_output for each in later)


_TICKER = """
import sys, threading, time
def tick():
    while True:
        print("tick")
        print("tick", file=sys.stderr)
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
"""

CASES = (
    _endless("endless loop", "while True: pass"),
    _endless("loop without ears", _DEAF),
    _endless("loop that catches the interrupt", "while True:\n    try:\n        while True: pass\n    except: pass"),
    _endless("loops in threads", _MANY_LOOPS),
    _endless("sleep in C", "import ctypes\nctypes.CDLL(None).sleep(1000)\nwhile True: pass"),
    _endless("sleep in C with the interpreter's lock", "import ctypes\nwhile True: ctypes.PyDLL(None).sleep(1000)"),
    _endless("one long operation", "x = 10 ** 100_000_000"),
    _endless("deadlock", "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()"),
    _endless("stopped interpreter", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nos.kill(0, 19)"),
    _endless("endless repr", "class E:\n    def __repr__(self):\n        while True: pass\nE()"),
    _endless(
        "endless text of an exception", "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
    ),
    _endless_shell("endless loop of a shell", "while :; do :; done"),
    _endless_shell("shell without ears", "trap '' INT TERM HUP QUIT; while :; do sleep 1000; done"),
    _endless_shell("stopped shell", "kill -STOP $$"),
    _endless_shell("shell that waits for its background", "sleep 1000 & sleep 1000 | sleep 1000; wait"),
    _endless_shell("another program in the shell's place", "exec sleep 1000"),
    *(_stray(name, code) for name, code in _STRAYS.items()),
    AbuseCase(
        name="process that never stands still",
        must="a process that forks and ends faster than it can be signalled is put down after its call",
        steps=(*python(_NAMED + _HOPPER + _ANONYMOUS), Pause(seconds=0.2)),
        holds=ends(ExecStatus.OK),
    ),
    AbuseCase(
        name="background of a shell",
        must="what a shell leaves in the background is killed and counted",
        steps=shell(
            "(setsid bash -c 'exec -a @marker@ sleep 300' &)\n"
            "nohup bash -c 'exec -a @marker@ sleep 300' >/dev/null 2>&1 &\n"
            "disown -a; sleep 0.2; echo left"
        ),
        holds=both(prints("left\n"), lambda outcome: outcome.last.strays_killed >= 2),
    ),
    AbuseCase(
        name="background that holds the shell's output",
        must="a command ends when its shell does, whoever holds its output",
        steps=shell("setsid bash -c 'exec -a @marker@ sleep 300' & echo left"),
        holds=lambda outcome: outcome.last.status is ExecStatus.OK and outcome.last.duration_s < 20,
    ),
    AbuseCase(
        name="signals to the supervisor",
        must="no signal ends, stops or disturbs the supervisor",
        steps=(
            Run(code=_SIGNALS),
            *shell("for n in KILL STOP TERM INT HUP SEGV; do kill -$n 1; kill -$n $PPID; done 2>/dev/null; echo sent"),
        ),
        holds=both(first(prints("sent\n")), prints("sent\n")),
    ),
    _crash("kill everyone", "import os, time\nif os.fork() == 0: os.kill(-1, 9)\ntime.sleep(20)", -9, _DEATH),
    _crash(
        "another program in the interpreter's place",
        "import os\nos.execv('/bin/sleep', ['sleep', '1000'])",
        None,
        _DEATH,
    ),
    _crash("exit without a word", "import os\nprint('before', flush=True)\nos._exit(0)", 0, _DEATH),
    _crash("segmentation fault", "import ctypes\nctypes.string_at(0)", -11, _DEATH),
    _crash("abort", "import os\nos.abort()", -6, _DEATH),
    _crash("killing itself", "import os\nos.kill(os.getpid(), 9)", -9, _DEATH),
    _crash("closing every descriptor", "import os\nos.closerange(0, 1024)", None, _DEATH),
    AbuseCase(
        name="a shell that kills itself",
        must="the shell's death is a result, and the interpreter's variables live on",
        steps=(*python("x = 7"), *shell("kill -9 $$"), *python("print(x)")),
        holds=both(
            lambda outcome: (outcome.runs[1].status, outcome.runs[1].exit_code) == (ExecStatus.CRASHED, -9),
            prints("7\n"),
        ),
    ),
    AbuseCase(
        name="a shell that kills everyone",
        must="a shell may kill the interpreter: the next call says that its state is lost",
        steps=(*python("x = 7"), *shell("kill -9 -1"), *python("'x' in globals()")),
        holds=lambda outcome: outcome.last.state_lost and "True" not in outcome.last.stdout,
    ),
    AbuseCase(
        name="an alarm for later",
        must="a signal that comes between two calls is no more than the end of the interpreter",
        steps=(
            *python("x = 1\nimport signal\n_ = signal.setitimer(signal.ITIMER_REAL, 0.2)"),
            Pause(seconds=0.5),
            *python("'x' in globals()"),
        ),
        holds=lambda outcome: outcome.last.state_lost and "True" not in outcome.last.stdout,
    ),
    AbuseCase(
        name="lowered limits",
        must="limits that the code lowers are its own, and a fresh interpreter has the usual ones",
        steps=(
            *python("import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\nimport os\nos._exit(1)"),
            *python("print(open('/proc/self/stat').read()[:0])"),
        ),
        holds=prints("\n"),
    ),
    AbuseCase(
        name="late threads",
        must="what a left-over thread prints is never shown as a later call's output",
        steps=python(_TICKER, *["time.sleep(0.05)\nprint('own')"] * 4),
        holds=_late_output_apart,
    ),
    AbuseCase(
        name="code over its limit",
        must="code that was stopped changes nothing afterwards",
        steps=(
            Run(code="import time\ntime.sleep(1.5)\nx = 1", timeout_s=SHORT_S),
            Pause(seconds=1.5),
            Run(code="x"),
        ),
        holds=both(first(_TIMES_OUT), fails("NameError")),
    ),
    AbuseCase(
        name="reading what nobody types",
        must="standard input is empty for a shell and its programs",
        steps=(Run(code="cat; read line; head -1; echo $?", language=Language.SHELL),),
        holds=prints("0\n"),
    ),
)
