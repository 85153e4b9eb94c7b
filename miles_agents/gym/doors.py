"""One episode through both doors: the asynchronous environment itself, and the Gymnasium one in front of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import gymnasium

from miles_agents.chat import parse_reply
from miles_agents.contracts import Env, EnvResources, Observation
from miles_agents.errors import UsageError
from miles_agents.gym.environment import TextEnv, make_env
from miles_agents.gym.loop import loop_thread
from miles_agents.gym.sandboxes import SharedSandboxes
from miles_agents.gym.texts import observation_text
from miles_agents.types import Reply, Task

Action = Reply | str
Replies = Sequence[Action] | Callable[[], Iterable[Action]]


class Shown(NamedTuple):
    """What one step (or the reset, first) showed the policy."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool


class BothDoors(NamedTuple):
    """The same episode twice. `direct == gymnasium` is what every environment owes."""

    direct: list[Shown]
    gymnasium: list[Shown]


def both_doors(
    env: str | type[Env] | Callable[[], Env],
    task: Task,
    replies: Replies,
    seed: int,
    *,
    sandbox: str | None = "auto",
) -> BothDoors:
    """Play the same replies through the asynchronous door and through Gymnasium's.

    Args:
        env: a name or class as for `TextEnv`, or a function that makes an instance. Each door has a fresh one.
        task: what is played.
        replies: `Reply` objects, or texts that are parsed as actions are; or a function that gives them anew, for
            each door once: `lambda: env.oracle(task)`. A generator is sent each observation (the messages).
        seed: of the episode, behind both doors.
        sandbox: the launcher for both.

    Returns:
        What was shown, the reset's first; both lists end with the episode, or with the replies.

    Raises:
        UsageError: `replies` is an iterator, which could be played only once.
        EpisodeError: the episode was lost.
    """
    if isinstance(replies, Iterator):
        raise UsageError("both_doors() plays the replies twice: give a list, or a function that makes the generator")
    again: Callable[[], Iterable[Action]] = replies if callable(replies) else lambda: replies
    return BothDoors(
        _direct(make_env(env, {}), task, again(), seed, sandbox),
        _through_gymnasium(env, task, again(), seed, sandbox),
    )


def _direct(env: Env, task: Task, replies: Iterable[Action], seed: int, sandbox: str | None) -> list[Shown]:
    async def played() -> list[Shown]:
        sandboxes = SharedSandboxes(sandbox) if sandbox else None
        env.bind(EnvResources(sandboxes=sandboxes))
        try:
            await env.open_shared()
            begun = await env.reset(seed=seed, options={"task": task})
            shown = [Shown(observation_text(begun.observation), 0.0, False, False)]
            actions, calls = _Actions(replies), 0
            observation: Observation | None = None
            while (action := actions.next(observation)) is not None:
                reply = parse_reply(action, first_call=calls) if isinstance(action, str) else action
                calls += len(reply.calls)
                result = await env.step(reply)
                observation = result.observation
                shown.append(Shown(observation_text(observation), float(result.reward), *_flags(*result[2:4])))
                if result.terminated or result.truncated:
                    break
            return shown
        finally:
            await env.close()
            await env.close_shared()
            if sandboxes is not None:
                await sandboxes.close()

    return loop_thread().run(played())


def _through_gymnasium(
    env: str | type[Env] | Callable[[], Env], task: Task, replies: Iterable[Action], seed: int, sandbox: str | None
) -> list[Shown]:
    door = TextEnv(env, sandbox=sandbox)
    checked = gymnasium.wrappers.PassiveEnvChecker(door)
    try:
        text, _ = checked.reset(seed=seed, options={"task": task})
        shown = [Shown(text, 0.0, False, False)]
        actions = _Actions(replies)
        observation: Observation | None = None
        while (action := actions.next(observation)) is not None:
            text, reward, terminated, truncated, info = (
                checked.step(action) if isinstance(action, str) else door.step_reply(action)
            )
            observation = info["messages"]
            shown.append(Shown(text, float(reward), *_flags(terminated, truncated)))
            if terminated or truncated:
                break
        return shown
    finally:
        door.close()


def _flags(terminated: bool, truncated: bool) -> tuple[bool, bool]:
    return bool(terminated), bool(truncated)


class _Actions:
    """Replies one by one; a generator is sent what was observed."""

    def __init__(self, replies: Iterable[Action]) -> None:
        self._source = iter(replies)

    def next(self, observation: Observation | None) -> Action | None:
        """The next one; None: there is none."""
        try:
            if observation is not None and isinstance(self._source, Generator):
                sent: Action = self._source.send(observation)
                return sent
            return next(self._source)
        except StopIteration:
            return None
