"""What the launcher asks of a container engine.

`EngineBackend` asks a Docker daemon, `FakeContainerBackend` keeps a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

STDOUT, STDERR = 1, 2


class ContainerError(Exception):
    """The engine refused, or could not be asked.

    Args:
        message: what it said.
        status: the HTTP status of its answer; 0 if there was none, so that what was asked may still happen.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Removal(StrEnum):
    """What an attempt to remove a container found."""

    REMOVED = "removed"
    ABSENT = "absent"  # there is no such container
    IN_PROGRESS = "in_progress"  # somebody is at it, most often the engine itself, after the container ended


class ContainerRecord(NamedTuple):
    """A container as the engine lists it."""

    name: str
    labels: Mapping[str, str]


class Chunk(NamedTuple):
    """What a container wrote."""

    stream: int  # STDOUT or STDERR
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine says of itself, as far as isolation goes."""

    version: str = ""
    system: str = "linux"
    runtimes: Sequence[str] = ("runc",)
    default_runtime: str = "runc"
    limits_memory: bool = True
    limits_swap: bool = True
    limits_processes: bool = True
    limits_cpu: bool = True
    filters_system_calls: bool = True  # by a seccomp profile
    maps_user_ids: bool = False  # rootless, or with user-namespace remapping: few user ids inside


class ImageFacts(NamedTuple):
    """What matters of an image."""

    volumes: Sequence[str] = ()  # places it declares as volumes: a container may write there, without bound


class Attachment(Protocol):
    """The standard streams of one container."""

    async def read(self) -> Chunk | None:
        """The next output; None when the container has ended.

        Raises:
            OSError: the connection broke.
        """
        ...

    async def write(self, data: bytes) -> None:
        """Give it standard input.

        Raises:
            OSError: the connection broke.
        """
        ...

    def close(self) -> None:
        """Leave; standard input, if it was attached, ends for the container. May be called twice."""
        ...


class ContainerBackend(Protocol):
    """A container engine. Names are given by the caller; every call may raise `ContainerError`."""

    @property
    def host(self) -> str:
        """The engine's address."""
        ...

    async def connect(self) -> EngineFacts:
        """Look whether the engine is there and what it can do.

        Raises:
            SandboxUnavailableError: it cannot be reached; the message says what to type.
        """
        ...

    async def find_image(self, image: str) -> ImageFacts | None:
        """The image in the engine's own store; None if it is not there."""
        ...

    async def pull(self, image: str) -> None:
        """Fetch the image from its registry."""
        ...

    async def create(self, name: str, body: Mapping[str, Any]) -> None:
        """Make a container, not started, from a request body of the Engine API."""
        ...

    async def attach(self, name: str, *, stdin: bool) -> Attachment:
        """The standard streams of a container that is made and not started."""
        ...

    async def start(self, name: str) -> None:
        """Start a container."""
        ...

    async def ending(self, name: str) -> str:
        """How a container ended, in words; empty if that is not known (any more)."""
        ...

    async def remove(self, name: str) -> Removal:
        """Kill and remove a container."""
        ...

    async def list(self, label: str) -> Sequence[ContainerRecord]:
        """All containers with the label (`key` or `key=value`), running or not."""
        ...

    async def close(self) -> None:
        """Free connections."""
        ...
