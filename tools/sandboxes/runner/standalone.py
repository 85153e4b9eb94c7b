"""The runner as the first process of a container: the container is the session, and its limits are the container's."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any, NoReturn

from miles_agents.tools.sandboxes.runner import linux
from miles_agents.tools.sandboxes.runner.frames import encode, write_all
from miles_agents.tools.sandboxes.runner.seccomp import build_filter
from miles_agents.tools.sandboxes.runner.supervisor import Supervisor
from miles_agents.tools.sandboxes.runner.warming import warm_up


def main(read_fd: int, write_fd: int, settings: dict[str, Any]) -> NoReturn:
    """Warm up, give up what is left of rights, serve until the host hangs up.

    Args:
        read_fd: requests come from here.
        write_fd: answers go here.
        settings: the session's limits, and `preload`.
    """
    try:
        warm_up(settings["preload"], forked_often=False)
        _harden()
    except Exception as error:  # noqa: BLE001 — the seam to the host, which shows it to the operator
        write_all(write_fd, encode({"failed": f"{type(error).__name__}: {error}"}))
        os._exit(1)
    Supervisor((read_fd, write_fd), settings, guard_memory=False).serve()


def _harden() -> None:
    if os.getpid() != 1 or os.getuid() == 0:
        raise PermissionError(f"process {os.getpid()} of user {os.getuid()}; must be process 1 of an ordinary user")
    # The kernel keeps signals from PID 1 only while it has no handler of its own for them.
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    linux.drop_capabilities()
    linux.set_dumpable(False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    linux.SeccompFilter(build_filter()).install()
