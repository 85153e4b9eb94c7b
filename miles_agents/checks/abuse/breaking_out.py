"""Getting out: writing outside, new rights, the kernel's doors, the network."""

from __future__ import annotations

from miles_agents.checks.abuse.case import ATTEMPT, NOTHING_SEEN, AbuseCase, Dial, Outcome, Run, python, shell
from miles_agents.contracts import ExecStatus

_WRITING = """
for name in ("/x", "/etc/x", "/usr/x", "/usr/bin/x", "/lib/x", "/opt/x", "/dev/x", "/proc/x", "/sys/x", "/var/x",
             "/var/tmp/x", "/root/x", "/home/x", "/run/x", "/mnt/x", "/srv/x", os.__file__ + ".x"):
    attempt(name, lambda: os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)) or True)
for name in ("@canary@", "@package@", "/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/bin/sh", os.__file__):
    attempt(name, lambda: os.close(os.open(name, os.O_WRONLY | os.O_APPEND)) or True)
attempt("rename", lambda: os.rename(os.__file__, os.__file__ + "x") or True)
attempt("unlink", lambda: os.unlink(os.__file__) or True)
attempt("hard link", lambda: os.link("/etc/passwd", "passwd") or open("passwd", "a"))
attempt("chmod", lambda: os.chmod("/etc/passwd", 0o777) or True)
print(seen)
"""

_KERNEL_SETTINGS = """
for top in ("/proc/sys", "/sys/kernel", "/sys/fs/cgroup", "/sys/module", "/sys/power", "/sys/devices/system/cpu"):
    for folder, _, files in os.walk(top):
        seen += [name for name in (os.path.join(folder, file) for file in files) if os.access(name, os.W_OK)]
for name in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/mtrr",
             "/proc/irq/0/smp_affinity", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent"):
    attempt(name, lambda: os.close(os.open(name, os.O_WRONLY)) or True)
print(seen[:10])
"""

_NAMESPACES = """
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("net", 0x40000000), ("pid", 0x20000000),
                   ("ipc", 0x8000000), ("uts", 0x4000000), ("cgroup", 0x2000000), ("time", 0x80)):
    door("unshare " + name, 272, 97, flag)
    if name != "time":
        door("clone " + name, 56, 220, flag | 17, 0, 0, 0, 0)
arguments = (ctypes.c_ulong * 11)(0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)
door("clone3", 435, 435, arguments, 88)
for name in os.listdir("/proc/self/ns"):
    door("setns " + name, 308, 268, os.open("/proc/self/ns/" + name, os.O_RDONLY), 0)
for name in ("uid_map", "gid_map"):
    attempt(name, lambda: os.write(os.open("/proc/self/" + name, os.O_WRONLY), b"0 0 1"))
print(seen)
"""

_MOUNTS = """
door("mount", 165, 40, b"tmpfs", b"/tmp", b"tmpfs", 0, None)
door("bind", 165, 40, b"/", b"/tmp", None, 4096, None)
door("remount", 165, 40, None, b"/", None, 32 | 4096, None)
door("mount proc", 165, 40, b"proc", b"/tmp", b"proc", 0, None)
door("umount", 166, 39, b"/proc", 2)
door("umount tmp", 166, 39, b"/tmp", 2)
door("pivot_root", 155, 41, b"/tmp", b"/tmp")
door("chroot", 161, 51, b"/tmp")
door("open_tree", 428, 428, -100, b"/", 1)
door("move_mount", 429, 429, -100, b"/", -100, b"/tmp", 0)
door("fsopen", 430, 430, b"tmpfs", 0)
door("fspick", 433, 433, -100, b"/", 0)
door("mount_setattr", 442, 442, -100, b"/", 0, (ctypes.c_ulong * 4)(), 32)
print(seen)
"""

