"""What a user can set of the Docker launcher."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from miles_agents.errors import ConfigError, choose

IMAGE = "miles-agents/sandbox:1"  # the version is that of docker/sandbox.version


class Pull(StrEnum):
    """Where the image may come from."""

    NEVER = "never"  # the daemon's own store alone
    MISSING = "missing"  # fetched from its registry when the store lacks it


class Transport(StrEnum):
    """How host and container reach each other."""

    AUTO = "auto"  # socket where the daemon is on this machine, else stdio
    SOCKET = "socket"  # the container dials a unix socket of the host
    STDIO = "stdio"  # over the container's attached standard streams


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSettings:
    """Of the Docker launcher; limits of a session are `SandboxLimits`.

    Raises:
        ConfigError: a value that cannot be.
    """

    image: str = IMAGE
    runtime: str = ""  # of the daemon's runtimes, e.g. runsc; empty: the daemon's default
    pull: Pull = Pull.NEVER
    pool_size: int = 4  # sessions kept ready; 0: none is started before it is asked for
    max_parallel_starts: int = 4  # containers that may be starting at the same time
    transport: Transport = Transport.AUTO
    host: str = ""  # of the daemon, as in DOCKER_HOST; empty: DOCKER_HOST, the current context, the usual socket

    def __post_init__(self) -> None:
        object.__setattr__(self, "pull", choose(Pull, self.pull, key="sandbox.docker.pull"))
        object.__setattr__(self, "transport", choose(Transport, self.transport, key="sandbox.docker.transport"))
        if self.pool_size < 0:
            raise ConfigError(f"sandbox.docker.pool_size={self.pool_size}: must be at least 0")
        if self.max_parallel_starts < 1:
            raise ConfigError(f"sandbox.docker.max_parallel_starts={self.max_parallel_starts}: must be at least 1")
        if not self.image.strip():
            raise ConfigError(f"sandbox.docker.image is empty: give the name of an image, e.g. {IMAGE}")
        if self.host and "://" not in self.host:
            raise ConfigError(
                f"sandbox.docker.host={self.host}: an address like unix:///var/run/docker.sock, tcp://host:2376 or "
                "ssh://user@host"
            )
