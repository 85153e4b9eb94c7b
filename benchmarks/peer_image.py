"""An image that llm-sandbox can use without a network: this project's, and what llm-sandbox looks for in it."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

_REPOSITORY, _TAG = "miles-agents/bench-peers", "1"
_LABEL = "miles-agents.made-from"
_VENV = "sandbox/.sandbox-venv"  # where its interactive sessions expect pip
_PIP = f"#!/{_VENV}/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"


def prepare(client: Any, base: str) -> str:
    """The image's name; made if it is missing or older than `base`.

    Args:
        client: of docker-py.
        base: the sandbox image.
    """
    from docker.errors import ImageNotFound

    made_from, name = client.images.get(base).id, f"{_REPOSITORY}:{_TAG}"
    try:
        if client.images.get(name).labels.get(_LABEL) == made_from:
            return name
    except ImageNotFound:
        pass
    container = client.containers.create(base, ["bash"], network_mode="none")
    try:
        with tempfile.TemporaryDirectory() as folder:
            _fill(Path(folder))
            container.put_archive("/", _archive(Path(folder)))
        container.commit(repository=_REPOSITORY, tag=_TAG, changes=f"LABEL {_LABEL}={made_from}")
    finally:
        container.remove(force=True)
    return name


def _fill(root: Path) -> None:
    """`python` on the path, IPython, and a virtual environment with pip in which IPython is installed already."""
    packages = root / "usr/local/lib/python3.11/dist-packages"  # of the image's interpreter
    options = ["--quiet", "--disable-pip-version-check", "--python-version", "3.11", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(packages), "pip", "ipython"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    programs = root / _VENV / "bin"
    programs.mkdir(parents=True)
    (programs.parent / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    (programs / "python").symlink_to("/usr/bin/python3")
    (programs / "pip").write_text(_PIP)
    (programs / "pip").chmod(0o755)
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")


def _archive(root: Path) -> bytes:
    """A tar file of a folder, everything owned by root."""

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(root, arcname=".", filter=owned_by_root)
    return packed.getvalue()
