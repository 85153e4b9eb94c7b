"""What a session's first process is given when it shares no files with the host: the runner's source, over the wire.

The image needs nothing of this project, and the runner in it is always the host's own version.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from miles_agents.contracts import SandboxLimits

ENVIRONMENT = {  # of everything in a session
    "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 — of the session's own tree
    "TMPDIR": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the order of a printed set must not change from run to run
    "PYTHONDONTWRITEBYTECODE": "1",
    # A process with threads must not be forked, and sessions share the machine.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Each further arena takes 128 MB of address space for a moment, and a thread that starts then finds none.
    "MALLOC_ARENA_MAX": "1",
}
_PACKAGE = "miles_agents.tools.sandboxes.runner"
_NOT_IN_CONTAINERS = ("zygote", "session", "identity", "rootfs", "cgroups")  # the namespace launcher's half
# Dials out (or takes the standard streams), reads one frame with the modules, imports the runner from it, starts it.
_BOOTSTRAP = f"""
import importlib.machinery, json, os, socket, struct, sys
address = sys.argv[1]
if address == "-":
    ends = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
else:
    dialled = socket.socket(socket.AF_UNIX)
    dialled.connect(address)
    ends = (dialled.detach(),) * 2
def take(size):
    data = b""
    while len(data) < size:
        more = os.read(ends[0], size - len(data))
        if not more:
            raise SystemExit("the host hung up")
        data += more
    return data
introduction = json.loads(take(*struct.unpack(">I", take(4))))
class Loader:
    def __init__(self, source):
        self.source = source
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.__file__ = "<" + module.__name__ + ">"
        exec(compile(self.source, module.__file__, "exec"), module.__dict__)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if "{_PACKAGE}".startswith(name):
            return importlib.machinery.ModuleSpec(name, Loader(""), is_package=True)
        if name in introduction["modules"]:
            return importlib.machinery.ModuleSpec(name, Loader(introduction["modules"][name]))
finder = Finder()
sys.meta_path.insert(0, finder)
from {_PACKAGE}.standalone import main
sys.meta_path.remove(finder)
main(*ends, introduction["settings"])
"""


def bootstrap_command(python: str, address: str) -> list[str]:
    """What to run as the session's first process.

    Args:
        python: the interpreter there, 3.11 or newer.
        address: of the socket to dial, as seen there; "-" for the standard streams.
    """
    return [python, "-s", "-P", "-B", "-X", "utf8", "-c", _BOOTSTRAP, address]


def introduction(limits: SandboxLimits, preload: Sequence[str]) -> dict[str, Any]:
    """The first message to it, before it greets: the runner and the session's settings.

    Args:
        limits: of the session.
        preload: packages to import before the greeting; they must be installed there.
    """
    return {"modules": _modules(), "settings": {**asdict(limits), "preload": list(preload)}}


@functools.cache
def _modules() -> dict[str, str]:
    folder = Path(__file__).parent / "runner"
    files = (path for path in sorted(folder.glob("*.py")) if path.stem not in ("__init__", *_NOT_IN_CONTAINERS))
    return {f"{_PACKAGE}.{path.stem}": path.read_text(encoding="utf-8") for path in files}
