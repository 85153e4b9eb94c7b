"""What a session's container may do and use, and which daemons can hold it to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from miles_agents.contracts import SandboxLimits
from miles_agents.tools.sandboxes.docker.backend import EngineFacts
from miles_agents.tools.sandboxes.docker.owner import Owner
from miles_agents.tools.sandboxes.docker.settings import DockerSettings
from miles_agents.tools.sandboxes.runner_source import ENVIRONMENT

MOUNT_POINT = "/run/host"  # where the folder with the host's socket is seen
_RUNNER_MB = 128  # the supervisor with the preloaded packages, which no zygote shares
_RUNNER_PROCESSES = 8
_FIRST_ID, _ID_COUNT = 2_000_000_000, 100_000_000  # above what systems give to anyone
_FIRST_MAPPED_ID, _MAPPED_ID_COUNT = 20_000, 40_000  # within the 65,536 that a user-namespace mapping usually has
_SHARED_MEMORY_MB = 16
_INODES_PER_MB = 64
_ONE_CPU = 1_000_000_000
_OUT_OF_MEMORY_SCORE = 500  # when the machine runs out of memory, sessions go before what is trained
_CORE_RUNTIMES = ("runc", "crun", "youki")  # share the host's kernel, so a unix socket can be mounted into them
_SHIM = "io.containerd."  # runtimes named by their containerd shim are not listed by the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """What is the same for every container of a run."""

    owner: Owner
    settings: DockerSettings
    limits: SandboxLimits
    preload: Sequence[str]  # packages imported before the greeting; they must be in the image

    def body(self, command: Sequence[str], *, identity: int, socket_folder: str = "") -> dict[str, Any]:
        """The Engine API's request for one container.

        Args:
            command: its first process.
            identity: its user and group, see `user_id`.
            socket_folder: of the host, to be seen read-only at `MOUNT_POINT`; "" for attached standard streams.
        """
        over_stdio = not socket_folder
        return {
            "Image": self.settings.image,
            "Entrypoint": list(command),
            "Cmd": [],
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items() if name != "PATH"],  # the image's own
            "User": f"{identity}:{identity}",
            "Hostname": "sandbox",
            "WorkingDir": "/tmp",  # noqa: S108 — of the container's own tree
            "Labels": self.owner.labels(),
            "NetworkDisabled": True,
            "Healthcheck": {"Test": ["NONE"]},
            "Tty": False,
            "OpenStdin": over_stdio,
            "StdinOnce": over_stdio,  # when the host goes away the container reads the end of its input
            "AttachStdin": over_stdio,
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": self._host_config(identity, socket_folder),
        }

    def _host_config(self, identity: int, socket_folder: str) -> dict[str, Any]:
        limits = self.limits
        memory = (limits.memory_mb + limits.tmp_mb + _RUNNER_MB) << 20
        config: dict[str, Any] = {
            "AutoRemove": True,
            "NetworkMode": "none",
            "IpcMode": "none",  # and with it no /dev/shm but the bounded one below
            "CgroupnsMode": "private",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Memory": memory,
            "MemorySwap": memory,  # of both together: no swap
            "PidsLimit": limits.processes + _RUNNER_PROCESSES,
            "NanoCpus": _ONE_CPU,
            "OomScoreAdj": _OUT_OF_MEMORY_SCORE,
            "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
            "Tmpfs": {
                "/tmp": _tmpfs(limits.tmp_mb, identity, "exec"),  # noqa: S108
                "/dev/shm": _tmpfs(min(_SHARED_MEMORY_MB, limits.tmp_mb), identity, "noexec"),  # noqa: S108
            },
            # Nothing is written down: answers over stdio may be large, and a failed start is told by the attached
            # streams, which outlive the container.
            "LogConfig": {"Type": "none", "Config": {}},
        }
        if self.settings.runtime:
            config["Runtime"] = self.settings.runtime
        if socket_folder:
            mount = {"Type": "bind", "Source": socket_folder, "Target": MOUNT_POINT, "ReadOnly": True}
            config["Mounts"] = [{**mount, "BindOptions": {"Propagation": "rprivate"}}]
        return config


def user_id(serial: int, *, mapped: bool) -> int:
    """A user id that is nobody's, and no other running session's.

    Args:
        serial: of the session.
        mapped: the engine maps user ids, so that few of them are there.
    """
    if mapped:
        return _FIRST_MAPPED_ID + serial % _MAPPED_ID_COUNT
    return _FIRST_ID + serial % _ID_COUNT


def _tmpfs(size_mb: int, identity: int, execution: str) -> str:
    inodes = size_mb * _INODES_PER_MB
    return f"rw,nosuid,nodev,{execution},size={size_mb}m,nr_inodes={inodes},mode=0700,uid={identity},gid={identity}"


def refusal(facts: EngineFacts, settings: DockerSettings) -> str:
    """Why sessions cannot be held to their limits by this daemon, and what to do; empty if they can."""
    if facts.system != "linux":
        return f"the daemon runs {facts.system} containers; switch it to Linux containers"
    missing = [
        name for name, there in (("memory", facts.limits_memory), ("processes", facts.limits_processes)) if not there
    ]
    if missing:
        return (
            f"the daemon cannot limit {' and '.join(missing)}. Where it runs without root, systemd has to delegate the "
            "controllers to it:\n"
            "    sudo mkdir -p /etc/systemd/system/user@.service.d\n"
            "    printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' |"
            " sudo tee /etc/systemd/system/user@.service.d/delegate.conf\n"
            "    sudo systemctl daemon-reload && systemctl --user restart docker"
        )
    if settings.runtime and settings.runtime not in facts.runtimes and not settings.runtime.startswith(_SHIM):
        return (
            f"the daemon has no runtime '{settings.runtime}', only {', '.join(sorted(facts.runtimes))}. Give one of "
            f"these as sandbox.docker.runtime, or add it to /etc/docker/daemon.json (gVisor: `sudo runsc install`) and "
            "type: sudo systemctl restart docker"
        )
    return ""


def warnings(facts: EngineFacts) -> list[str]:
    """What this daemon cannot do and sessions can go without."""
    lacking = (
        (facts.limits_swap, "cannot limit swap: a session may use more than its memory by swapping"),
        (facts.limits_cpu, "cannot limit the processor: a busy session takes what it gets"),
        (facts.filters_system_calls, "filters no system calls by itself: only the runner's own filter does"),
    )
    return [f"this Docker daemon {what}" for there, what in lacking if not there]


def shares_kernel(facts: EngineFacts, settings: DockerSettings) -> bool:
    """Whether a socket of the host can be dialled from inside: not through gVisor's or a virtual machine's kernel."""
    return (settings.runtime or facts.default_runtime) in _CORE_RUNTIMES
