"""Playing an environment without a model: given replies, an oracle's, or those of agents that know nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from miles_agents.checks.env_arguments import draw_arguments, draw_text
from miles_agents.contracts import Env, Observation, ResetResult, StepResult
from miles_agents.types import Reply, Task, ToolCall

MAX_STEPS = 1000  # of one episode; one that goes on is not ended by its environment

JUNK = ("I do not know.", " ".join(map(str, range(21))), "}{ \\boxed{ <think> unfinished")


@runtime_checkable
class Oracle(Protocol):
    """An environment that knows how to play its own tasks perfectly."""

    def oracle(self, task: Task) -> Iterable[Reply]:
        """Replies that end the episode with the highest reward; a generator is sent each observation."""
        ...


class Played(NamedTuple):
    """One episode: what `reset` gave and what each `step` gave."""

    reset: ResetResult
    results: list[StepResult]

    @property
    def ended(self) -> bool:
        """True if the environment ended it."""
        return bool(self.results) and bool(self.results[-1].terminated or self.results[-1].truncated)

    @property
    def reward(self) -> float:
        """Of the whole episode."""
        return float(sum(result.reward for result in self.results))


async def play(env: Env, task: Task, replies: Iterable[Reply], *, seed: int) -> list[StepResult]:
    """Play one episode with given replies (an `oracle`'s, for example), to its end or theirs."""
    return (await play_episode(env, task, replies, seed=seed)).results


async def play_episode(env: Env, task: Task, replies: Iterable[Reply], *, seed: int) -> Played:
    """The same, with what `reset` gave."""
    played = Played(await env.reset(seed=seed, options={"task": task}), [])
    source = iter(replies)
    reply = next(source, None)
    while reply is not None and len(played.results) < MAX_STEPS:
        result = await env.step(reply)
        played.results.append(result)
        if result.terminated or result.truncated:
            break
        reply = following(source, result.observation)
    return played


def following(source: Iterator[Reply], observation: Observation) -> Reply | None:
    """The next reply; a generator is sent the observation. None: there is none."""
    try:
        return source.send(observation) if isinstance(source, Generator) else next(source)
    except StopIteration:
        return None


def first_difference(one: Played, other: Played) -> str:
    """Where two episodes part, in words; empty if they are the same (durations of tools aside)."""
    if one.reset.observation != other.reset.observation:
        return f"reset() gave {_shown(one.reset.observation)}, then {_shown(other.reset.observation)}"
    for number, (left, right) in enumerate(zip(one.results, other.results, strict=False), 1):
        if left.observation != right.observation:
            return f"step {number} answered {_shown(left.observation)}, then {_shown(right.observation)}"
        if left[1:4] != right[1:4]:
            return f"step {number} gave (reward, terminated, truncated) = {left[1:4]}, then {right[1:4]}"
    if len(one.results) != len(other.results):
        return f"one episode has {len(one.results)} steps, the other {len(other.results)}"
    return ""


def _shown(observation: Observation) -> str:
    text = " / ".join(message.text for message in observation)
    return repr(text if len(text) <= 120 else f"{text[:60]} … {text[-60:]}")


# --- agents that know nothing: each gives the replies of one episode --------------------------------------------------


def saying(text: str) -> Iterator[Reply]:
    """The same text, for ever."""
    while True:
        yield Reply.of(text)


def babbling(task: Task, rng: random.Random) -> Iterator[Reply]:
    """Random texts: words of the prompt and of none, in no order."""
    own = "\n".join(message.text for message in task.prompt).split()
    while True:
        yield Reply.of(draw_text(rng, own) if own and rng.random() < 0.5 else draw_text(rng))


def calling_at_random(schemas: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Reply]:
    """Well-formed calls drawn from the schemas, up to two a turn, then a random text."""
    for _ in range(rng.randint(1, 6)):
        chosen = [rng.choice(schemas) for _ in range(rng.randint(1, 2))]
        yield calling(*((each["function"]["name"], draw_arguments(each, rng)) for each in chosen))
    while True:
        yield Reply.of(draw_text(rng))


def touring(schemas: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Reply]:
    """Each tool once, in order, one a turn; then the end."""
    for schema in schemas:
        yield calling((schema["function"]["name"], draw_arguments(schema, rng)))
    yield from saying(JUNK[0])


def calling(*calls: tuple[str, Mapping[str, Any]]) -> Reply:
    """A reply of these calls: names and arguments."""
    written = [json.dumps({"name": name, "arguments": dict(arguments)}) for name, arguments in calls]
    return Reply(
        text="\n".join(f"<tool_call>\n{raw}\n</tool_call>" for raw in written),
        calls=tuple(
            ToolCall(id=f"call_{number}", name=name, arguments=arguments, raw=raw)
            for number, ((name, arguments), raw) in enumerate(zip(calls, written, strict=True))
        ),
    )
