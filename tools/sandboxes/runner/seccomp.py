"""The seccomp filter: system calls that reach other processes, mounts, namespaces or the kernel's own settings.

A list of refusals, not of permissions: ordinary Python, numpy and subprocesses must go on working, and namespaces,
dropped capabilities and the read-only tree already close most of it. `memfd_create`, System V and POSIX message
queues are refused because their memory escapes the limits where no control group counts it; `io_setup` and
`inotify_init` because what they use up is counted for the whole machine or the host's user. `flock` takes a descriptor
for reading, and the sessions' trees are made of the host's own files: a lock would hold for the host and for other
sessions too. Programs that are told it does not exist go on without it, or use fcntl's locks. The supervisor runs under
the same user as the code: calls that set the limits or the priority of a process by its id are allowed for the caller
itself only.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

_COMMON = {  # one number on every architecture
    "pidfd_getfd": 438, "process_madvise": 440, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447, "open_tree_attr": 467,
}  # fmt: skip
_X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "mount": 165, "umount2": 166,
    "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "add_key": 248, "request_key": 249,
    "keyctl": 250, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "kexec_load": 246,
    "kexec_file_load": 320, "init_module": 175, "delete_module": 176, "finit_module": 313, "open_by_handle_at": 304,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "syslog": 103, "quotactl": 179, "personality": 135,
    "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170,
    "setdomainname": 171, "memfd_create": 319, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240,
    "fanotify_init": 300, "lookup_dcookie": 212, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134,
    "vhangup": 153, "io_setup": 206, "ioprio_set": 251,
    "inotify_init": 253, "inotify_init1": 294,
}  # fmt: skip
_AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "mount": 40, "umount2": 39,
    "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "add_key": 217, "request_key": 218,
    "keyctl": 219, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "kexec_load": 104,
    "kexec_file_load": 294, "init_module": 105, "delete_module": 106, "finit_module": 273, "open_by_handle_at": 265,
    "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "syslog": 116, "quotactl": 60, "personality": 92,
    "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171, "sethostname": 161,
    "setdomainname": 162, "memfd_create": 279, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180,
    "fanotify_init": 262, "lookup_dcookie": 18, "vhangup": 58, "io_setup": 0, "ioprio_set": 30,
    "inotify_init1": 26,
}  # fmt: skip
# Allowed where the argument at this position is 0, the calling process. setpriority's first argument is what kind of
# target it has, and 0 is a process.
_X86_64_SELF = {
    "prlimit64": (302, (0,)), "sched_setscheduler": (144, (0,)), "sched_setparam": (142, (0,)),
    "sched_setattr": (314, (0,)), "sched_setaffinity": (203, (0,)), "setpriority": (141, (0, 1)),
}  # fmt: skip
_AARCH64_SELF = {
    "prlimit64": (261, (0,)), "sched_setscheduler": (119, (0,)), "sched_setparam": (118, (0,)),
    "sched_setattr": (274, (0,)), "sched_setaffinity": (122, (0,)), "setpriority": (140, (0, 1)),
}  # fmt: skip


class _Architecture(NamedTuple):
    audit: int  # its number in the kernel's audit header
    refused: dict[str, int]
    self_only: dict[str, tuple[int, tuple[int, ...]]]
    clone: int
    flock: int
    fcntl: int
    socket: int
    socketpair: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000_003E, _X86_64, _X86_64_SELF, 56, 73, 72, 41, 53),
    "aarch64": _Architecture(0xC000_00B7, _AARCH64, _AARCH64_SELF, 220, 32, 25, 198, 199),
}
_CLONE3 = 435  # its flags lie in memory a filter cannot read; told that it does not exist, libc uses clone
_NEW_NAMESPACES = 0x7E02_0000
_FAMILIES = (1, 2, 10)  # unix, inet, inet6; not vsock, netlink, packet: those see past the network namespace
_PROTOCOLS = (0, 6, 17)  # TCP and UDP; a socket of another one would have the host's kernel load a module
_F_NOTIFY = 1026  # tells what others do in a folder, as inotify does
_X32_BIT = 0x4000_0000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF_0000, 0x8000_0000
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4


def supported_machine() -> bool:
    """Whether there is a table for this processor."""
    return platform.machine() in _ARCHITECTURES


def _instruction(code: int, value: int, *, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, value)


def _refuse(number: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, 0x0005_0000 | number)


def _load_argument(position: int) -> bytes:
    """The low half, which is all the kernel takes of an int; both processors are little-endian."""
    return _instruction(_LOAD, 16 + 8 * position)


def _block(number: int, body: list[bytes]) -> list[bytes]:
    """What to do about one call; the body ends with a verdict."""
    return [_instruction(_JUMP_EQUAL, number, false=len(body)), *body]


def _one_of(position: int, values: tuple[int, ...]) -> list[bytes]:
    """Go on if the argument is one of the values, else refuse."""
    jumps = [_instruction(_JUMP_EQUAL, value, true=len(values) - index) for index, value in enumerate(values)]
    return [_load_argument(position), *jumps, _refuse()]


def _self_only(number: int, positions: tuple[int, ...]) -> list[bytes]:
    """Refuse the call unless the arguments are 0."""
    checks = [each for position in positions for each in (_load_argument(position), b"")]
    last = len(checks) + 1  # the refusal, counted from the first check
    for index in range(1, len(checks), 2):
        checks[index] = _instruction(_JUMP_EQUAL, 0, false=last - index - 1)
    body = [*checks, _instruction(_RETURN, _ALLOW), _refuse()]
    return _block(number, body)


def build_filter(machine: str | None = None) -> bytes:
    """The filter's program for `machine` (default: this one), 8 bytes an instruction."""
    known = _ARCHITECTURES[machine or platform.machine()]
    allow = _instruction(_RETURN, _ALLOW)
    program = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_JUMP_EQUAL, known.audit, true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_OFFSET),
        _instruction(_JUMP_GREATER_EQUAL, _X32_BIT, false=1),
        _refuse(),
        _instruction(_JUMP_EQUAL, _CLONE3, false=1),
        _refuse(errno.ENOSYS),
        _instruction(_JUMP_EQUAL, known.flock, false=1),
        _refuse(errno.ENOSYS),
    ]
    for number in sorted({*known.refused.values(), *_COMMON.values()}):
        program += [_instruction(_JUMP_EQUAL, number, false=1), _refuse()]
    for number, positions in known.self_only.values():
        program += _self_only(number, positions)
    program += _block(
        known.clone, [_load_argument(0), _instruction(_JUMP_ANY_BIT, _NEW_NAMESPACES, false=1), _refuse(), allow]
    )
    program += _block(known.fcntl, [_load_argument(1), _instruction(_JUMP_EQUAL, _F_NOTIFY, false=1), _refuse(), allow])
    program += _block(known.socketpair, [*_one_of(0, _FAMILIES[:1]), allow])
    program += _block(known.socket, [*_one_of(0, _FAMILIES), *_one_of(2, _PROTOCOLS), allow])
    program.append(allow)
    return b"".join(program)
