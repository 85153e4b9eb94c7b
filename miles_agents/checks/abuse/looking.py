"""Looking where there is nothing to see: files, environments and processes of the host."""

from __future__ import annotations

import json
import os

from miles_agents.checks.abuse.case import (
    ATTEMPT,
    NOTHING_SEEN,
    AbuseCase,
    Outcome,
    ReadFile,
    Run,
    WriteFile,
    python,
    refuses_files,
    shell,
)
from miles_agents.contracts import ExecResult, ExecStatus

# Values a session and its host may have in common, since they say nothing.
_HARMLESS = {
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PATH",
    "PWD",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "SHLVL",
    "TERM",
    "TMPDIR",
    "_",
}

_HOST_FILES = """
for name in ("@canary@", "@package@", "/etc/shadow", "/etc/gshadow", "/root/.bashrc", "/root/.ssh/id_rsa"):
    for prefix in ("", "/proc/1/root", "/proc/1/cwd/../..", "/proc/self/root", "/proc/self/cwd/../../..", "/host"):
        attempt(prefix + name, lambda: open(prefix + name, "rb").read(1))
for name in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd", "/run/systemd/private", "/var/lib/docker"):
    attempt(name, os.stat, name)
print(seen)
"""

_HOST_ENVIRONMENT = """
import glob, json, os
found = dict(os.environ)
for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/task/*/environ"):
    try:
        entries = open(name, "rb").read().split(b"\\0")
    except OSError:
        continue
    found.update(each.decode("utf-8", "replace").split("=", 1) for each in entries if b"=" in each)
print(json.dumps(found))
"""

_OTHER_PROCESSES = """
import os
pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}
print(sorted(pids - {1, os.getpid()}))
"""

_SUPERVISOR = """
for pid in {1, os.getppid()} - {os.getpid()}:
    folder = f"/proc/{pid}/"
    for name in ("mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "io", "pagemap", "task/1/mem"):
        attempt(name, lambda: open(folder + name, "rb").read(1))
    for name in ("fd", "fdinfo", "map_files", "root", "cwd"):
        attempt(name, lambda: os.listdir(folder + name))
    attempt("exe", lambda: os.readlink(folder + "exe"))
    for name in ("mem", "comm", "oom_score_adj", "uid_map", "clear_refs", "coredump_filter", "timerslack_ns",
                 "autogroup", "sched", "attr/current"):
        attempt("write " + name, lambda: os.write(os.open(folder + name, os.O_WRONLY), b"1"))
    door("ptrace attach", 101, 117, 16, pid, 0, 0)
    door("ptrace seize", 101, 117, 0x4206, pid, 0, 0)
    here = ctypes.create_string_buffer(64)
    vector = (ctypes.c_ulong * 2)(ctypes.addressof(here), 64)
    door("process_vm_readv", 310, 270, pid, vector, 1, vector, 1, 0)
    door("process_vm_writev", 311, 271, pid, vector, 1, vector, 1, 0)
    door("kcmp", 312, 272, pid, os.getpid(), 0, 0, 0)
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        continue
    for number in range(12):
        door("pidfd_getfd", 438, 438, handle, number, 0)
    door("process_madvise", 440, 440, handle, vector, 1, 4, 0)
print(seen)
"""

_DESCRIPTORS = """
import os
seen = []
for name in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink("/proc/self/fd/" + name)
    except OSError:
        continue
    if target != "/dev/null" and not target.startswith("pipe:"):
        seen.append(target)
print(seen)
"""

_DEVICES = """
import stat
for kind in (stat.S_IFBLK, stat.S_IFCHR):
    for major, minor in ((1, 1), (8, 0), (253, 0), (254, 0), (259, 0)):
        attempt("mknod", lambda: os.mknod(f"node{kind}{major}", kind | 0o666, os.makedev(major, minor)) or True)
for name in ("mem", "kmem", "port", "kmsg", "fuse", "kvm", "net/tun", "loop-control", "mapper/control", "sda", "vda",
             "nvme0n1", "nvme0", "loop0", "dri/card0", "nvidiactl", "uinput", "snapshot", "cuse", "vfio/vfio"):
    attempt("/dev/" + name, lambda: os.close(os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK)) or True)
print(seen)
"""

