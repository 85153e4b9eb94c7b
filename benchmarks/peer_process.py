"""A peer, as this process sees it: a subject that is measured by `benchmarks.peers` in another interpreter."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.sandbox_rounds import Plan, Round, UnavailableError

_ROOT = Path(__file__).parents[1]
_START_S, _ROUND_S, _STOP_S = 600.0, 600.0, 60.0
_SHOWN_CHARS = 600
_MAX_LINE_BYTES = 1 << 26


class PeerProcess:
    """One peer in a process of its own.

    Args:
        python: interpreter of the environment the peers are installed in.
        name: see `benchmarks.peers`.
        image: of this project's sandboxes.
        docker_host: of the daemon; empty for what the environment names.
    """

    def __init__(self, python: Path, name: str, *, image: str, docker_host: str) -> None:
        self._command = [str(python), "-m", "benchmarks.peers", name, "--image", image]
        self._environment = {**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})}
        self._process: asyncio.subprocess.Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 — closed by `stop`

    async def start(self) -> str:
        """See `Subject.start`."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=_ROOT,
                env={**self._environment, "PYTHONPATH": str(_ROOT)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._log,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            raise UnavailableError(str(error)) from error
        said = await self._answer(_START_S)
        if "unavailable" in said:
            raise UnavailableError(said["unavailable"])
        return str(said["ready"])

    async def round(self, plan: Plan) -> Round:
        """Have a round measured there.

        Raises:
            RuntimeError: it failed; the message is what the process said.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
        return Round.from_plain(await self._answer(_ROUND_S))

    async def stop(self) -> None:
        """End the process; one that does not end by itself is killed."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._log.close()

    async def _answer(self, within_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            line = await self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().decode(errors="backslashreplace").strip()
            last_line = said.rpartition("\n")[2]
            raise RuntimeError(f"the peer's process ended: {last_line[:_SHOWN_CHARS]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