_DOORS = """
door("add_key", 248, 217, b"user", b"x", b"y", 1, -3)
door("request_key", 249, 218, b"user", b"x", None, -3)
door("keyctl", 250, 219, 0, -3, 1)
door("bpf", 321, 280, 0, (ctypes.c_ulong * 16)(1, 4, 4, 1), 72)
door("perf_event_open", 298, 241, (ctypes.c_ulong * 16)(1 | 128 << 32), 0, -1, -1, 0)
door("userfaultfd", 323, 282, 1)
door("io_uring_setup", 425, 425, 8, (ctypes.c_ulong * 16)())
door("io_setup", 206, 0, 128, ctypes.byref(ctypes.c_ulong()))
door("inotify_init1", 294, 26, 0)
door("dnotify", 72, 25, os.open("/usr/bin", os.O_RDONLY), 1026, 1 | 1 << 31)
door("file lock", 73, 32, os.open("/usr/bin", os.O_RDONLY), 2 | 4)
door("multipath socket", 41, 198, 2, 1, 262)
door("socket of a family to be loaded", 53, 199, 40, 1, 0, (ctypes.c_int * 2)())
door("memfd_create", 319, 279, b"x", 0)
door("memfd_secret", 447, 447, 0)
door("shmget", 29, 194, 0, 4096, 0o1600)
door("msgget", 68, 186, 0, 0o1600)
door("semget", 64, 190, 0, 1, 0o1600)
door("mq_open", 240, 180, b"x", 0o102, 0o600, None)
door("init_module", 175, 105, b"", 0, b"")
door("finit_module", 313, 273, 0, b"", 0)
door("kexec_load", 246, 104, 0, 0, None, 0)
door("kexec_file_load", 320, 294, -1, -1, 0, None, 0)
door("syslog", 103, 116, 3, ctypes.create_string_buffer(64), 64)
door("quotactl", 179, 60, 0x800007, None, 0, None)
door("acct", 163, 89, None)
door("swapon", 167, 224, b"/tmp/x", 0)
door("reboot", 169, 142, 0xFEE1DEAD, 672274793, 0x4321FEDC, None)
door("personality", 135, 92, 0x0040000)
door("fanotify_init", 300, 262, 0, 0)
door("open_by_handle_at", 304, 265, -100, (ctypes.c_ulong * 4)(), 0)
door("iopl", 172, None, 3)
door("ioperm", 173, None, 0, 1, 1)
door("modify_ldt", 154, None, 0, ctypes.create_string_buffer(64), 64)
door("ptrace me", 101, 117, 0, 0, 0, 0)
door("vhangup", 153, 58)
print(seen)
"""

# Machine code, since the C library has no word for these: getpid as a 32-bit call, and by its x32 number.
_OTHER_DOORS = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
if os.uname().machine != "x86_64":
    raise SystemExit
if libc.syscall(0x40000000 | 39) != -1:
    print("an x32 call went through")
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("53b814000000cd805bc3"))
child = os.fork()
if child == 0:
    call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    os._exit(0 if call() > 0 else 1)
if os.waitpid(child, 0)[1] == 0:
    print("a 32-bit call went through")
"""

_RIGHTS = """
import resource
fields = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
seen += [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(fields[name], 16)]
seen += [name for name, value in (("NoNewPrivs", "1"), ("Seccomp", "2")) if fields[name] != value]
seen += [name for name in ("Uid", "Gid") if "0" in fields[name].split()]
attempt("setuid", lambda: os.setuid(0) or True)
attempt("setresgid", lambda: os.setresgid(0, 0, 0) or True)
attempt("setgroups", lambda: os.setgroups([0]) or True)
attempt("capset", lambda: libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)))
attempt("keep caps", lambda: libc.prctl(47, 2, 0, 0, 0))
attempt("nice", lambda: os.nice(-1) or True)
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) or True)
for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE,
             resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
    attempt(f"rlimit {kind}", lambda: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2) or True)
print(seen)
"""

_SETUID_PROGRAMS = r"""
import os, subprocess
seen = []
for folder in ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/opt"):
    found = subprocess.run(["find", folder, "-xdev", "-perm", "/6000", "-type", "f"], capture_output=True, text=True)
    for program in found.stdout.split():
        who = "grep -E '^(Uid|Gid)' /proc/self/status"
        for arguments in (["-c", who], ["root", "-c", who], ["-n", "sh", "-c", who]):
            try:
                ran = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if b"\t0\t" in ran.stdout:
                seen.append(program)
