"""Taking more than the limits give: processes, memory, disk, descriptors."""

from __future__ import annotations

from miles_agents.checks.abuse.case import (
    ATTEMPT,
    LIMITS,
    NOTHING_SEEN,
    AbuseCase,
    After,
    Outcome,
    Pause,
    Run,
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

_WORK, _SHARED_FOLDER = "/tmp", "/dev/shm"  # noqa: S108 — of the session's own tree

_NAME = """
import ctypes, os, time
prctl = ctypes.CDLL(None).prctl
def name_itself():
    prctl(15, b"@marker@", 0, 0, 0)
"""

_FORKS = """
count = 0
try:
    while count < 400:
        if os.fork() == 0:
            name_itself()
            time.sleep(60)
            os._exit(0)
        count += 1
except BlockingIOError:
    print("refused", count <= 16)
"""

_FORK_STORM = """
while True:
    try:
        os.fork() or name_itself()
    except OSError:
        pass
"""

_THREADS = """
import threading, time
count = 0
over = threading.Event()
try:
    while count < 400:
        threading.Thread(target=over.wait, daemon=True).start()
        count += 1
except RuntimeError:
    print("refused", count <= 16)
over.set()
"""

_ZOMBIES = """
import os
count = 0
try:
    while count < 400:
        if os.fork() == 0:
            os._exit(0)
        count += 1
except BlockingIOError:
    print("refused", count <= 16)
"""
_FORK_AGAIN = """
child = os.fork()
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""

_HOG = """
kept = 1
hoard = []
while True:
    hoard.append(bytearray(16 << 20))
"""

_HOGS = """
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        name_itself()
        {prepare}
        time.sleep(1.5)
        os._exit(0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in children))
"""
_PRIVATE = "data = b'x' * (100 << 20)"
_HIDDEN = "prctl(4, 0, 0, 0, 0); data = b'x' * (100 << 20)"
_SHARED = "import mmap; data = mmap.mmap(-1, 100 << 20); [data.write(bytes(1 << 20)) for _ in range(100)]"

_HOGS_BETWEEN_CALLS = """
import threading
def later():
    time.sleep(0.3)
    for number in range(4):
        if os.fork() == 0:
            name_itself()
            data = b"x" * (100 << 20)
            open(f"hog{number}", "w").close()
            time.sleep(60)
            os._exit(0)
threading.Thread(target=later, daemon=True).start()
"""
_COUNT_HOGS = 'import glob; print(len(glob.glob("hog*")) < 4)'

_BURN = """
import threading, time
def burn():
    while True:
        pass
threading.Thread(target=burn, daemon=True).start()
burnt = time.process_time()
"""
_BURNT = "print(time.process_time() - burnt < 0.5)"
_WAKER = """
import signal
for _ in range(3):
    if os.fork() == 0:
        name_itself()
        while True:
            os.kill(os.getppid(), signal.SIGCONT)
time.sleep(0.1)
"""

_FILL = """
written = 0
try:
    for number in range(20):
        with open("{folder}/" + str(number), "wb", buffering=0) as file:
            for _ in range(7):
                written += file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror, written <= 16 << 20)
"""

_DELETED_FILES = """
import os
kept, written = [], 0
try:
    for number in range(20):
        file = open(str(number), "wb", buffering=0)
        os.unlink(str(number))
        kept.append(file)
        for _ in range(7):
            written += file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror, written <= 16 << 20)
kept.clear()
"""

_INODES = """
try:
    for number in range(100_000):
        open("{folder}/" + str(number), "w").close()
except OSError as error:
    print(error.strerror, number < 5000)
"""

_LARGE_FILE = """
import os
seen = []
with open("sparse", "wb") as file:
    for size in (1 << 40, 64 << 20):
        try:
            file.truncate(size)
            seen.append(size)
        except OSError:
            pass
    try:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
        seen.append("fallocate")
    except OSError:
        pass
print(seen)
"""

_DEEP_FOLDERS = """
import os
depth, name = 0, "d" * 200
try:
    while depth < 100_000:
        os.mkdir(name)
        os.chdir(name)
        depth += 1
except OSError as error:
    print(error.strerror, 100 < depth < 5000)
os.chdir("/tmp")
"""

_DESCRIPTORS = """
import os
held = []
try:
    while len(held) < 5000:
        held += os.pipe()
except OSError as error:
    print(error.strerror, len(held) <= 128)
for fd in held:
    os.close(fd)
