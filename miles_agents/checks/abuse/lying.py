"""Lying to the host: forged answers, false output, broken builtins."""

from __future__ import annotations

from miles_agents.checks.abuse.case import (
    LIMITS,
    SHORT_S,
    AbuseCase,
    After,
    Outcome,
    Pause,
    ReadFile,
    Reset,
    Run,
    Step,
    WriteFile,
    both,
    ends,
    fails,
    first,
    prints,
    python,
    shell,
)
from miles_agents.contracts import ExecStatus

_SHOWN = 4 * (LIMITS.output_kb << 10)  # characters that may be shown: each byte may take four as an escape
_OVER = ends(ExecStatus.OUTPUT_LIMIT)


def _bounded(outcome: Outcome) -> bool:
    return all(len(each.stdout) + len(each.stderr) < 2 * _SHOWN for each in outcome.runs)


def _forged(name: str, frame: str) -> AbuseCase:
    """The code writes to every descriptor it has."""
    write = f"import os\nx = 1\nfor fd in range(3, 128):\n    try: os.write(fd, {frame})\n    except OSError: pass"
    return AbuseCase(
        name=name,
        must="what the code writes to the runner's channel is noticed, and the interpreter is replaced",
        steps=python(write, "print('x' in globals())"),
        holds=both(
            first(lambda outcome: outcome.last.forged_frames and outcome.last.state_lost),
            lambda outcome: outcome.last.stdout == "False\n" and not outcome.last.forged_frames,
        ),
    )


_LATER_FRAME = """
import os, threading, time
def later():
    time.sleep(0.2)
    for fd in range(3, 128):
        try:
            os.write(fd, b'\\x00\\x00\\x00\\x10{"status": "ok"}')
        except OSError:
            pass
threading.Thread(target=later, daemon=True).start()
"""

_FIND_ANSWER = """
import fcntl, json, os, sys
frame, call = sys._getframe(), None
while frame and call is None:
    call = next((value for value in frame.f_locals.values() if isinstance(value, dict) and "nonce" in value), None)
    frame = frame.f_back
body = json.dumps({"nonce": call["nonce"], "status": "ok", "stdout": "forged"}).encode()
answer = len(body).to_bytes(4, "big") + body
def is_channel(fd):
    try:
        return fcntl.fcntl(fd, fcntl.F_GETFL) & 3 == os.O_WRONLY
    except OSError:
        return False
channels = [fd for fd in range(3, 128) if is_channel(fd)]
"""
_ANSWER = """
for fd in channels:
    os.write(fd, answer)
"""

# The call ends, and the interpreter is in the middle of a fork, which many small mappings make slow.
_SLOW_FORKS = """
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
area = mmap.mmap(-1, 32 << 20)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
for offset in range(0, 32 << 20, 8192):
    libc.mprotect(ctypes.c_void_p(start + offset), ctypes.c_size_t(4096), 0)
"""
_FORK_BEHIND = """
if os.fork() == 0:
    while not os.path.exists("over{number}"):
        time.sleep(0.01)
    os.close(os.open("born{number}", os.O_CREAT, 0o600))
    os._exit(0)
"""


def _forks_behind(number: int) -> tuple[Step, ...]:
    """From the answer on nothing may happen until the interpreter goes on with the next call."""
    code = _SLOW_FORKS + _FIND_ANSWER + _ANSWER + _FORK_BEHIND.format(number=number)
    look = (WriteFile(path=f"over{number}"), Pause(seconds=0.2), ReadFile(path=f"born{number}"))
    return (*python(code), *look, *python("1"))


# The pipe that calls come through is opened anew for writing: the code sends itself a call.
_INJECTED_CALL = """
import fcntl, json, os
body = json.dumps({"nonce": "0" * 16, "code": "print('injected')", "op": "exec", "language": "python"}).encode()
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2:
        try:
            if fcntl.fcntl(int(name), fcntl.F_GETFL) & 3 != os.O_RDONLY:
                continue
            fd = os.open("/proc/self/fd/" + name, os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, len(body).to_bytes(4, "big") + body)
            os.close(fd)
        except OSError:
            pass
"""

