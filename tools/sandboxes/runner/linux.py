"""The kernel calls Python has no function for."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x2008_0522
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20
_SECCOMP_MODE_FILTER = 2
_LAST_CAPABILITY = int(Path("/proc/sys/kernel/cap_last_cap").read_text()) if platform.system() == "Linux" else 0
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
# PyDLL keeps the interpreter lock over the call, so that the child of a raw clone holds it too.
_locked_libc = ctypes.PyDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount something, or change a mount.

    Raises:
        OSError: the kernel refuses; the message names both ends.
    """
    result = _libc.mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _check(result, f"mount {kind or source or ''} on {target}")


def unmount(target: str) -> None:
    """Detach a mount."""
    _check(_libc.umount2(_bytes(target), MNT_DETACH), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root of this mount namespace."""
    _check(_libc.pivot_root(_bytes(new_root), _bytes(put_old)), "pivot_root")


def unshare(flags: int) -> None:
    """Leave namespaces for fresh ones."""
    _check(_libc.unshare(flags), "unshare")


def clone(flags: int) -> int:
    """Fork into fresh namespaces in one step: 0 in the child, the child's id in the parent."""
    number = _SYS_CLONE[platform.machine()]
    arguments = [ctypes.c_long(each) for each in (number, flags | signal.SIGCHLD, 0, 0, 0, 0)]
    return _check(int(_locked_libc.syscall(*arguments)), "clone")


def set_host_name(name: str) -> None:
    """Name the own UTS namespace."""
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    if _libc.prctl(option, value, pointer, 0, 0) < 0:
        _check(-1, f"prctl {option}")


def signal_at_parents_end(number: int) -> None:
    """Be sent a signal when the thread that started this process ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may trace this one and read its memory."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def drop_bounding_set() -> None:
    """No capability can ever be gained again."""
    for capability in range(_LAST_CAPABILITY + 1):
        _prctl(_PR_CAPBSET_DROP, capability)


def drop_capabilities() -> None:
    """Give up every capability held, and the right to gain any by exec."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class SeccompFilter:
    """A filter, laid out once and installed in every session.

    Args:
        program: 8 bytes an instruction.
    """

    def __init__(self, program: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(program, len(program))
        self._header = _Program(len(program) // 8, ctypes.addressof(self._instructions))

    def install(self) -> None:
        """Bind this process and all its children, for good."""
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(self._header))


def collapse_heap() -> None:
    """Put the heap into huge pages, so that a fork copies fewer page table entries.

    With numpy and sympy loaded a fork takes half the time. An old kernel refuses, and nothing is lost but that.
    """
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        named = len(fields) > 5 and fields[5] != "[heap]"
        if named or not fields[1].startswith("rw"):
            continue
        first, last = (int(each, 16) for each in fields[0].split("-"))
        start, end = -(-first // _HUGE_PAGE) * _HUGE_PAGE, last // _HUGE_PAGE * _HUGE_PAGE
        if end > start:
            _libc.madvise(start, end - start, _MADV_COLLAPSE)
