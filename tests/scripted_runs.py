"""A small scripted world for rollout tests: an adding environment, a chat format, engines that answer from a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from chat_models import family

import miles_agents as ma
from miles_agents.chat import ChatFormat
from miles_agents.contracts import EnvResources
from miles_agents.engines.scripted import ScriptedEngine, ScriptedReply
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.ledger import FailureLedger
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.token_policy import Sampling, TokenPolicy
from miles_agents.rollout.workers import GroupWorkers
from miles_agents.types import GenerateRequest, StopReason

Script = Callable[[GenerateRequest], ScriptedReply | str]


class Adding(ma.ToolEnv):
    """Adds two numbers with a tool; the reward is 1 for the right sum."""

    max_turns = 4
    calls: list[tuple[int, int]] = []  # noqa: RUF012 — shared on purpose: tests count executions

    @ma.tool
    async def add(self, a: int, b: int) -> str:
        """The sum."""
        type(self).calls.append((a, b))
        return str(a + b)

    def tasks(self, split: str) -> list[ma.Task]:
        """Ten sums."""
        return [
            ma.Task(id=f"{split}{n}", prompt=(ma.Message.user(f"{n}+1"),), answer=str(n + 1), split=split)
            for n in range(10)
        ]

    async def reward(self, episode: ma.Episode) -> dict[str, float]:
        """Exact text."""
        return {"answer": float(episode.final.content == episode.task.answer)}


def call_text(name: str = "add", **arguments: Any) -> str:
    """A well-formed call."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Scripted:
    """An engine, a chat format and a player around a script. `script` gets the request and its 0-based turn."""

    def __init__(
        self, script: Script | Iterable[str], *, max_tokens: int = 400, max_new: int = 60, deadline_s: float = 5.0
    ) -> None:
        self.chat: ChatFormat = family("starter")
        chat = self.chat

        class Encoder:
            def encode(self, text: str) -> list[int]:
                return chat.encode_reply(text, ended=False).tolist()

        self.engine = ScriptedEngine(script, tokenizer=Encoder(), context_length=max_tokens)
        self.player = EpisodePlayer(
            policy=TokenPolicy(
                engine=self.engine,
                chat=self.chat,
                sampling=Sampling(max_new_tokens=max_new, max_tokens=max_tokens),
                request_deadline_s=deadline_s,
            ),
            deadline_s=deadline_s,
        )

    def workers(
        self,
        pool: EnvironmentPool,
        *,
        group_size: int = 4,
        retries: int = 0,
        max_failure_rate: float = 1.0,
        concurrency: int = 64,
        seed: int = 7,
    ) -> GroupWorkers:
        """Workers that play with this player; `ledger` is kept for inspection."""
        self.ledger = FailureLedger(max_failure_rate=max_failure_rate)
        return GroupWorkers(
            player=self.player,
            environments=pool,
            ledger=self.ledger,
            group_size=group_size,
            concurrency=concurrency,
            retries=retries,
            seed=seed,
        )


def pool_of(make: Callable[[], ma.Env]) -> EnvironmentPool:
    """A pool without sandboxes."""
    return EnvironmentPool(make, EnvResources())


def turn_of(request: GenerateRequest) -> int:
    """Which turn of its episode a request is."""
    return int(request.request_id.rsplit("/", 1)[1])


__all__ = ["Adding", "Scripted", "ScriptedReply", "StopReason", "call_text", "pool_of", "turn_of"]