# A left-over thread reads the next call before the runner does.
_STOLEN_CALL = """
import fcntl, os, threading
def steal(fd):
    while os.read(fd, 1 << 16):
        pass
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and fcntl.fcntl(int(name), fcntl.F_GETFL) & 3 == os.O_RDONLY:
        for _ in range(6):
            threading.Thread(target=steal, args=(int(name),), daemon=True).start()
"""

_NO_BUILTINS = """
import builtins
for name in ("compile", "exec", "eval", "print", "len", "BaseException", "isinstance", "getattr", "__import__"):
    vars(builtins).pop(name)
"""

_CHAIN = """
error = None
for number in range(5_000):
    step = ValueError(number)
    step.__cause__ = error
    error = step
raise error
"""
_NESTED_GROUPS = """
error = ValueError(1)
for number in range(2_000):
    error = ExceptionGroup("group", [error])
raise error
"""
_NO_EXCEPTION = """
class Meta(type):
    @property
    def __name__(self): raise RuntimeError
class E(Exception, metaclass=Meta):
    def __str__(self): raise SystemExit
    __repr__ = __str__
    @property
    def __cause__(self): raise KeyboardInterrupt
    @property
    def __traceback__(self): raise MemoryError
raise E
"""


def _noticed(outcome: Outcome) -> bool:
    """The code ended its own call early; that is noticed then or by the next call."""
    return "forged" not in outcome.runs[0].stdout and _forgery_noticed(outcome)


def _served_or_lost(outcome: Outcome) -> bool:
    served = outcome.last.status is ExecStatus.OK and outcome.last.stdout == "next\n"
    return served or (outcome.last.state_lost and outcome.last.stdout == "")


def _forgery_noticed(outcome: Outcome) -> bool:
    return any(each.forged_frames and each.state_lost for each in outcome.runs)


