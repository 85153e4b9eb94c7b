"""`python answers_elsewhere.py <questions`: what the checker of this interpreter says, as one line of JSON."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib import metadata
from typing import Any

from answers_grading import grade

from miles_agents.answers import AnswerPolicy, answer_reward, equivalent


def judged(questions: dict[str, Any]) -> dict[str, Any]:
    """Verdicts of pairs in both directions, rewards of replies, and verdicts from every kind of thread and process."""
    found = []
    for gold, answer, options in questions["pairs"]:
        policy = AnswerPolicy(**options)
        found.append([equivalent(*each, policy=policy).correct for each in ((gold, answer), (answer, gold))])
    rewards = [asyncio.run(answer_reward(text, gold, choices=choices)) for text, gold, choices in questions["replies"]]
    return {"pairs": found, "replies": rewards, "contexts": [_everywhere(*pair) for pair in questions["everywhere"]]}


def _everywhere(gold: str, answer: str) -> dict[str, bool | None]:
    """The verdict in a thread of a pool, in one of an event loop, and in a spawned process."""
    with (
        ThreadPoolExecutor(1) as threads,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as processes,
    ):
        return {
            "thread": threads.submit(grade, gold, answer).result(60),
            "to_thread": asyncio.run(asyncio.to_thread(grade, gold, answer)),
            "spawn": processes.submit(grade, gold, answer).result(60),
        }


def installation() -> dict[str, Any]:
    """What the two installations differ in."""
    return {
        "antlr": metadata.version("antlr4-python3-runtime"),
        "hydra": importlib.util.find_spec("hydra") is not None,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(installation() | judged(json.load(sys.stdin))) + "\n")
