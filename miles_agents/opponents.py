"""Who sits opposite: the policies of seats that are not trained or evaluated (`rollout.opponents={seat: who}`).

`who` is a scripted player that the environment offers by name (`env.opponents`), or a model: a folder, a run folder, a
checkpoint. A model plays with weights that stay as they are, in an engine of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from miles_agents import assembly
from miles_agents.chat import ChatFormat
from miles_agents.configs import schema
from miles_agents.contracts import Env
from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.rollout.policy import Policy, ScriptedPolicy
from miles_agents.types import Message

Config = schema.TrainConfig | schema.EvaluateConfig


@asynccontextmanager
async def opponents(config: Config, env: Env, *, concurrency: int) -> AsyncIterator[dict[str, Policy]]:
    """The policies of `config.rollout.opponents`, by seat; engines are closed at the end.

    Args:
        config: of the run.
        env: an instance, for its seats and scripted players.
        concurrency: episodes in play at once.

    Raises:
        ConfigError: no such seat or player, or nobody is left to train.
    """
    asked = {str(seat): str(who) for seat, who in config.rollout.opponents.items()}
    for seat in asked:
        if seat not in env.seats:
            raise ConfigError(
                f"rollout.opponents: no seat {seat!r} in this environment. {did_you_mean(seat, env.seats)}"
            )
    if asked and set(asked) == set(env.seats):
        raise ConfigError(f"rollout.opponents takes all seats ({', '.join(env.seats)}); leave out the one to play")
    scripted: Mapping[str, Any] = getattr(env, "opponents", {})
    async with AsyncExitStack() as stack:
        models: dict[str, Policy] = {}  # one engine for all seats of one model
        found: dict[str, Policy] = {}
        for seat, who in asked.items():
            if who in scripted:
                found[seat] = ScriptedPolicy(_answering(scripted[who]), name=who)
                continue
            if who not in models:
                folder = _model_folder(who, scripted)
                models[who] = await stack.enter_async_context(_frozen(config, folder, who, concurrency))
            found[seat] = models[who]
        yield found


def _answering(player: Callable[..., Any]) -> Callable[[Sequence[Message], np.random.Generator], Any]:
    """A scripted player as a policy's answer: it is given the text of the last message."""
    if inspect.iscoroutinefunction(player):
        raise ConfigError("a scripted player is a plain function of (text, generator)")

    def answer(messages: Sequence[Message], rng: np.random.Generator) -> Any:
        return player(messages[-1].text if messages else "", rng)

    return answer


def _model_folder(who: str, scripted: Mapping[str, Any]) -> Path:
    if not Path(who).expanduser().exists():
        raise ConfigError(
            f"rollout.opponents: no player or model folder {who!r}. {did_you_mean(who, scripted)} "
            "A model: its folder, e.g. rollout.opponents={second: ./outputs/last}"
        )
    return assembly.resolve_model(schema.ModelConfig(name=who, source=who), on_progress=lambda _: None)


@asynccontextmanager
async def _frozen(config: Config, folder: Path, name: str, concurrency: int) -> AsyncIterator[Policy]:
    from miles_agents.models.loading import load_causal_lm

    rollout = config.rollout
    chat = ChatFormat.from_folder(folder)
    engine: Any = assembly.make_engine(
        schema.LocalEngineConfig(),
        assembly.EnginePlan(
            max_tokens=rollout.max_tokens,
            concurrency=concurrency,
            threads=assembly.engine_threads(schema.LocalEngineConfig(), config.cluster),
            dtype=config.model.dtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopt(await asyncio.to_thread(load_causal_lm, folder), version=0)
        yield assembly.make_token_policy(engine, chat, rollout, rollout, name=name, trained=False)
    finally:
        await engine.close()