"""

# In every process as many full socket buffers as it may have: memory of the kernel, not of the processes.
_KERNEL_BUFFERS = """
import socket
for _ in range(8):
    if os.fork() == 0:
        name_itself()
        ends = []
        try:
            while True:
                ends.append(socket.socketpair())
                ends[-1][0].setblocking(False)
                try:
                    while ends[-1][0].send(bytes(1 << 16)):
                        pass
                except BlockingIOError:
                    pass
        except OSError:
            pass
        time.sleep(60)
time.sleep(1)
print("done")
"""

_ADDRESSES = """
import mmap
mlock = lambda: libc.mlock(ctypes.create_string_buffer(1 << 20), ctypes.c_size_t(1 << 20))
attempt("mlock", mlock)
attempt("mlockall", lambda: libc.mlockall(3))
attempt("address space", lambda: mmap.mmap(-1, 1 << 40))
attempt("heap", lambda: bytearray(1 << 40))
attempt("huge pages", lambda: mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
print(seen)
"""

_TIMERS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
count = 0
while count < 10_000 and libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0:
    count += 1
print(count < 10_000)
"""

_SHELL_FORKS = "storm() { storm | storm & }; storm; sleep 0.3; echo over"


def _not_all(outcome: Outcome) -> bool:
    """Some of the hogs were ended, or the whole call was."""
    return outcome.last.stdout != "4\n" and outcome.last.status is not ExecStatus.TIMEOUT


def _few_or_ended(outcome: Outcome) -> bool:
    """Fewer hogs than were to come, or, on a slow machine, they grow during the call and end it."""
    return prints("True\n")(outcome) or ends(ExecStatus.CRASHED)(outcome)


def _refused_by_the_file_limit(outcome: Outcome) -> bool:
    result = outcome.last
    return result.status in (ExecStatus.ERROR, ExecStatus.CRASHED) and int(result.stdout or 0) <= LIMITS.file_mb << 20


def _full(folder: str) -> tuple[Run, ...]:
    return (Run(code=_FILL.format(folder=folder)),)


CASES = (
    AbuseCase(
        name="fork bomb",
        must="forks end at the limit of processes, and all children are gone after the call",
        steps=python(_NAME + _FORKS),
        holds=both(prints("refused True\n"), lambda outcome: outcome.last.strays_killed >= 8),
    ),
    AbuseCase(
        name="fork bomb that multiplies",
        must="processes that all go on forking are put down at the limit of time",
        steps=python(_NAME + _FORK_STORM, timeout_s=1),
        holds=ends(ExecStatus.TIMEOUT),
    ),
    AbuseCase(
        name="fork bomb of a shell",
        must="the shell's own bomb ends with its call",
        steps=(*shell(_SHELL_FORKS, timeout_s=5), *python("import os; print(len(os.listdir('/proc/self/task')))")),
        holds=both(prints("1\n"), first(lambda outcome: outcome.last.status is not ExecStatus.OUTPUT_LIMIT)),
    ),
    AbuseCase(
        name="threads",
        must="threads count as processes",
        steps=python(_THREADS),
        holds=prints("refused True\n"),
    ),
    AbuseCase(
        name="zombies",
        must="dead children that nobody collected take no places from the next call",
        steps=python(_ZOMBIES, _FORK_AGAIN),
        holds=both(first(prints("refused True\n")), prints("0\n")),
    ),
    AbuseCase(
        name="memory of one process",
        must="one process meets a MemoryError and the session keeps its state",
        steps=python(_HOG, "hoard = None\nprint(kept)"),
        holds=both(first(fails("MemoryError")), prints("1\n")),
    ),
    AbuseCase(
        name="memory of many processes",
        must="the session's processes together stay within the limit of memory",
        steps=python(_NAME + _HOGS.format(prepare=_PRIVATE)),
        holds=_not_all,
    ),
    AbuseCase(
        name="memory of processes that hide",
        must="processes that close their /proc files count as well",
        steps=python(_NAME + _HOGS.format(prepare=_HIDDEN)),
        holds=_not_all,
    ),
    AbuseCase(
        name="shared memory of many processes",
        must="anonymous memory that is shared counts as well",
        steps=python(_NAME + _HOGS.format(prepare=_SHARED)),
        holds=_not_all,
    ),
    AbuseCase(
        name="memory between the calls",
        must="what a left-over thread takes while no call runs counts as well",
        steps=(*python(_NAME + _HOGS_BETWEEN_CALLS), Pause(seconds=2.0), *python(_COUNT_HOGS)),
        holds=_few_or_ended,
    ),
    AbuseCase(
        name="memory of a shell",
        must="a shell's programs meet the limit of memory",
        steps=shell("head -c 400000000 /dev/zero | tail -c 400000000 | wc -c"),
        holds=lambda outcome: outcome.last.stdout != "400000000\n" and outcome.last.status is not ExecStatus.TIMEOUT,
    ),
    AbuseCase(
        name="kernel buffers",
        must="full socket buffers in many processes end with the call",
        steps=python(_NAME + _KERNEL_BUFFERS),
        holds=ends(ExecStatus.OK, ExecStatus.ERROR, ExecStatus.CRASHED),
    ),
    AbuseCase(
        name="disk",
        must="the working folder is bounded, and a session with a full one goes on",
        steps=(*_full(_WORK), WriteFile(path="one-more", data=bytes(4 << 20))),
        holds=both(prints("No space left on device True\n"), lambda outcome: isinstance(outcome.results[1], OSError)),
    ),
    AbuseCase(
        name="disk of shared memory",
        must="the folder of shared memory is bounded",
        steps=_full(_SHARED_FOLDER),
        holds=prints("No space left on device True\n"),
    ),
    AbuseCase(
        name="disk by the shell",
        must="a shell fills no more than the working folder",
        steps=shell("for n in 1 2 3 4 5; do head -c 7000000 /dev/zero > f$n; done 2>/dev/null; cat f* | wc -c"),
        holds=lambda outcome: int(outcome.last.stdout) <= LIMITS.tmp_mb << 20,
    ),
    AbuseCase(
        name="deleted files",
        must="files that were deleted while open count as long as they are open",
        steps=python(_DELETED_FILES),
        holds=prints("No space left on device True\n"),
    ),
    AbuseCase(
        name="inodes",
        must="the number of files in the working folder is bounded",
        steps=python(_INODES.format(folder=_WORK)),
        holds=prints("No space left on device True\n"),
    ),
    AbuseCase(
        name="inodes of shared memory",
        must="the number of files in the folder of shared memory is bounded",
        steps=python(_INODES.format(folder=_SHARED_FOLDER)),
        holds=prints("No space left on device True\n"),
    ),
    AbuseCase(
        name="deep folders",
        must="folders without end stop somewhere, and neither a shell nor a reset stumbles over their depth",
        steps=(
            *python(_DEEP_FOLDERS),
            *shell("for n in $(seq 30); do cd d*; done 2>/dev/null", "echo there"),
        ),
        holds=both(first(prints("No space left on device True\n")), prints("there\n")),
        after=After.SERVES_AFTER_RESET,
    ),
    AbuseCase(
        name="large file",
        must="no file is larger than the limit, not even an empty one",
        steps=python(_LARGE_FILE),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="large file of a shell",
        must="a program that writes too large a file is stopped there",
        steps=shell("head -c 50000000 /dev/zero > big; code=$?; stat -c %s big; exit $code"),
        holds=_refused_by_the_file_limit,
    ),
    AbuseCase(
        name="descriptors",
        must="open files end at their limit",
        steps=python(_DESCRIPTORS),
        holds=prints("Too many open files True\n"),
    ),
    AbuseCase(
        name="address space",
        must="memory can be neither locked nor taken by the terabyte",
        steps=python(ATTEMPT + _ADDRESSES),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="timers",
        must="the kernel's timers are bounded",
        steps=python(_TIMERS),
        holds=prints("True\n"),
    ),
    AbuseCase(
        name="processor between the calls",
        must="a left-over thread gets no processor while no call runs",
        steps=(*python(_BURN), Pause(seconds=1.0), *python(_BURNT)),
        holds=prints("True\n"),
    ),
    AbuseCase(
        name="processor between the calls, with help",
        must="a child that keeps waking the interpreter until it is killed changes nothing of that",
        steps=(*python(_NAME + _WAKER + _BURN), Pause(seconds=1.0), *python(_BURNT)),
        holds=prints("True\n"),
    ),
    AbuseCase(
        name="memory between the calls, with help",
        must="nor does it let a left-over thread take memory",
        steps=(*python(_NAME + _WAKER + _HOGS_BETWEEN_CALLS), Pause(seconds=2.0), *python(_COUNT_HOGS)),
        holds=_few_or_ended,
    ),
)
