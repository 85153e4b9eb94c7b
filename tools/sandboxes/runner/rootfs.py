"""The file tree a session sees: interpreter, libraries, preloaded packages and programs, all read-only.

Built once by the zygote in its own mount namespace; a session copies that and adds its own /tmp, /dev/shm and /proc.
Nothing else of the host is there: no /etc, no /home, no other packages.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from miles_agents.tools.sandboxes.runner.linux import (
    CLONE_NEWNS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
    pivot_root,
    unmount,
    unshare,
)

WORK_FOLDER = "/tmp"  # noqa: S108 — of the session's own tree
_DEVICES = ("null", "zero", "urandom", "random")
_LIBRARY_LINKS = ("lib", "lib64", "usr/lib64")
_PROGRAM_LINKS = ("bin",)
# What shell commands run: the distribution's own programs, and what some of them look for beside their libraries.
_PROGRAMS = (
    "/usr/bin",
    "/bin",
    "/etc/alternatives",
    "/usr/lib/git-core",
    "/usr/share/git-core",
    "/usr/share/terminfo",
    "/usr/lib/locale",
    "/usr/share/zoneinfo",
)
_INTERPRETER_LINKS = ("python", "python3")  # in /opt/bin: on the path the session's own interpreter comes first
_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/run", "/sys", "/opt", "/var/tmp")  # noqa: S108
_USERS = "user:x:1000:1000::/tmp:/bin/bash\n"
_OLD = "old"
_PRIVATE_FOLDERS = (WORK_FOLDER, "/dev/shm")  # noqa: S108 — each session mounts its own over these
_KEPT = "/kept"  # where what those mounts would hide stays reachable


_kept: dict[str, Path] = {}  # place in the tree → where the interpreter looks for it; filled by the zygote


def _library_folders() -> set[Path]:
    """Folders of the shared libraries this process has loaded, and of the dynamic loader."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.split(maxsplit=5)[5:]
        if name and name[0].startswith("/") and ".so" in name[0] and not name[0].endswith(" (deleted)"):
            found.add(Path(name[0]).resolve().parent)
    for link in _LIBRARY_LINKS:
        folder = Path("/", link).resolve()
        if any(folder.glob("ld-linux*")) or any(folder.glob("ld-musl*")):
            found.add(folder)
    return found


def _package_paths(site_folders: Iterable[str]) -> set[Path]:
    """What of the site folders is imported now: packages, single modules, and the libraries of wheels."""
    found = set()
    for folder in site_folders:
        tops = {path.relative_to(folder).parts[0] for path in _imported_files() if path.is_relative_to(folder)}
        found |= {Path(folder, top) for top in tops}
        wheels = (Path(folder, f"{top}.libs") for top in tops)
        found |= {libraries for libraries in wheels if libraries.is_dir()}
    return found


def _imported_files() -> set[Path]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {Path(file) for file in files if isinstance(file, str)}


class _Sources(NamedTuple):
    """What of the host is bound into the tree."""

    base: list[Path]  # the standard library, shared libraries, programs, the interpreter; parents before children
    hidden: list[Path]  # folders of installed packages inside the base: the host's other packages
    packages: list[Path]  # what is preloaded


def _sources(site_folders: Iterable[str]) -> _Sources:
    """Everything to bind; called with the preloaded packages imported."""
    folders = list(site_folders)
    stdlib = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    programs = {Path(name) for name in _PROGRAMS if Path(name).is_dir() and not Path(name).is_symlink()}
    wanted = stdlib | programs | {Path(sys.executable), Path(sys.executable).resolve()} | _library_folders()
    base: list[Path] = []
    for path in sorted(wanted):
        inside = [*base, *(Path(folder) for folder in folders)]
        if path.exists() and not any(path.is_relative_to(parent) for parent in inside):
            base.append(path)
    places = (folder / name for folder in sorted(stdlib) for name in ("site-packages", "dist-packages"))
    return _Sources(base, [place for place in places if place.is_dir()], sorted(_package_paths(folders)))


def _bind_read_only(source: str, target: Path) -> None:
    """Bind with everything mounted below, then make each of those mounts read-only, keeping locked flags."""
    mount(source, str(target), None, MS_BIND | MS_REC)
    for place in _mounts_below(target):
        locked = os.statvfs(place).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount(None, place, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | locked)


