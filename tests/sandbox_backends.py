"""The launchers that suites of tests run over: namespaces as root, namespaces as an ordinary user, Docker.

As root every one of them runs: `root` in this process, `user` in a child that gives root up. As an ordinary user `user`
runs in this process, and `root` is skipped.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sandbox_as_user import UserSandboxes

from miles_agents.contracts import SandboxLimits, SandboxProvider
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal

NAMESPACES = (pytest.param("root", marks=pytest.mark.sandbox), pytest.param("user", marks=pytest.mark.sandbox))
BACKENDS = (*NAMESPACES, pytest.param("docker", marks=pytest.mark.docker))


def provider_for(
    backend: str, *, limits: SandboxLimits | None = None, docker_host: str = "", **settings: Any
) -> SandboxProvider:
    """A provider that is not started yet. Nothing is preloaded: these tests need no library.

    Args:
        backend: `root`, `user` or `docker`.
        limits: of each session.
        docker_host: the address of the daemon.
        settings: of Docker's launcher.
    """
    limits = limits or SandboxLimits()
    if backend == "docker":
        from miles_agents.tools.sandboxes.docker import DockerSandboxes, DockerSettings

        return DockerSandboxes(settings=DockerSettings(host=docker_host, **settings), limits=limits, preload=())
    if backend == "user" and os.getuid() == 0:
        return UserSandboxes(preload=(), limits=limits)
    return NamespaceSandboxes(preload=(), limits=limits)


@asynccontextmanager
async def running(backend: str, request: pytest.FixtureRequest, **settings: Any) -> AsyncIterator[SandboxProvider]:
    """A started provider; where this machine cannot give it, the test is skipped.

    Args:
        backend: `root`, `user` or `docker`.
        request: of the fixture or test; Docker's daemon comes from there.
        settings: see `provider_for`.
    """
    if backend == "root" and os.getuid() != 0:
        pytest.skip("this is an ordinary user: 'user' tries all of this here")
    if backend != "docker" and not probe().works:
        pytest.skip(refusal(probe()))
    docker_host = request.getfixturevalue("docker_host") if backend == "docker" else ""
    async with provider_for(backend, docker_host=docker_host, **settings) as provider:
        if getattr(provider, "refusal", ""):
            pytest.skip(provider.refusal)
        yield provider


def host_of(provider: SandboxProvider) -> int:
    """The process that hosts a provider: this one, unless an ordinary user does."""
    return getattr(provider, "host_id", os.getpid())
