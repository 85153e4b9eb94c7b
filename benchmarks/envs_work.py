"""The episode of `benchmarks.envs`: what is asked, what the server says, what must come out.

Nothing but the standard library: other projects' interpreters load this as well.
"""

from __future__ import annotations

import json
import resource
from typing import Any, NamedTuple

TURNS = 5  # calls of the model; all but the last one call the tool
DELAY_S = 0.05  # of each answer of the server
MODEL = "m"
TEXT_MODEL = "text"  # the server then writes the call into the text, for libraries whose actions are text
MAX_TOKENS = 256
PLACES = ("hall", "attic", "cellar", "garden")
SEEN = "There is nothing here."
ANSWER = "I have looked everywhere: there is no key."
SYSTEM = "You look for things in a house. Call the tool once for each place, then say what you found."
QUESTION = "Where is the key? Look into the hall, the attic, the cellar and the garden."
TOOL_NAME = "look"
TOOL_DESCRIPTION = "Look into a place."
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": TOOL_DESCRIPTION,
        "parameters": {
            "properties": {"place": {"type": "string", "description": "name of the place"}},
            "required": ["place"],
            "additionalProperties": False,
            "type": "object",
        },
    },
}


class Outcome(NamedTuple):
    """What one episode came to."""

    calls: int  # of the tool that were answered
    final: str  # the last reply


EXPECTED = Outcome(calls=TURNS - 1, final=ANSWER)


def prompt() -> list[dict[str, Any]]:
    """The first messages of an episode."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]


def look(place: str) -> str:
    """The tool: does nothing."""
    return SEEN if place else ""


def written_call(place: str) -> str:
    """A call as text."""
    call = json.dumps({"name": TOOL_NAME, "arguments": {"place": place}})
    return f"<tool_call>{call}</tool_call>"


def response(turn: int, *, as_text: bool) -> bytes:
    """The server's JSON answer to the request of this turn (0, 1, …)."""
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if turn < TURNS - 1:
        place = PLACES[turn]
        message["content"] = f"I look into the {place}."
        function = {"name": TOOL_NAME, "arguments": json.dumps({"place": place})}
        if as_text:
            message["content"] += "\n" + written_call(place)
        else:
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    calls = "tool_calls" in message
    answer = {
        "id": f"chatcmpl-{turn:08d}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": TEXT_MODEL if as_text else MODEL,
        "choices": [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
        ],
        "usage": {"prompt_tokens": 100 + 30 * turn, "completion_tokens": 20, "total_tokens": 120 + 30 * turn},
    }
    return json.dumps(answer).encode()


def allow_many_files() -> None:
    """As many connections as episodes: a process may open 1,024 files on many machines, unless it asks for more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