_KERNEL_MEMORY = """
for name in ("/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/vmallocinfo",
             "/proc/slabinfo", "/proc/sysvipc/shm", "/sys/firmware/dmi/tables/DMI", "/sys/kernel/debug/gpio",
             "/sys/kernel/tracing/trace", "/sys/kernel/security/lsm", "/sys/fs/pstore/console"):
    if name != "/proc/sysvipc/shm" or os.path.exists(name) and len(open(name).readlines()) > 1:
        attempt(name, lambda: open(name, "rb").read(1))
try:
    seen += [line for line in open("/proc/kallsyms") if line.split()[0].strip("0")][:3]
except OSError:
    pass
print(seen)
"""

_LINKS = """
import os
os.symlink("@canary@", "out")
os.symlink("/", "root")
os.symlink("/proc/1/root", "one")
os.symlink("/proc/self/mem", "memory")
os.symlink("/proc/self/fd/3", "three")
os.symlink("/dev/zero", "zero")
os.symlink("loop", "loop")
os.mkfifo("pipe")
"""


def _no_host_values(outcome: Outcome) -> bool:
    """No variable of this process with its value, but for those that say nothing."""
    found = json.loads(outcome.last.stdout)
    if not isinstance(found, dict) or not found:
        return False
    return not [name for name in found if found[name] == os.environ.get(name) and name not in _HARMLESS]


def _is_absent(outcome: Outcome) -> bool:
    """The command ran and found nothing."""
    return outcome.last.status is ExecStatus.OK and outcome.last.stdout == "nothing\n"


def _sees_itself_alone(outcome: Outcome) -> bool:
    printed = [each.stdout for each in outcome.results if isinstance(each, ExecResult)]
    return printed == ["[]\n", "[]\n"]


CASES = (
    AbuseCase(
        name="host files",
        must="neither the host's files nor its password hashes can be read, by no detour",
        steps=python(ATTEMPT + _HOST_FILES),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="host files by the shell",
        must="a shell finds no file of the host either",
        steps=shell(
            "cat '@canary@' /etc/shadow /proc/1/root'@canary@' '/proc/self/cwd/../../..@canary@' 2>/dev/null; "
            "find / -xdev -name canary -newer /proc/1/stat 2>/dev/null; echo nothing"
        ),
        holds=_is_absent,
    ),
    AbuseCase(
        name="host environment",
        must="no variable of the host's environment is visible",
        steps=python(_HOST_ENVIRONMENT),
        holds=_no_host_values,
    ),
    AbuseCase(
        name="other processes",
        must="the session sees its supervisor and itself, and no other process",
        steps=(
            *python(_OTHER_PROCESSES),
            Run(code=_OTHER_PROCESSES, session=1),
        ),
        holds=_sees_itself_alone,
    ),
    AbuseCase(
        name="reading the supervisor",
        must="the supervisor's memory, descriptors and environment are closed to the code it runs",
        steps=python(ATTEMPT + _SUPERVISOR),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="inherited descriptors",
        must="the code holds no descriptor but its own pipes",
        steps=python(_DESCRIPTORS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="device nodes",
        must="no disk, memory or other device can be opened or made",
        steps=python(ATTEMPT + _DEVICES),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="kernel memory",
        must="nothing of the kernel's own memory, addresses or logs can be read",
        steps=python(ATTEMPT + _KERNEL_MEMORY),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="links for the host to follow",
        must="reading and writing files for the host never follows the session's links out of it, and never waits",
        steps=(
            *python(_LINKS),
            *(ReadFile(path=path) for path in ("out", "root@canary@", "one@canary@", "../../../..@canary@")),
            *(
                ReadFile(path=path)
                for path in ("memory", "three", "zero", "loop", "pipe", "/proc/1/mem", "/etc/shadow")
            ),
            *(WriteFile(path=path) for path in ("out", "memory", "three", "loop", "pipe", "root/usr/x", "one/usr/x")),
            *(WriteFile(path=path) for path in ("/proc/1/oom_score_adj", "/proc/self/comm", "/etc/passwd")),
        ),
        holds=refuses_files,
    ),
    AbuseCase(
        name="odd paths",
        must="a path that no file can have is an error, never the end of the session",
        steps=(
            *(ReadFile(path=path) for path in ("a\0b", "\ud800", "x" * 5000, "/".join("x" * 2000), "", ".", "/")),
            *(WriteFile(path=path) for path in ("a\0b", "\ud800", "x" * 5000, "", ".", "/", "..")),
        ),
        holds=refuses_files,
    ),
)
