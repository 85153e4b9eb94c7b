"""Sandboxes in Docker containers. The libraries that talk to a daemon are loaded when a launcher starts."""

from miles_agents.tools.sandboxes.docker.backend import ContainerBackend, ContainerError
from miles_agents.tools.sandboxes.docker.fake import FakeContainerBackend
from miles_agents.tools.sandboxes.docker.sandboxes import DockerSandboxes
from miles_agents.tools.sandboxes.docker.settings import DockerSettings, Pull, Transport

__all__ = [
    "ContainerBackend",
    "ContainerError",
    "DockerSandboxes",
    "DockerSettings",
    "FakeContainerBackend",
    "Pull",
    "Transport",
]
