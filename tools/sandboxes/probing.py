"""What this machine allows, and the way out where that is not enough."""

from __future__ import annotations

import errno
import functools
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from miles_agents.tools.sandboxes.runner.identity import is_root
from miles_agents.tools.sandboxes.runner.seccomp import supported_machine

_PROBE_S = 30.0
# Does what the zygote will do, in a process of its own: prints the step that fails and the error's number.
_TRIAL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, OTHERS = 0x20000, 0x10000000, 0x6C000000
def step(name, result):
    if result < 0:
        print(name, ctypes.get_errno())
        raise SystemExit
uid, gid = os.getuid(), os.getgid()
if sys.argv[1] == "user":
    step("unshare_user", libc.unshare(NEWUSER))
    try:
        open("/proc/self/setgroups", "w").write("deny")
        open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
        open("/proc/self/gid_map", "w").write(f"0 {gid} 1")
    except OSError as error:
        print("map", error.errno)
        raise SystemExit
step("unshare", libc.unshare(NEWNS | OTHERS))
step("mount", libc.mount(None, b"/", None, ctypes.c_ulong(16384 | 1 << 18), None))
step("mount", libc.mount(b"tmpfs", b"/dev", b"tmpfs", ctypes.c_ulong(6), None))
os.mkdir("/dev/proc")
os.mkdir("/dev/old")
if os.fork() == 0:
    step("mount_proc", libc.mount(b"proc", b"/dev/proc", b"proc", ctypes.c_ulong(14), None))
    os._exit(0)
os.wait()
os.chdir("/dev")
step("pivot_root", libc.pivot_root(b".", b"old"))
print("ok 0")
"""
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxProbe:
    """What `probe` found."""

    system: str = "Linux"
    machine_supported: bool = True  # there is a system call table for this processor
    root: bool = False  # with the user ids that root's sessions get
    in_container: bool = False
    failed_step: str = ""  # of the trial: unshare_user, map, unshare, mount, mount_proc, pivot_root; empty: all worked
    error_number: int = 0
    max_user_namespaces: int | None = None  # user.max_user_namespaces
    unprivileged_userns_clone: int | None = None  # kernel.unprivileged_userns_clone (Debian's patch)
    apparmor_restricts: int | None = None  # kernel.apparmor_restrict_unprivileged_userns (Ubuntu ≥ 23.10)

    @property
    def works(self) -> bool:
        """Whether the namespace sandbox can run here."""
        return self.system == "Linux" and self.machine_supported and not self.failed_step


def probe() -> SandboxProbe:
    """Try, in a short-lived process, what a sandbox needs; changes nothing on the machine. Tried once a run."""
    system = platform.system()
    if system != "Linux":
        return SandboxProbe(system=system)
    failed_step, error_number = _trial()
    return SandboxProbe(
        system=system,
        machine_supported=supported_machine(),
        root=is_root(),
        in_container=any(Path(mark).exists() for mark in _CONTAINER_MARKS),
        failed_step=failed_step,
        error_number=error_number,
        max_user_namespaces=_setting("user/max_user_namespaces"),
        unprivileged_userns_clone=_setting("kernel/unprivileged_userns_clone"),
        apparmor_restricts=_setting("kernel/apparmor_restrict_unprivileged_userns"),
    )


@functools.cache
def _trial() -> tuple[str, int]:
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, "root" if is_root() else "user"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, env={}, check=False)  # noqa: S603
    words = ran.stdout.split()
    if len(words) < 2:
        raise RuntimeError(f"the sandbox probe did not run: {ran.stderr.strip()[-500:]}")
    return ("", 0) if words[0] == "ok" else (words[0], int(words[1]))


def _setting(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


def refusal(found: SandboxProbe) -> str:
    """Why the namespace sandbox cannot run on such a machine and what to type; empty if it can."""
    if found.works:
        return ""
    reason, way_out = _explain(found)
    commands = "".join(f"\n    {line}" for line in way_out)
    return (
        f"sandbox=namespace cannot run here: {reason}.\n"
        f"Code written by a model is never run without isolation. What to do:{commands}"
    )


def _explain(found: SandboxProbe) -> tuple[str, tuple[str, ...]]:
    """The reason, and the lines of the way out."""
    if found.system != "Linux":
        return f"{found.system} has no Linux namespaces", _IN_A_CONTAINER
    if not found.machine_supported:
        return f"there is no system call table for {platform.machine()}", ("use an x86_64 or aarch64 machine",)
    if not found.root and (setting := _forbidding_setting(found)):
        return setting
    what = f"'{found.failed_step}' was refused ({errno.errorcode.get(found.error_number, found.error_number)})"
    if found.failed_step in ("mount", "pivot_root") and found.error_number == errno.EINVAL:
        return f"{what}: the root folder is that of a plain chroot, or of the initramfs", _ROOT_AS_A_MOUNT
    if found.failed_step == "mount_proc" and not found.root:
        return f"{what}: this container hides parts of /proc", _UNMASKED
    if found.in_container or found.root:
        return f"{what}: this container may make no namespaces", _IN_A_CONTAINER
    return what, ("run it as root, or ask who runs this machine to allow user namespaces",)


def _forbidding_setting(found: SandboxProbe) -> tuple[str, tuple[str, ...]] | None:
    """The machine's setting that keeps ordinary users from what failed, and how to change it."""
    if found.unprivileged_userns_clone == 0:
        reason = "kernel.unprivileged_userns_clone=0 keeps ordinary users from making user namespaces"
        return reason, _set("kernel.unprivileged_userns_clone", 1)
    if found.max_user_namespaces == 0:
        return "user.max_user_namespaces=0 allows no user namespaces", _set("user.max_user_namespaces", 15000)
    if found.apparmor_restricts == 1 and not found.in_container:
        name = "kernel.apparmor_restrict_unprivileged_userns"
        reason = f"AppArmor restricts user namespaces of ordinary users ({name}=1, the default since Ubuntu 23.10)"
        return reason, _set(name, 0)
    return None


def _set(name: str, value: int) -> tuple[str, ...]:
    return (
        f"sudo sysctl -w {name}={value}                                        # until the next boot",
        f"echo '{name}={value}' | sudo tee /etc/sysctl.d/60-miles-agents.conf  # for good",
        "or run as root, whose sessions need no user namespaces",
    )


# Docker's own profile refuses pivot_root even to containers with SYS_ADMIN.
_IN_A_CONTAINER = (
    "start a container that may make namespaces, and run in there (as its root user):",
    "docker run --rm -it --cap-add SYS_ADMIN --security-opt seccomp=unconfined \\",
    """    --security-opt apparmor=unconfined -v "$PWD":/src -w /src python:3.11 bash -c 'make train'""",
)
_UNMASKED = (
    "start the container with /proc in full view, or as root with --cap-add SYS_ADMIN in the place of systempaths:",
    "docker run --security-opt systempaths=unconfined --security-opt seccomp=unconfined \\",
    "    --security-opt apparmor=unconfined …",
)
_ROOT_AS_A_MOUNT = (
    "run it outside of the chroot, or make the chroot's folder a mount before it is entered:",
    "mount --bind FOLDER FOLDER",
    "a machine that runs from its initramfs: switch_root to a tmpfs or a disk first",
)
