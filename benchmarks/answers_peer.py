"""`PYTHON answers_peer.py NAME`: another project's answer checker, one pair a line; needs no package of this project.

Reads `["gold", "answer"]` and writes `[verdict, seconds]`, the verdict being true, false, or the name of an exception.
Runs in the interpreter of `benchmarks/answers_peers.txt`.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

Checker = Callable[[str, str], bool]
_MEMORY_BYTES = 4 << 30


def math_verify_bare() -> Checker:
    """math-verify on the texts as they are."""
    from math_verify import parse, verify

    return lambda gold, answer: bool(verify(parse(gold), parse(answer)))


def math_verify_in_dollars() -> Checker:
    """math-verify on `$…$`, as its documentation shows it; what is wrapped already stays as it is."""
    from math_verify import parse, verify

    def wrapped(text: str) -> str:
        return text if "$" in text or "\\boxed" in text else f"${text}$"

    return lambda gold, answer: bool(verify(parse(wrapped(gold)), parse(wrapped(answer))))


def gem() -> Checker:
    """The math grader of gem-llm with all its stages; loaded alone, since the package asks for much more."""
    package = importlib.util.find_spec("gem")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("gem")
    spec = importlib.util.spec_from_file_location("math_grader", Path(package.origin).parent / "utils/math_grader.py")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("gem.utils.math_grader")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda gold, answer: bool(module.grade(answer, gold, fast=False))


CHECKERS: dict[str, Callable[[], Checker]] = {
    "math-verify": math_verify_bare,
    "math-verify in $…$": math_verify_in_dollars,
    "gem-llm": gem,
}


def main(name: str) -> int:
    """Judge pairs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no verdict
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    check = CHECKERS[name]()
    check(r"\frac{1}{2}", "0.5")  # loads what is loaded late
    answers.write("ready\n")
    for line in sys.stdin:
        gold, answer = json.loads(line)
        started = time.perf_counter()
        try:
            verdict: bool | str = check(gold, answer)
        except Exception as error:  # noqa: BLE001 — seam: whatever the checker raises is its result
            verdict = type(error).__name__
        answers.write(json.dumps([verdict, time.perf_counter() - started]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
