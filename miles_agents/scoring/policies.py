"""Who is evaluated: a model folder in the local engine, or a model on a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from miles_agents import assembly
from miles_agents.chat import ChatFormat
from miles_agents.chat.settings import make_chat
from miles_agents.configs import schema
from miles_agents.rollout.policy import Policy
from miles_agents.training import make_model

_DEFAULT_MODEL = "starter"  # of configs/evaluate.yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedModel:
    """The model that is asked for, found but not loaded."""

    name: str  # its folder, or its name on the server: written down
    folder: Path | None = None  # None: it is on a server
    chat: ChatFormat | None = None


async def find_model(config: schema.EvaluateConfig, console: Console) -> EvaluatedModel:
    """Find the model, or make it if it is one that is made here.

    Raises:
        UsageError: there is none, or the token limits do not fit it.
    """
    if assembly.is_chat_model(config.engine):
        return EvaluatedModel(name=_spoken_name(config))
    folder = await make_model(config.model, console)
    assembly.check_tokens(config.rollout, model_context=assembly.model_shape(folder).context)
    return EvaluatedModel(name=str(folder), folder=folder, chat=make_chat(config.model, folder))


def _spoken_name(config: schema.EvaluateConfig) -> str:
    """What the model is called: `model=`, or the class of one's own where that was left as it is."""
    own = isinstance(config.engine, schema.ChatEngineConfig) and config.model.source == _DEFAULT_MODEL
    return config.engine.name if own else config.model.source


@asynccontextmanager
async def evaluated_policy(
    config: schema.EvaluateConfig, model: EvaluatedModel, *, concurrency: int
) -> AsyncIterator[Policy]:
    """The policy, ready to play; what it needs is closed at the end.

    Raises:
        UsageError: the server cannot be reached, refuses the key or has no such model.
    """
    deadline_s = config.engine.request_deadline_s
    if model.folder is None or model.chat is None:
        chat_model = assembly.make_chat_model(config.engine, config.model.source)
        try:
            await chat_model.start()
            yield assembly.make_message_policy(chat_model, config.rollout, config, request_deadline_s=deadline_s)
        finally:
            await chat_model.close()
        return
    from miles_agents.models.loading import load_causal_lm  # loads torch

    engine: Any = assembly.make_engine(
        config.engine,
        assembly.EnginePlan(
            max_tokens=config.rollout.max_tokens,
            concurrency=concurrency,
            threads=assembly.engine_threads(config.engine, config.cluster),
            dtype=config.model.dtype,
        ),
    )
    try:
        await engine.start()
        await engine.adopt(await asyncio.to_thread(load_causal_lm, model.folder), version=0)
        yield assembly.make_token_policy(
            engine, model.chat, config.rollout, config, request_deadline_s=deadline_s, trained=False
        )
    finally:
        await engine.close()
