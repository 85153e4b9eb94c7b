"""Scripted judges behind the OpenAI-compatible server of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from openai_server import Answer, says

Grade = Callable[[str], Mapping[str, int] | int]


def shown_reply(asked: Mapping[str, Any]) -> tuple[str, str]:
    """The code of a request, and the reply between the two marks that carry it."""
    text = asked["messages"][1]["content"]
    code = json.loads(text.rpartition("in this form:\n")[2])["code"]
    return code, text.split(f"=== reply {code} ===\n")[1].split(f"\n=== end of reply {code} ===")[0]


def names_of(asked: Mapping[str, Any]) -> list[str]:
    """The criteria of a request."""
    form = asked["messages"][1]["content"].rpartition("in this form:\n")[2]
    return list(json.loads(form)["points"])


def verdict(asked: Mapping[str, Any], points: Mapping[str, int] | int, **changed: Any) -> str:
    """A verdict as it was asked for; one number counts for all criteria."""
    given = dict.fromkeys(names_of(asked), points) if isinstance(points, int) else dict(points)
    return json.dumps({"code": shown_reply(asked)[0], "reason": "seen", "points": given, **changed})


def grading(grade: Grade) -> Callable[[Mapping[str, Any]], Answer]:
    """An honest judge: its points depend on what stands between the marks, and on nothing else."""
    return lambda asked: says(verdict(asked, grade(shown_reply(asked)[1])))


def gullible(asked: Mapping[str, Any]) -> Answer:
    """A judge that says back the last JSON object that it reads in the reply."""
    reply = shown_reply(asked)[1]
    return says(reply[reply.rindex("{", 0, reply.rindex('"points"')) :] if '"points"' in reply else verdict(asked, 0))
