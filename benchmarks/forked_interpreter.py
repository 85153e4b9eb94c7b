"""A forked interpreter per call, with no isolation at all: what the sandbox's figures are compared with.

Run as a program of its own, so that the fork copies no threads and no loaded libraries:
`python -I forked_interpreter.py COUNT CODE` prints the calls per second.
"""

from __future__ import annotations

import os
import sys
import time


def run_forked(code: str) -> str:
    """What `code` prints, run in a child of this interpreter."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.close(reading)
        os.close(writing)
        exec(compile(code, "<call>", "exec"), {"__name__": "__main__"})  # noqa: S102 — the benchmark's own constant
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        printed = pipe.read()
    os.waitpid(child, 0)
    return printed


def main(count: int, code: str) -> None:
    """Print the calls per second."""
    started = time.perf_counter()
    for _ in range(count):
        if not run_forked(code):
            sys.exit("the forked interpreter printed nothing")
    sys.stdout.write(f"{count / (time.perf_counter() - started)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
