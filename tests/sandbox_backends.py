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


@asynccontextmanager
async def running(
    backend: str, request: pytest.FixtureRequest, *, limits: SandboxLimits | None = None, **settings: Any
) -> AsyncIterator[SandboxProvider]:
    """A started provider. Nothing is preloaded: these tests need no library.

    Args:
        backend: `root`, `user` or `docker`.
        request: of the fixture or test; Docker's daemon comes from there.
        limits: of each session.
        settings: of Docker's launcher.
    """
    limits = limits or SandboxLimits()
    if backend == "docker":
        async with _in_docker(request.getfixturevalue("docker_host"), limits, settings) as provider:
            yield provider
    elif backend == "user" and os.getuid() == 0:
        async with UserSandboxes(preload=(), limits=limits) as hosted:
            if hosted.refusal:
                pytest.skip(hosted.refusal)
            yield hosted
    elif backend == "root" and os.getuid() != 0:
        pytest.skip("this is an ordinary user: 'user' tries all of this here")
    elif not probe().works:
        pytest.skip(refusal(probe()))
    else:
        async with NamespaceSandboxes(preload=(), limits=limits) as provider:
            yield provider


def _in_docker(host: str, limits: SandboxLimits, settings: dict[str, Any]) -> SandboxProvider:
    from miles_agents.tools.sandboxes.docker import DockerSandboxes, DockerSettings

    return DockerSandboxes(settings=DockerSettings(host=host, **settings), limits=limits, preload=())
