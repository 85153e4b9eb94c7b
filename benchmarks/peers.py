"""Other projects' ways to run Python code, measured in a virtual environment of their own.

    python -m benchmarks.peers NAME [--image IMAGE]

Says in one JSON line whether it is ready, then reads a plan a line and answers each with the round it measured. What a
library writes to standard output goes to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.sandbox_rounds import (
    Plan,
    Session,
    Subject,
    UnavailableError,
    container_bytes,
    measure_round,
    tree_bytes,
)

SUBPROCESS = "subprocess, small environment"
SWE_REX = "swe-rex"
SMOLAGENTS = "smolagents"
BUBBLEWRAP = "llm-sandbox, bubblewrap"
CONTAINER = "llm-sandbox, docker"
INTERACTIVE = "llm-sandbox, docker, interactive"
_TIMEOUT_S = 60
_PROMPT = ">>> "


class _InThisTree:
    """What peers that start no containers have in common."""

    blocking = True

    async def settle(self) -> None:
        """See `Subject.settle`."""

    async def memory(self) -> float | None:
        """See `Subject.memory`: of this process and all below it."""
        return tree_bytes(os.getpid())

    async def stop(self) -> None:
        """See `Subject.stop`."""


class Subprocess(_InThisTree):
    """`subprocess.run([python, "-c", code])`, where the environment has little but numpy and sympy."""

    async def start(self) -> str:
        """See `Subject.start`."""
        return "python -c in the peers' environment: no isolation; a fresh interpreter for each call"

    async def open(self) -> Session:
        """See `Subject.open`."""
        return _SubprocessCalls()

    async def memory(self) -> float | None:
        """See `Subject.memory`: between calls there is nothing."""
        return None


class _SubprocessCalls:
    async def call(self, code: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)  # noqa: ASYNC221, S603
        return done.stdout

    async def close(self) -> None:
        """Nothing to end."""


class SweRex(_InThisTree):
    """A Python prompt in a bash session of SWE-ReX's local runtime, as its documentation starts such programs."""

    def __init__(self) -> None:
        self._deployment: Any = None
        self._count = 0

    async def start(self) -> str:
        """See `Subject.start`."""
        from swerex.deployment.local import LocalDeployment

        self._deployment = LocalDeployment()
        await self._deployment.start()
        return f"swe-rex {_version('swe-rex')}, local: no isolation; state kept, at a Python prompt behind a terminal"

    async def open(self) -> Session:
        """See `Subject.open`."""
        from swerex.runtime.abstract import CreateBashSessionRequest

        self._count += 1
        session = _SweRexSession(self._deployment.runtime, f"session{self._count}")
        await self._deployment.runtime.create_session(
            CreateBashSessionRequest(session=session.name, startup_timeout=30)
        )
        await session.call(f"{sys.executable} -q")
        return session

    async def stop(self) -> None:
        """See `Subject.stop`."""
        if self._deployment is not None:
            await self._deployment.stop()


class _SweRexSession:
    def __init__(self, runtime: Any, name: str) -> None:
        self._runtime = runtime
        self.name = name

    async def call(self, code: str) -> str:
        from swerex.runtime.abstract import BashAction

        action = BashAction(
            session=self.name, command=code, is_interactive_command=True, expect=[_PROMPT], timeout=_TIMEOUT_S
        )
        return str((await self._runtime.run_in_session(action)).output)

    async def close(self) -> None:
        from swerex.runtime.abstract import CloseBashSessionRequest

        await self._runtime.close_session(CloseBashSessionRequest(session=self.name))


class Smolagents(_InThisTree):
    """smolagents' own interpreter of syntax trees, inside the calling process."""

    async def start(self) -> str:
        """See `Subject.start`."""
        import smolagents.local_python_executor  # noqa: F401 — so that no session's start pays for it

        return (
            f"smolagents {_version('smolagents')}, LocalPythonExecutor: no isolation, inside this process; state kept"
        )

    async def open(self) -> Session:
        """See `Subject.open`."""
        from smolagents.local_python_executor import LocalPythonExecutor

        executor = LocalPythonExecutor(["numpy", "sympy"])
        executor.send_tools({})
        return _SmolagentsSession(executor)


class _SmolagentsSession:
    def __init__(self, executor: Any) -> None:
        self._executor = executor

    async def call(self, code: str) -> str:
        return str(self._executor(code).logs)

    async def close(self) -> None:
        """Nothing to end."""


