"""The worker processes' side: a warm process that forks a worker when it is asked to.

The warm process has one thread, has loaded sympy, and does nothing but wait; a new worker is there in milliseconds.
Each worker compares pairs under a memory limit of its own and can be killed at any moment. The warm process ends when
its parent closes the control socket (or dies), and its workers die with it, even in the middle of a long computation
in C.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def main() -> int:
    """Fork workers until the control socket, which is standard input, is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead workers are waited for by nobody
    control = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # what a library prints is no answer
    prover = _loaded()
    gc.freeze()  # shared with the workers, untouched by their collections
    control.sendall(b"ready\n")
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not request:
            return 0
        pid = os.fork()
        if pid == 0:
            control.close()
            _serve(socket.socket(fileno=descriptors[0]), int(request), prover)
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(b"%d\n" % pid)


def _loaded() -> Any:
    """The prover, after a first use of what sympy and the LaTeX parser load late."""
    from miles_agents.answers.compare import compare
    from miles_agents.answers.symbolic import SymbolicProver
    from miles_agents.answers.verdicts import AnswerPolicy

    prover = SymbolicProver()
    for first, second in ((r"\sin^2 x + \cos^2 x", "1"), (r"\int_0^1 x dx", "1/2"), (r"\cos(\pi/7)-1", "1/2")):
        compare(first, second, AnswerPolicy(), prover)
    return prover


def _serve(connection: socket.socket, memory_mb: int, prover: Any) -> None:
    """Answer one line of JSON by another until the connection ends."""
    warm = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != warm:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _limit_memory(memory_mb)
    with connection, connection.makefile("rb") as questions:
        for line in questions:
            connection.sendall(json.dumps(_answered(json.loads(line), prover)).encode() + b"\n")


def _limit_memory(memory_mb: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answered(question: dict[str, Any], prover: Any) -> dict[str, Any]:
    from miles_agents.answers.compare import compare
    from miles_agents.answers.verdicts import AnswerPolicy

    try:
        verdict = compare(question["gold"], question["answer"], AnswerPolicy(**question["policy"]), prover)
        return {"correct": verdict.correct, "reason": verdict.reason}
    except (MemoryError, SystemError):  # compiled code may lose the one and end in the other
        return {"correct": None, "reason": "the memory limit was met", "leave": True}
    except RecursionError:
        return {"correct": None, "reason": "nested too deep"}
    except Exception as error:  # noqa: BLE001 — seam: a fault of the checker is told, never a wrong answer
        reason = f"the checker failed: {type(error).__name__}: {str(error)[:200]}"
        return {"correct": None, "reason": reason, "leave": True}  # C code that met the limit may be left half done


if __name__ == "__main__":
    sys.exit(main())
