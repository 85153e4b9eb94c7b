"""A Docker daemon as it is looked at before anything runs: is it there, what can it do, has it the image, what is left.

Synchronous, by docker-py; sessions go through `EngineBackend`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any

import requests
from docker import DockerClient, from_env
from docker.context import ContextAPI
from docker.errors import DockerException, ImageNotFound

from miles_agents.errors import SandboxUnavailableError
from miles_agents.tools.sandboxes.docker.backend import ContainerError, ContainerRecord, EngineFacts, ImageFacts

_TIMEOUT_S = 60
_KNOCK_S = 10.0
_PULL_S = 1800
_FAILURES = (DockerException, requests.RequestException)


def resolve_host(host: str) -> str:
    """The daemon's address: as given, else DOCKER_HOST, else the current context's, else the usual socket."""
    context: dict[str, Any] = {} if host or os.environ.get("DOCKER_HOST") else _context()
    return host or os.environ.get("DOCKER_HOST") or context.get("base_url") or "unix:///var/run/docker.sock"


def _context() -> dict[str, Any]:
    try:
        return dict(ContextAPI.kwargs_from_context(environment=os.environ))
    except DockerException:  # a context that is named and not there: the client says so when it is made
        return {}


def knock(host: str) -> str:
    """Why nobody answers at a unix socket; empty if somebody does, or if the address is of another kind.

    The clients' own messages for this are long, and they leave their sockets to the garbage collector.
    """
    if not host.startswith("unix://"):
        return ""
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(_KNOCK_S)
        try:
            trial.connect(host.removeprefix("unix://"))
        except OSError as error:
            return error.strerror or str(error)
    return ""


class Daemon:
    """One daemon. Its calls block; they may be made from any thread and run one after the other.

    Args:
        host: as `resolve_host` takes it.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._client: DockerClient | None = None
        self._turn = threading.Lock()  # a task that is cancelled leaves its call behind, in a thread

    def facts(self) -> EngineFacts:
        """What the daemon says of itself.

        Raises:
            SandboxUnavailableError: it cannot be reached; the message says what to type.
        """
        host = resolve_host(self._host)
        if why_not := knock(host):
            raise SandboxUnavailableError(unreachable(host, why_not))
        try:
            with self._turn:
                info = self._connected().info()
        except _FAILURES as error:
            raise SandboxUnavailableError(unreachable(host, str(error))) from error
        options = [option.split(",")[0] for option in info.get("SecurityOptions") or ()]
        return EngineFacts(
            version=str(info.get("ServerVersion", "")),
            system=str(info.get("OSType", "linux")),
            runtimes=sorted(info.get("Runtimes") or ("runc",)),
            default_runtime=str(info.get("DefaultRuntime") or "runc"),
            limits_memory=bool(info.get("MemoryLimit")),
            limits_swap=bool(info.get("SwapLimit")),
            limits_processes=bool(info.get("PidsLimit")),
            limits_cpu=bool(info.get("CpuCfsQuota")),
            filters_system_calls="name=seccomp" in options,
            maps_user_ids=bool({"name=rootless", "name=userns"} & set(options)),
        )

    def find_image(self, image: str) -> ImageFacts | None:
        """The image in the daemon's own store; None if it is not there.

        Raises:
            ContainerError: the daemon failed.
        """
        try:
            with self._turn:
                found = self._connected().images.get(image)
        except ImageNotFound:
            return None
        except _FAILURES as error:
            raise ContainerError(str(error)) from error
        return ImageFacts(volumes=sorted((found.attrs.get("Config") or {}).get("Volumes") or ()))

    def pull(self, image: str, given_up: threading.Event) -> None:
        """Fetch it from its registry.

        Args:
            image: its name, with a tag or a digest.
            given_up: once it is set, nobody wants the image any more.

        Raises:
            ContainerError: the registry or the daemon failed.
        """
        client = self._make_client(_PULL_S)
        try:
            with contextlib.closing(client.api.pull(image, stream=True, decode=True)) as progress:
                for line in progress:
                    if given_up.is_set():  # the daemon stops when nobody listens
                        return
                    if "error" in line:  # after the answer's status, which was a good one
                        raise ContainerError(str(line["error"]))
        except _FAILURES as error:
            raise ContainerError(str(error)) from error
        finally:
            client.close()

    def containers(self, label: str) -> list[ContainerRecord]:
        """All containers with the label, running or not.

        Raises:
            ContainerError: the daemon failed.
        """
        try:
            with self._turn:
                found = self._connected().api.containers(all=True, filters={"label": label})
        except _FAILURES as error:
            raise ContainerError(str(error)) from error
        return [ContainerRecord(each["Names"][0].lstrip("/"), each["Labels"]) for each in found if each.get("Names")]

    def close(self) -> None:
        """Free the connections."""
        with self._turn:
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def _connected(self) -> DockerClient:
        if self._client is None:
            self._client = self._make_client(_TIMEOUT_S)
        return self._client

    def _make_client(self, timeout_s: int) -> DockerClient:
        environment = {**os.environ, "DOCKER_HOST": self._host} if self._host else dict(os.environ)
        over_ssh = resolve_host(self._host).startswith("ssh://")
        return from_env(environment=environment, timeout=timeout_s, use_ssh_client=over_ssh)


def unreachable(host: str, said: str) -> str:
    """Why there is no daemon to talk to, and what to type."""
    if "Permission denied" in said:
        return (
            f"you may not use the Docker daemon at {host}. Type:\n    sudo usermod -aG docker $USER && newgrp docker\n"
            "or run a daemon of your own, without root:\n    dockerd-rootless-setuptool.sh install"
        )
    if host.startswith("unix://"):
        return (
            f"no Docker daemon answers at {host} ({said}). Type:\n    sudo systemctl start docker\n"
            "or name another one:\n    sandbox.docker.host=unix:///path/to/docker.sock (or DOCKER_HOST)"
        )
    return (
        f"no Docker daemon answers at {host} ({said}). See whether this works:\n    docker --host {host} info\n"
        "or name another one:\n    sandbox.docker.host=tcp://host:2376 (or DOCKER_HOST, with DOCKER_TLS_VERIFY=1)"
    )