print(seen)
"""

_CLOCK = """
now = (ctypes.c_long * 2)(1, 0)
door("clock_settime", 227, 112, 0, now)
door("settimeofday", 164, 170, now, None)
door("clock_adjtime", 305, 266, 0, (ctypes.c_long * 32)(0x8000))
door("adjtimex", 159, 171, (ctypes.c_long * 32)(0x8000))
door("sethostname", 170, 161, b"x", 1)
door("setdomainname", 171, 162, b"x", 1)
print(seen)
"""

_SUPERVISOR_LIMITS = """
import resource
for pid in {1, os.getppid()} - {os.getpid()}:
    for kind in ("NOFILE", "NPROC", "AS", "CPU", "FSIZE", "STACK", "DATA"):
        number = getattr(resource, "RLIMIT_" + kind)
        attempt(f"prlimit {kind}", lambda: resource.prlimit(pid, number, (0, resource.RLIM_INFINITY)))
        attempt(f"read prlimit {kind}", lambda: resource.prlimit(pid, number))
    for kind, who in ((os.PRIO_PROCESS, pid), (os.PRIO_PGRP, os.getpgid(pid)), (os.PRIO_USER, os.getuid())):
        attempt(f"setpriority {kind}", lambda: os.setpriority(kind, who, 19) or True)
    for policy in (os.SCHED_IDLE, os.SCHED_BATCH, os.SCHED_OTHER):
        attempt(f"sched_setscheduler {policy}", lambda: os.sched_setscheduler(pid, policy, os.sched_param(0)) or True)
    attempt("sched_setparam", lambda: os.sched_setparam(pid, os.sched_param(0)) or True)
    attempt("sched_setaffinity", lambda: os.sched_setaffinity(pid, {max(os.sched_getaffinity(0))}) or True)
    door("sched_setattr", 314, 274, pid, (ctypes.c_uint32 * 12)(48, 5), 0)
    door("ioprio_set", 251, 30, 1, pid, 3 << 13)
    door("ioprio_set user", 251, 30, 3, os.getuid(), 3 << 13)
    door("migrate_pages", 256, 238, pid, 64, (ctypes.c_ulong * 1)(1), (ctypes.c_ulong * 1)(1))
print(seen)
"""

_NETWORK = """
import socket
places = [
    (socket.AF_INET, 1, ("127.0.0.1", @tcp@)), (socket.AF_INET, 2, ("127.0.0.1", @udp@)),
    (socket.AF_UNIX, 1, "\\0@abstract@"), (socket.AF_UNIX, 1, "@socket@"), (socket.AF_INET, 1, ("169.254.169.254", 80)),
    (socket.AF_INET, 1, ("192.0.2.1", 80)), (socket.AF_INET, 1, ("8.8.8.8", 53)), (socket.AF_INET, 2, ("8.8.8.8", 53)),
    (socket.AF_INET6, 1, ("::1", @tcp@)), (socket.AF_INET6, 1, ("2001:4860:4860::8888", 53)),
    (socket.AF_UNIX, 1, "/var/run/docker.sock"), (socket.AF_UNIX, 1, "/run/dbus/system_bus_socket"),
]
for family, kind, address in places:
    def reach():
        with socket.socket(family, kind) as client:
            client.settimeout(2)
            client.connect(address)
            client.send(b"x")
            return kind == 1 or client.getsockname()[0] not in ("127.0.0.1", "::1")
    try:
        if reach():
            seen.append(address)
    except TimeoutError:
        seen.append(("packets went somewhere", address))
    except OSError:
        pass
attempt("names", lambda: socket.getaddrinfo("example.com", 80))
print(seen)
"""

_FAMILIES = """
import socket
for family in set(range(3, 46)) - {socket.AF_INET6}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        attempt(f"family {family}", lambda: socket.socket(family, kind, 0))
for family in (socket.AF_INET, socket.AF_INET6):
    attempt("raw", lambda: socket.socket(family, socket.SOCK_RAW, 1))
    attempt("raw", lambda: socket.socket(family, socket.SOCK_RAW, 255))
print(seen)
"""

_INTERFACES = """
import fcntl, socket, struct
client = socket.socket()
for name, request in (("up", 0x8914), ("address", 0x8916), ("rename", 0x8923), ("mtu", 0x8922), ("hardware", 0x8924)):
    attempt(name, lambda: fcntl.ioctl(client, request, struct.pack("16sh14x", b"lo", 0x41)))