CASES = (
    AbuseCase(
        name="endless output",
        must="endless printing is stopped long before its limit of time, and little of it is shown",
        steps=python("while True: print('x' * 10_000)"),
        holds=both(_OVER, _bounded),
    ),
    AbuseCase(
        name="endless errors",
        must="the same for stderr, in small pieces",
        steps=python("import os\nwhile True: os.write(2, b'x\\n' * 100)"),
        holds=both(_OVER, _bounded),
    ),
    AbuseCase(
        name="200 MB of output",
        must="a stream of 200 MB is stopped, and little of it is shown",
        steps=python("print('y' * (50 << 20))\n" * 4),
        holds=both(ends(ExecStatus.OUTPUT_LIMIT, ExecStatus.ERROR), _bounded),
    ),
    AbuseCase(
        name="endless output of a shell",
        must="a shell's endless output is stopped, and the interpreter's variables live on",
        steps=(*python("x = 7"), *shell("yes"), *python("print(x)")),
        holds=both(lambda outcome: outcome.runs[1].status is ExecStatus.OUTPUT_LIMIT, _bounded, prints("7\n")),
    ),
    AbuseCase(
        name="output of many processes",
        must="children that print all at once are stopped together",
        steps=python("import os\nfor _ in range(3): os.fork()\nwhile True: os.write(1, b'z' * 5000)"),
        holds=both(_OVER, _bounded),
    ),
    AbuseCase(
        name="output of a left-over thread",
        must="a thread that prints without end between the calls ends nothing but its own session's next call",
        steps=(
            *python(
                "import threading\ndef flood():\n    while True: print('late' * 1000)\n"
                "threading.Thread(target=flood, daemon=True).start()"
            ),
            Pause(seconds=0.3),
            *python("1 + 1"),
            Reset(),
            *python("1 + 1"),
        ),
        holds=both(prints("2\n"), _bounded),
    ),
    AbuseCase(
        name="binary output",
        must="every byte is shown, as text or as an escape",
        steps=python("import os\n_ = os.write(1, bytes(range(256)) + b'\\xf0\\x9f')\nprint('\\ud800 end')"),
        holds=lambda outcome: "\\xff\\xf0\\x9f\\ud800 end\n" in outcome.last.stdout and "\0" in outcome.last.stdout,
    ),
    AbuseCase(
        name="binary output of a shell",
        must="the same for a shell",
        steps=shell("printf '\\377\\000\\376end\\n'"),
        holds=prints("\\xff\0\\xfeend\n"),
    ),
    AbuseCase(
        name="closed streams",
        must="code that closes its streams loses its own output alone",
        steps=python("import os\nos.close(1)\nos.close(2)\nprint('lost')", "import os\nos._exit(1)", "print('back')"),
        holds=prints("back\n"),
    ),
    AbuseCase(
        name="streams of another kind",
        must="what the code puts in place of its streams breaks at most its own output",
        steps=python("import sys\nsys.stdout = None\nsys.stderr = 5", "print(1)\n1 / 0"),
        holds=ends(ExecStatus.ERROR),
        after=After.SERVES_AFTER_RESET,
    ),
    AbuseCase(
        name="streams that do not wait",
        must="a stream that the code makes non-blocking costs at most the call's own output",
        steps=python(
            "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)\nfcntl.fcntl(1, 1031, 4096)\n"
            "print('x' * 1_000_000)"
        ),
        holds=both(ends(ExecStatus.OK, ExecStatus.ERROR, ExecStatus.CRASHED), _bounded),
        after=After.SERVES_AFTER_RESET,
    ),
    _forged("answer without the nonce", 'b\'\\x00\\x00\\x00\\x10{"status": "ok"}\''),
    _forged("noise on the channel", "b'\\xff' * 50"),
    _forged("half a frame", "b'\\x00\\x00\\x00\\x20{'"),
    _forged("deep frame", "b'\\x00\\x00\\x00\\xf0' + b'[' * 0xf0"),
    _forged("frame of another kind", "b'\\x00\\x00\\x00\\x02[]'"),
    AbuseCase(
        name="frame for the next call",
        must="an answer that comes before its call, or in its place, is noticed and never believed",
        steps=(*python(_LATER_FRAME), Pause(seconds=0.4), *python("import time\ntime.sleep(0.4)\nprint(1 + 1)")),
        holds=lambda outcome: _forgery_noticed(outcome) and outcome.last.status is not ExecStatus.ERROR,
    ),
    AbuseCase(
        name="answer with the right nonce",
        must="code that finds its own nonce can end its own call early, and no more",
        steps=python(_FIND_ANSWER + _ANSWER + 'print("still here")', "print('next')"),
        holds=_noticed,
    ),
    AbuseCase(
        name="fork behind the answer",
        must="a process that is born when its call has ended, by the code's own word, does nothing",
        steps=tuple(step for number in range(8) for step in _forks_behind(number)),
        holds=lambda outcome: not any(isinstance(each, bytes) for each in outcome.results),
        after=After.SERVES_AFTER_RESET,
    ),
    AbuseCase(
        name="call that the code sends itself",
        must="a call that the host did not make shows as a forgery",
        steps=(*python(_INJECTED_CALL), Pause(seconds=0.3), *python("print('next')")),
        holds=_forgery_noticed,
    ),
    AbuseCase(
        name="stolen call",
        must="a thread that takes the next call away costs that call, and no more",
        steps=(*python(_STOLEN_CALL), Run(code="print('next')", timeout_s=SHORT_S)),
        holds=_served_or_lost,
    ),
    AbuseCase(
        name="the shell's own channel",
        must="whatever a command writes to the descriptors it holds, the next one runs in the session",
        steps=(
            *shell("for n in 3 4 5 6 7 8 9; do { head -c 9999 /dev/urandom >&$n; } 2>/dev/null; done; echo /no >&9"),
            *shell("yes /no >&9", timeout_s=SHORT_S),
            *shell("echo '../../../etc' >&9; exec 9>&-", "pwd"),
        ),
        holds=prints("/tmp\n"),  # noqa: S108 — of the session's own tree
    ),
    AbuseCase(
        name="a shell's traps and functions",
        must="what a command sets up for its own shell is not there for the next one",
        steps=shell(
            "trap 'echo trapped' EXIT DEBUG; echo() { printf bad; }; export -f echo\n"
            "export BASH_ENV=/tmp/env ENV=/tmp/env\n"
            "printf 'printf bad' | tee env .bashrc .bash_profile .profile >/dev/null; alias cat=echo; ulimit -n 3",
            "echo fine | cat",
        ),
        holds=prints("fine\n"),
    ),
    AbuseCase(
        name="broken builtins",
        must="an interpreter whose builtins are gone is replaced or reset, and the session goes on",
        steps=(
            Run(code="import os, json, linecache\nfor m in (os, json, linecache): vars(m).clear()", timeout_s=SHORT_S),
            Run(code="print('?')", timeout_s=SHORT_S),
            Reset(),
            Run(code=_NO_BUILTINS, timeout_s=SHORT_S),
            Run(code="print('?')", timeout_s=SHORT_S),
            Reset(),
            *python("print('fresh')"),
        ),
        holds=prints("fresh\n"),
    ),
    AbuseCase(
        name="an os.write that lies",
        must="a runner that can no longer answer is replaced at the limit of time",
        steps=python("import os\nos.write = lambda fd, data: len(data)", "1", timeout_s=SHORT_S),
        holds=lambda outcome: outcome.runs[0].state_lost or outcome.last.state_lost,
    ),
    AbuseCase(
        name="tracing the runner",
        must="a trace function that the code leaves behind ends nothing but its own interpreter",
        steps=python("import sys, threading\nsys.settrace(lambda *a: 1 / 0)\nsys.setprofile(lambda *a: 1 / 0)", "1"),
        holds=ends(ExecStatus.OK, ExecStatus.ERROR, ExecStatus.CRASHED),
        after=After.SERVES_AFTER_RESET,
    ),
    AbuseCase(
        name="deep recursion",
        must="it is a RecursionError and costs no state",
        steps=python("kept = 1\ndef f(): f()\nf()", "print(kept)"),
        holds=both(first(fails("RecursionError")), prints("1\n")),
    ),
    AbuseCase(
        name="deep recursion in C",
        must="recursion that overflows the stack of C ends at most its own interpreter",
        steps=python(
            "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nprint(len(repr(x)))"
        ),
        holds=ends(ExecStatus.CRASHED, ExecStatus.ERROR),
    ),
    AbuseCase(
        name="deep source",
        must="source that no parser can take is an error or a crash of its own interpreter",
        steps=python("(" * 100_000, "x = " + "-" * 200_000 + "1", "[" * 90 + "]" * 90),
        holds=ends(ExecStatus.OK),
    ),
    AbuseCase(
        name="source that is no text",
        must="source with NULs or halves of surrogate pairs is an error",
        steps=(*python("x = 1\0", "x = '\ud800'\nprint(len(x))"), *shell("echo \0", "echo \ud800")),
        holds=lambda outcome: all(each.status is ExecStatus.ERROR for each in outcome.runs),
    ),
    AbuseCase(
        name="huge text of an exception",
        must="an exception with 20 MB of text is bounded like all output",
        steps=python("raise Exception('x' * (20 << 20))"),
        holds=both(ends(ExecStatus.ERROR, ExecStatus.OUTPUT_LIMIT), _bounded),
    ),
    AbuseCase(
        name="endless chain of exceptions",
        must="a chain of 5,000 causes and 2,000 nested groups are bounded like all output",
        steps=python(_CHAIN, _NESTED_GROUPS),
        holds=both(ends(ExecStatus.ERROR, ExecStatus.OUTPUT_LIMIT, ExecStatus.CRASHED), _bounded),
    ),
    AbuseCase(
        name="exception that cannot be shown",
        must="an exception whose every part raises is an error or a crash of its own interpreter",
        steps=python(_NO_EXCEPTION, "raise SystemExit(type('E', (), {'__str__': lambda s: 1 / 0})())"),
        holds=ends(ExecStatus.ERROR, ExecStatus.CRASHED),
    ),
)