class Bubblewrap(_InThisTree):
    """llm-sandbox's sessions of bubblewrap."""

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}

    async def start(self) -> str:
        """See `Subject.start`."""
        import numpy as np
        from llm_sandbox import SandboxSession
        from llm_sandbox.exceptions import MissingDependencyError
        from llm_sandbox.local.config import DEFAULT_READ_ONLY_PATHS, LocalSandboxConfig

        packages = str(Path(np.__file__).parents[1])
        config = LocalSandboxConfig(
            read_only_paths=(*DEFAULT_READ_ONLY_PATHS, *_outside_usr(sys.base_prefix, packages)),
            python_executable=_real_python(),
            env={"PYTHONPATH": packages},
        )
        self._options = {"backend": "bubblewrap", "sandbox_config": config, "skip_environment_setup": True}
        try:
            SandboxSession(**self._options)
        except MissingDependencyError as error:
            raise UnavailableError(str(error)) from error
        return (
            f"llm-sandbox {_version('llm-sandbox')}, bubblewrap: namespaces, seccomp; a fresh interpreter for each call"
        )

    async def open(self) -> Session:
        """See `Subject.open`."""
        from llm_sandbox import SandboxSession

        session = SandboxSession(**self._options)
        session.open()
        return _LlmSandboxSession(session)


def _real_python() -> str:
    return str(Path(sys.executable).resolve())


def _outside_usr(*folders: str) -> list[str]:
    return [folder for folder in folders if not Path(folder).is_relative_to("/usr")]


class Containers:
    """llm-sandbox's sessions of Docker, in this project's image with what they look for added.

    Args:
        image: of this project.
        interactive: with the interpreter that lives on between calls.
    """

    blocking = True

    def __init__(self, image: str, *, interactive: bool) -> None:
        self._base = image
        self._interactive = interactive
        self._image = ""
        self._client: Any = None

    async def start(self) -> str:
        """See `Subject.start`."""
        import docker
        from docker.errors import DockerException

        from benchmarks.peer_image import prepare

        try:
            self._client = docker.from_env(max_pool_size=64)
            self._image = prepare(self._client, self._base)
        except (DockerException, subprocess.CalledProcessError) as error:
            raise UnavailableError(str(error)) from error
        state = "state kept" if self._interactive else "a fresh interpreter for each call"
        return f"llm-sandbox {_version('llm-sandbox')}, docker, no network; {state}"

    async def open(self) -> Session:
        """See `Subject.open`."""
        from llm_sandbox import InteractiveSandboxSession, SandboxSession

        session: Any = (InteractiveSandboxSession if self._interactive else SandboxSession)(
            lang="python",
            image=self._image,
            client=self._client,
            keep_template=True,
            skip_environment_setup=True,
            runtime_configs={"network_mode": "none", "labels": {self._label: ""}},
        )
        session.open()
        return _LlmSandboxSession(session)

    @property
    def _label(self) -> str:
        return f"miles-agents.benchmark.{os.getpid()}"

    async def settle(self) -> None:
        """See `Subject.settle`."""

    async def memory(self) -> float | None:
        """See `Subject.memory`."""
        found = self._client.containers.list(filters={"label": self._label})
        return sum(container_bytes(each.stats(stream=False, one_shot=True)) for each in found)

    async def stop(self) -> None:
        """See `Subject.stop`."""
        if self._client is not None:
            for left in self._client.containers.list(all=True, filters={"label": self._label}):
                left.remove(force=True)


class _LlmSandboxSession:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def call(self, code: str) -> str:
        return str(self._session.run(code).stdout)

    async def close(self) -> None:
        # Its own `close` would wait ten seconds for the container to end by itself.
        if hasattr(self._session.container, "kill"):
            with suppress(Exception):  # it may be dead already
                self._session.container.kill()
        self._session.close()


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def peer(name: str, image: str) -> Subject:
    """The peer of that name."""
    makers: dict[str, Callable[[], Subject]] = {
        SUBPROCESS: Subprocess,
        SWE_REX: SweRex,
        SMOLAGENTS: Smolagents,
        BUBBLEWRAP: Bubblewrap,
        CONTAINER: lambda: Containers(image, interactive=False),
        INTERACTIVE: lambda: Containers(image, interactive=True),
    }
    return makers[name]()


async def serve(subject: Subject, answer: Callable[[dict[str, Any]], None]) -> None:
    """Start, answer every plan, stop."""
    try:
        try:
            answer({"ready": await subject.start()})
        except (UnavailableError, ImportError) as error:
            answer({"unavailable": str(error)})
            return
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer((await measure_round(subject, Plan(**json.loads(line)))).plain())
    finally:
        await subject.stop()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--image", default="")
    given = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    asyncio.run(serve(peer(given.name, given.image), answer))


if __name__ == "__main__":
    main()