attempt("route", lambda: fcntl.ioctl(client, 0x890B, bytes(120)))
attempt("bridge", lambda: fcntl.ioctl(client, 0x89A0, b"br0" + bytes(29)))
print(seen)
"""


def _sessions_are_apart(outcome: Outcome) -> bool:
    """The listener is there, the neighbour cannot find it, and neither can the host."""
    listens, neighbour, meets_itself = outcome.runs
    refused = isinstance(outcome.results[2], ConnectionRefusedError)
    return refused and (listens.stdout, neighbour.stdout, meets_itself.stdout) == ("", "[]\n", "it listens\n")


_ABSTRACT = """
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0@marker@")
listener.listen()
"""
_FIND_ABSTRACT = """
import socket
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0@marker@") or True)
print(seen)
"""
_MEET_ITSELF = 'socket.socket(socket.AF_UNIX).connect("\\0@marker@"); print("it listens")'

CASES = (
    AbuseCase(
        name="writing outside",
        must="nothing but the working folder and /dev/shm is writable",
        steps=python(ATTEMPT + _WRITING),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="writing outside by the shell",
        must="a shell writes nowhere else either",
        steps=shell(
            "for f in / /etc /usr /usr/bin /dev /var /root /home /run /opt /sys/kernel; do\n"
            '    { : > "$f/x"; } 2>/dev/null && echo "$f"\ndone\n'
            "{ echo x >> '@canary@'; } 2>/dev/null && echo canary\n"
            "{ echo '|/tmp/x' > /proc/sys/kernel/core_pattern; } 2>/dev/null && echo core_pattern\n"
            "echo nothing"
        ),
        holds=lambda outcome: outcome.last.stdout == "nothing\n",
    ),
    AbuseCase(
        name="kernel settings",
        must="no setting of the kernel, no core pattern and no control group is writable",
        steps=python(ATTEMPT + _KERNEL_SETTINGS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="new namespaces",
        must="the code can neither make nor enter a namespace",
        steps=python(ATTEMPT + _NAMESPACES),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="mounts",
        must="the code can neither mount nor unmount, nor change its root",
        steps=python(ATTEMPT + _MOUNTS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="the kernel's doors",
        must="keyrings, bpf, io_uring, shared memory outside the limits and their like are refused",
        steps=python(ATTEMPT + _DOORS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="doors of another architecture",
        must="32-bit and x32 system calls do not lead around the filter",
        steps=python(_OTHER_DOORS),
        holds=lambda outcome: outcome.last.stdout == "",
    ),
    AbuseCase(
        name="more rights",
        must="the code is no root, has no capability, and cannot raise its limits or its priority",
        steps=python(ATTEMPT + _RIGHTS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="setuid programs",
        must="programs with the setuid bit give nobody's rights",
        steps=python(_SETUID_PROGRAMS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="namespaces by the shell",
        must="unshare, nsenter, mount and chroot do nothing for a shell",
        steps=shell(
            "unshare -Ur true 2>/dev/null && echo unshare; nsenter -t 1 -m true 2>/dev/null && echo nsenter\n"
            "mount -t tmpfs x /tmp 2>/dev/null && echo mount; chroot / true 2>/dev/null && echo chroot; echo nothing"
        ),
        holds=lambda outcome: outcome.last.stdout == "nothing\n",
    ),
    AbuseCase(
        name="clock and names",
        must="neither the clock nor the machine's names can be set",
        steps=python(ATTEMPT + _CLOCK),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="the supervisor's limits and priority",
        must="the code cannot lower what its supervisor may use, or how often it runs",
        steps=python(ATTEMPT + _SUPERVISOR_LIMITS),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="network",
        must="no address of the host or beyond answers, by no family of sockets",
        steps=python(ATTEMPT + _NETWORK),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="socket families",
        must="netlink, packet, vsock, raw and kernel sockets are refused",
        steps=python(ATTEMPT + _FAMILIES),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="network interfaces",
        must="no interface, address or route can be changed or made",
        steps=python(ATTEMPT + _INTERFACES),
        holds=NOTHING_SEEN,
    ),
    AbuseCase(
        name="abstract sockets between sessions",
        must="a name that one session listens at is unknown to its neighbour and to the host",
        steps=(
            *python(_ABSTRACT),
            Run(code=ATTEMPT + _FIND_ABSTRACT, session=1),
            Dial(name="@marker@"),
            *python(_MEET_ITSELF),
        ),
        holds=_sessions_are_apart,
    ),
    AbuseCase(
        name="network by the shell",
        must="a shell reaches nobody either",
        steps=shell(
            "(exec 3<>/dev/tcp/127.0.0.1/@tcp@) 2>/dev/null && echo tcp\n"
            "(exec 3<>/dev/tcp/169.254.169.254/80) 2>/dev/null && echo metadata\n"
            "(exec 3<>/dev/tcp/example.com/80) 2>/dev/null && echo name; echo nothing"
        ),
        holds=lambda outcome: (outcome.last.status, outcome.last.stdout) == (ExecStatus.OK, "nothing\n"),
    ),
)