def _mounts_below(target: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = (line.split()[4].encode().decode("unicode_escape") for line in lines)
    return [place for place in places if Path(place).is_relative_to(target)]


def _make_place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()


def _mount_point(sources: Iterable[Path]) -> Path:
    """A folder of the host that hides none of the sources while the new tree is built on it."""
    sources = list(sources)
    for candidate in map(Path, _MOUNT_POINTS):
        if candidate.is_dir() and not any(source.is_relative_to(candidate.resolve()) for source in sources):
            return candidate.resolve()
    raise OSError(f"none of {', '.join(_MOUNT_POINTS)} can take the sandbox's file tree")


def _bind_all(root: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        target = root / path.relative_to("/")
        _make_place(path, target)
        _bind_read_only(str(path), target)


def _hidden_by_private(paths: Iterable[Path]) -> list[Path]:
    """Those of the paths that lie in folders each session mounts over, as in a checkout below /tmp."""
    return [path for path in paths if any(path.is_relative_to(folder) for folder in _PRIVATE_FOLDERS)]


def _keep(root: Path, paths: Iterable[Path]) -> None:
    for number, path in enumerate(_hidden_by_private(paths)):
        kept = root / _KEPT.lstrip("/") / str(number)
        _make_place(path, kept)
        _bind_read_only(str(path), kept)
        _kept[f"{_KEPT}/{number}"] = path


def _fill(root: Path, sources: _Sources) -> None:
    _bind_all(root, sources.base)
    hidden = [str(root / place.relative_to("/")) for place in sources.hidden]
    for place in hidden:
        mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=256,mode=755")
    _bind_all(root, sources.packages)
    for place in hidden:
        mount(None, place, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    _keep(root, [*sources.base, *sources.packages])
    _add_links(root)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(_USERS)
    for device in _DEVICES:
        target = root / "dev" / device
        _make_place(Path("/dev", device), target)
        mount(f"/dev/{device}", str(target), None, MS_BIND)
        locked = os.statvfs(target).f_flag & MS_NOEXEC
        mount(None, str(target), None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | locked)  # its times, its mode
    for name in ("proc", "tmp", "dev/shm", _OLD):
        (root / name).mkdir(exist_ok=True)


def _add_links(root: Path) -> None:
    """The host's links to its folders of libraries and programs, and the interpreter under its usual names."""
    (root / "opt/bin").mkdir(parents=True)
    for name in _INTERPRETER_LINKS:
        (root / "opt/bin" / name).symlink_to(sys.executable)
    for link in (*_LIBRARY_LINKS, *_PROGRAM_LINKS):
        place = root / link
        if not place.exists() and Path("/", link).is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path("/", link).readlink())


def enter_new_root(site_folders: Iterable[str]) -> None:
    """Move this process into a fresh mount namespace that holds the session tree alone.

    Needs CAP_SYS_ADMIN, and to be PID 1 of its own pid namespace.

    Raises:
        OSError: the kernel refuses a step.
    """
    sources = _sources(site_folders)
    unshare(CLONE_NEWNS)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    root = _mount_point([*sources.base, *sources.packages])
    mount("tmpfs", str(root), "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,nr_inodes=4096,mode=755")
    _fill(root, sources)
    mount("proc", str(root / "proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(root)
    pivot_root(".", _OLD)
    os.chdir("/")
    unmount(f"/{_OLD}")
    Path("/", _OLD).rmdir()
    mount(None, "/", None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def mount_private(*, tmp_mb: int, uid: int, gid: int) -> None:
    """The session's own writable places and its own view of processes."""
    owner = f"mode=700,uid={uid},gid={gid}"
    mount("tmpfs", WORK_FOLDER, "tmpfs", MS_NOSUID | MS_NODEV, f"size={tmp_mb}m,nr_inodes={tmp_mb * 64},{owner}")
    shared = max(1, tmp_mb // 4)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, f"size={shared}m,nr_inodes=512,{owner}")  # noqa: S108
    for kept, path in _kept.items():
        _make_place(Path(kept), path)
        _bind_read_only(kept, path)
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    try:
        mount("proc", "/proc", "proc", flags, "subset=pid")  # processes only: nothing about the host
    except OSError:  # before Linux 5.8
        mount("proc", "/proc", "proc", flags | MS_RDONLY)
