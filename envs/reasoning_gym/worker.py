"""A worker process: makes puzzles and scores answers with the package, so that it can be killed at any moment.

Speaks lines of JSON: `{"ready": true}`, then one answer per question: to one with an `answer` `{"score": x}`, or
`{"unreadable": why}` where the scorer raised; to one without `{"question": …, "own_answer": …}`, `{"end": true}` behind
the last puzzle of a family, or `{"failed": why}`. It ends when its input does, and by SIGALRM when a question takes too
long and nobody killed it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from miles_agents.envs.reasoning_gym.puzzles import PuzzleSource

_GRACE_S = 2.0  # between the limit of the parent, who kills, and the alarm


def main() -> int:
    """Answer until the input ends. Argument: the memory limit in MiB."""
    memory_mb = int(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # what a library prints is no answer
    from miles_agents.envs.reasoning_gym.puzzles import family_names

    family_names()  # imports the package
    _limit(memory_mb)
    _write(answers, {"ready": True})
    for line in questions:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, question["time_s"] + _GRACE_S)
        _write(answers, _answered(question))
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _write(answers: TextIO, answer: dict[str, object]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _answered(question: dict[str, Any]) -> dict[str, object]:
    from miles_agents.envs.reasoning_gym.puzzles import PuzzleSource

    source, index = PuzzleSource(*question["source"]), question["index"]
    return _scored(source, index, question["answer"]) if "answer" in question else _made(source, index)


def _scored(source: PuzzleSource, index: int, answer: str) -> dict[str, object]:
    source.puzzle(index)  # what fails here is no fault of the answer
    try:
        return {"score": source.score(index, answer)}
    except Exception as error:  # noqa: BLE001 — seam: scorers raise anything at an answer they cannot read
        return {"unreadable": f"{type(error).__name__}: {str(error)[:200]}"}


def _made(source: PuzzleSource, index: int) -> dict[str, object]:
    from miles_agents.envs.reasoning_gym.puzzles import own_answer

    try:
        puzzle = source.puzzle(index)
        return {"question": puzzle["question"], "own_answer": own_answer(source.family, puzzle)}
    except IndexError:  # a family with a list of puzzles, at its end
        return {"end": True}
    except Exception as error:  # noqa: BLE001 — seam: generators raise anything at settings that do not go together
        return {"failed": f"{type(error).__name__}: {str(error)[:200]}"}


def _limit(memory_mb: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has nothing to write
