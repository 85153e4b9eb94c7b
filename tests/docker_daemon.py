"""A Docker daemon with the sandbox image, for tests and measurements.

    with docker_daemon() as host: ...        # unix:///…; raises NoDockerError with the reason where there is none

The one that answers is used as it is. With MILES_AGENTS_TEST_DOCKERD=1 root may start a private one for the time being:
Debian's packages are installed if need be, and the image is built without a registry the first time (some minutes; kept
below ~/.cache). It has no bridge and touches no firewall rules, and ends with the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from docker import DockerClient
from docker.errors import DockerException, ImageNotFound

from miles_agents.tools.sandboxes.docker.daemon import knock, resolve_host
from miles_agents.tools.sandboxes.docker.settings import IMAGE

ROOT = Path(__file__).parents[1]
PERMISSION = "MILES_AGENTS_TEST_DOCKERD"
_PACKAGES = ("docker.io", "debootstrap")
_START_S = 60.0


class NoDockerError(Exception):
    """There is no daemon to test with; the message says why, and what to do."""


@contextlib.contextmanager
def docker_daemon() -> Iterator[str]:
    """The address of a daemon that has the sandbox image."""
    host = resolve_host("")
    if _answers(host):
        if not _has_image(host):
            raise NoDockerError(f"the daemon at {host} has no image {IMAGE}: make sandbox-image")
        yield host
    elif os.environ.get(PERMISSION) != "1" or os.getuid() != 0:
        raise NoDockerError(f"no Docker daemon answers at {host}; as root, {PERMISSION}=1 starts a private one")
    else:
        with private_daemon() as host:
            yield host


@contextlib.contextmanager
def private_daemon(*options: str) -> Iterator[str]:
    """A daemon of our own, with the image; root only.

    Args:
        options: further ones for dockerd.
    """
    with _one_at_a_time():
        _install()
        _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"dockerd-{os.getpid()}-"))
    folder.chmod(0o711)  # a daemon that maps user ids asks for a way in
    host = f"unix://{folder}/docker.sock"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*_command(folder, host), *options], stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(host, process, folder / "log")
        _load_image(host)
        yield host
    finally:
        process.terminate()
        process.wait(_START_S)
        _remove(folder)


def _command(folder: Path, host: str) -> list[str]:
    places = ["--data-root", f"{folder}/root", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    no_network = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    ends_with_us = ["setpriv", "--pdeathsig", "TERM"]  # should the tests be killed
    return [*ends_with_us, "dockerd", *places, "--host", host, *no_network]


def _answers(host: str) -> bool:
    if knock(host):
        return False
    try:
        with contextlib.closing(DockerClient(base_url=host, timeout=10)) as client:
            return bool(client.ping())
    except DockerException:
        return False


def _has_image(host: str) -> bool:
    with contextlib.closing(DockerClient(base_url=host)) as client:
        try:
            client.images.get(IMAGE)
        except ImageNotFound:
            return False
        return True


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Tests that run beside these may want the same packages and the same image."""
    with Path(tempfile.gettempdir(), "miles-agents-test-dockerd.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install() -> None:
    if shutil.which("dockerd") and shutil.which("docker") and shutil.which("debootstrap"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", *_PACKAGES]
    for command in (install, ["apt-get", "update"], install):  # its lists may be missing, or too old
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if command is install and not done.returncode:
            return
    raise NoDockerError(f"{' '.join(install)} failed: {done.stderr.strip()[-500:]}")


def _wait_for(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not _answers(host):
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoDockerError(f"dockerd did not start: {log.read_text(errors='replace')[-1000:]}")
        time.sleep(0.1)


def _load_image(host: str) -> None:
    environment = {**os.environ, "DOCKER_HOST": host, "PYTHON": sys.executable}
    with _one_at_a_time():
        done = subprocess.run([ROOT / "docker/build_offline.sh"], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise NoDockerError(f"docker/build_offline.sh failed: {done.stderr.strip()[-1000:]}")


def _sweep() -> None:
    """Remove what killed tests left; their daemons ended with them."""
    for folder in Path(tempfile.gettempdir()).glob("dockerd-*-*"):
        pids = [folder.name.split("-")[1]]
        with contextlib.suppress(OSError):
            pids.append((folder / "pid").read_text())
        if not any(Path("/proc", pid).exists() for pid in pids):
            _remove(folder)


def _remove(folder: Path) -> None:
    mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    for place in sorted((place for place in mounts if place.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", place], capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def over_tcp(host: str) -> AsyncIterator[str]:
    """A TCP address of this machine for a daemon that listens on a unix socket: what a remote one looks like."""
    path = host.removeprefix("unix://")
    served = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        inner_reader, inner_writer = await asyncio.open_unix_connection(path)
        try:
            await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
        finally:
            writer.close()
            inner_writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if served:
        await asyncio.wait(served, timeout=5)
