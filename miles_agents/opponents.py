"""Who sits opposite: the policies of seats that are not trained or evaluated (`rollout.opponents={seat: who}`).

`who` is a scripted player that the environment offers by name (`env.opponents`), or a model: `starter`, a folder, a run
folder, a checkpoint. A model plays with weights that stay as they are, in an engine of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from miles_agents import assembly
from miles_agents.chat.settings import make_chat
from miles_agents.configs import schema
from miles_agents.contracts import Env
from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.rollout.opposed import check_seats, scripted_player
from miles_agents.rollout.policy import Policy

Config = schema.TrainConfig | schema.EvaluateConfig


class Sampled(NamedTuple):
    """How models on seats are sampled from."""

    rollout: schema.RolloutConfig
    cluster: schema.ClusterConfig
    model: schema.ModelConfig  # its dtype and how it converses are theirs
    concurrency: int  # episodes in play at once


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
    sampled = Sampled(config.rollout, config.cluster, config.model, concurrency)
    async with seated(config.rollout.opponents, env, sampled, key="rollout.opponents") as found:
        yield found


@asynccontextmanager
async def seated(asked: Mapping[str, str], env: Env, sampled: Sampled, *, key: str) -> AsyncIterator[dict[str, Policy]]:
    """Policies by seat; engines are closed at the end.

    Args:
        asked: who plays which seat.
        env: an instance, for its seats and scripted players.
        sampled: how models are sampled from.
        key: what the operator typed them under.

    Raises:
        ConfigError: no such seat or player, or all seats are taken.
    """
    asked = {str(seat): str(who) for seat, who in asked.items()}
    check_seats(env.seats, asked, key=key)
    scripted: Mapping[str, Any] = getattr(env, "opponents", {})
    async with AsyncExitStack() as stack:
        models: dict[str, Policy] = {}  # one engine for all seats of one model
        found: dict[str, Policy] = {}
        for seat, who in asked.items():
            if who in scripted:
                found[seat] = _scripted(scripted[who], who)
                continue
            if who not in models:
                folder = _model_folder(who, scripted, key)
                models[who] = await stack.enter_async_context(_frozen(sampled, folder, who))
            found[seat] = models[who]
        yield found


def _scripted(player: Callable[..., Any], name: str) -> Policy:
    if inspect.iscoroutinefunction(player):
        raise ConfigError("a scripted player is a plain function of (text, generator)")
    return scripted_player(player, name=name)


def _model_folder(who: str, scripted: Mapping[str, Any], key: str) -> Path:
    if who != "starter" and not Path(who).expanduser().exists():
        raise ConfigError(
            f"{key}: no player or model folder {who!r}. {did_you_mean(who, [*scripted, 'starter'])} "
            f"A model: its folder, e.g. {key}={{second: ./outputs/last}}"
        )
    return assembly.resolve_model(schema.ModelConfig(name=who, source=who), on_progress=lambda _: None)


@asynccontextmanager
async def _frozen(sampled: Sampled, folder: Path, name: str) -> AsyncIterator[Policy]:
    from miles_agents.models.loading import load_causal_lm

    # A small model may have less room than the policy: then the episode ends truncated by the context.
    room = min(sampled.rollout.max_tokens, assembly.model_shape(folder).context)
    rollout = dataclasses.replace(sampled.rollout, max_tokens=room)
    chat = make_chat(sampled.model, folder)
    engine: Any = assembly.make_engine(
        schema.LocalEngineConfig(),
        assembly.EnginePlan(
            max_tokens=rollout.max_tokens,
            concurrency=sampled.concurrency,
            threads=assembly.engine_threads(schema.LocalEngineConfig(), sampled.cluster),
            dtype=sampled.model.dtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopt(await asyncio.to_thread(load_causal_lm, folder), version=0)
        yield assembly.make_token_policy(engine, chat, rollout, rollout, name=name, trained=False)
    finally:
        await engine.close()
