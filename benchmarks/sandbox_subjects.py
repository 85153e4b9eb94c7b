"""What the sandbox benchmark measures in this process: this project's launchers, and what they are compared with."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from docker import DockerClient
from docker.errors import DockerException
from docker.models.containers import Container

from benchmarks.sandbox_rounds import Session, Subject, UnavailableError, container_bytes, tree_bytes
from miles_agents.contracts import Sandbox, SandboxProvider
from miles_agents.errors import SandboxUnavailableError
from miles_agents.tools.sandboxes.docker.daemon import resolve_host
from miles_agents.tools.sandboxes.docker.sandboxes import DockerSandboxes
from miles_agents.tools.sandboxes.docker.settings import IMAGE, DockerSettings
from miles_agents.tools.sandboxes.namespace import NamespaceSandboxes

NAMESPACE, DOCKER, DOCKER_POOL = "namespace", "docker", "docker, from the pool"
SUBPROCESS, DOCKER_EXEC = "subprocess", "docker exec"
_PRELOAD = ("numpy", "sympy")
_TIMEOUT_S = 60.0
_POOL = 8
_CONTAINER_S = "3600"
_ATTEMPTS = 3  # of one docker exec
_FULL_S = 0.01  # between two looks whether the pool is full


class _Sandboxed:
    """A session of this project."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def call(self, code: str) -> str:
        """See `Session.call`."""
        return (await self._sandbox.exec(code, timeout_s=_TIMEOUT_S)).stdout

    async def close(self) -> None:
        """See `Session.close`."""
        await self._sandbox.close()


class Namespace:
    """Sessions in namespaces, cloned from a warm interpreter."""

    blocking = False

    def __init__(self) -> None:
        self._provider = NamespaceSandboxes(preload=_PRELOAD)

    async def start(self) -> str:
        """See `Subject.start`."""
        return await _started(self._provider)

    async def open(self) -> Session:
        """See `Subject.open`."""
        return _Sandboxed(await self._provider.open())

    async def settle(self) -> None:
        """See `Subject.settle`."""

    async def memory(self) -> float | None:
        """See `Subject.memory`."""
        return tree_bytes(self._provider.process_id)

    async def stop(self) -> None:
        """See `Subject.stop`."""
        await self._provider.close()


class Docker:
    """Sessions in containers.

    Args:
        host: of the daemon.
        pool_size: sessions kept ready; 0 shows what a start costs without a pool.
    """

    blocking = False

    def __init__(self, host: str, *, pool_size: int = 0) -> None:
        self._host = host
        self._pool_size = pool_size
        self._provider = DockerSandboxes(preload=_PRELOAD, settings=DockerSettings(host=host, pool_size=pool_size))
        self._client: DockerClient | None = None

    async def start(self) -> str:
        """See `Subject.start`."""
        said = await _started(self._provider)
        self._client = _client(self._host)
        return said

    async def open(self) -> Session:
        """See `Subject.open`."""
        return _Sandboxed(await self._provider.open())

    async def settle(self) -> None:
        """See `Subject.settle`: until the pool is full."""
        async with asyncio.timeout(_TIMEOUT_S):
            while self._provider.ready < self._pool_size:  # noqa: ASYNC110 — a launcher tells nobody when its pool is full
                await asyncio.sleep(_FULL_S)

    async def memory(self) -> float | None:
        """See `Subject.memory`."""
        if self._client is None or self._pool_size:  # sessions of the pool would be counted as well
            return None
        return await asyncio.to_thread(_bytes_of, self._client, self._provider.label)

    async def stop(self) -> None:
        """See `Subject.stop`."""
        await self._provider.close()
        if self._client is not None:
            self._client.close()


async def _started(provider: SandboxProvider) -> str:
    try:
        await provider.start()
    except SandboxUnavailableError as error:
        raise UnavailableError(str(error)) from error
    return f"{provider.description}; state kept"


class PlainSubprocess:
    """`subprocess.run([python, "-c", code])` for each call."""

    blocking = True

    async def start(self) -> str:
        """See `Subject.start`."""
        return f"{sys.executable} -c: no isolation; a fresh interpreter for each call"

    async def open(self) -> Session:
        """See `Subject.open`."""
        return _Calls()

    async def settle(self) -> None:
        """See `Subject.settle`."""

    async def memory(self) -> float | None:
        """See `Subject.memory`: between calls there is nothing."""
        return None

    async def stop(self) -> None:
        """See `Subject.stop`."""


class _Calls:
    async def call(self, code: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)  # noqa: ASYNC221, S603
        return done.stdout

    async def close(self) -> None:
        """Nothing to end."""


class DockerExec:
    """`docker exec` for each call, in a running container of the same image.

    Args:
        host: of the daemon.
    """

    blocking = True

    def __init__(self, host: str) -> None:
        self._host = host
        self._label = f"miles-agents.benchmark=exec-{os.getpid()}"
        self._client: DockerClient | None = None

    async def start(self) -> str:
        """See `Subject.start`."""
        try:
            self._client = _client(self._host)
            self._client.images.get(IMAGE)
        except DockerException as error:
            raise UnavailableError(str(error)) from error
        return f"{IMAGE}, no network; a fresh interpreter for each call, which cannot be stopped at a limit"

    async def open(self) -> Session:
        """See `Subject.open`."""
        assert self._client is not None
        key, _, value = self._label.partition("=")
        options: Mapping[str, Any] = {
            "network_mode": "none",
            "init": True,
            "auto_remove": True,  # whatever happens to this process, its containers end
            "labels": {key: value},
        }
        return _ExecSession(self._client.containers.run(IMAGE, ["sleep", _CONTAINER_S], detach=True, **options))

    async def settle(self) -> None:
        """See `Subject.settle`."""

    async def memory(self) -> float | None:
        """See `Subject.memory`."""
        assert self._client is not None
        return _bytes_of(self._client, self._label)

    async def stop(self) -> None:
        """See `Subject.stop`."""
        if self._client is not None:
            for left in self._client.containers.list(all=True, filters={"label": self._label}):
                left.remove(force=True)
            self._client.close()


class _ExecSession:
    def __init__(self, container: Container) -> None:
        self._container = container

    async def call(self, code: str) -> str:
        # With many of them at a time the daemon loses the output of some (exit code 0, nothing printed): asked again.
        for _ in range(_ATTEMPTS):
            done = self._container.exec_run(["python3", "-c", code])
            if done.output or done.exit_code != 0:
                return bytes(done.output).decode()
        raise RuntimeError(f"docker exec gave no output in {_ATTEMPTS} attempts")

    async def close(self) -> None:
        self._container.remove(force=True)


def _client(host: str) -> DockerClient:
    return DockerClient(base_url=resolve_host(host), max_pool_size=64)


def _bytes_of(client: DockerClient, label: str) -> float:
    found = client.containers.list(filters={"label": label})
    return sum(container_bytes(each.stats(stream=False, one_shot=True)) for each in found)


def own_subjects(host: str) -> dict[str, Subject]:
    """All that is measured in this process, by name.

    Args:
        host: of the Docker daemon; empty for what the environment names.
    """
    return {
        SUBPROCESS: PlainSubprocess(),
        NAMESPACE: Namespace(),
        DOCKER: Docker(host),
        DOCKER_POOL: Docker(host, pool_size=_POOL),
        DOCKER_EXEC: DockerExec(host),
    }
