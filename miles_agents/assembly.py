"""The composition root: configuration → objects. The only module that names concrete classes together.

Classes are found through the registry, so that adding one means registering it and a YAML file, nothing here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from miles_agents import registry
from miles_agents.chat import ChatFormat
from miles_agents.chat.settings import check_chat
from miles_agents.cluster import LocalCluster
from miles_agents.configs import schema
from miles_agents.configs.ranges import check_ranges
from miles_agents.contracts import (
    Algorithm,
    Env,
    EnvResources,
    RolloutEngine,
    SandboxLimits,
    SandboxProvider,
    Trainer,
    WeightSync,
)
from miles_agents.contracts.chat_model import ChatModel
from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.evaluation.shards import Shard
from miles_agents.planning import BatchPlan, ModelShape
from miles_agents.rollout.environments import EnvironmentPool
from miles_agents.rollout.message_policy import ChatLimits, MessagePolicy
from miles_agents.rollout.player import EpisodePlayer
from miles_agents.rollout.policy import Policy
from miles_agents.rollout.token_policy import Sampling, TokenPolicy
from miles_agents.tools.sandboxes.first_that_starts import AUTO_ORDER, first_that_starts

_MAX_SLOTS = 128


def make_env_factory(config: schema.EnvConfig, env_class: type[Env]) -> Callable[[], Env]:
    """A function that makes environments from their configuration.

    Keys that are no arguments of `__init__` (the class's `configurable` attributes) are set afterwards.
    """
    values = {each.name: getattr(config, each.name) for each in fields(config) if each.name != "id"}
    taken = registry.init_arguments(env_class)
    arguments = {name: value for name, value in values.items() if name in taken}
    attributes = {name: value for name, value in values.items() if name not in taken}

    def make() -> Env:
        env = env_class(**arguments)
        for name, value in attributes.items():
            if value == getattr(env_class, name, None):
                continue  # not given: what `__init__` made of it stays
            before = getattr(env, name, None)
            setattr(env, name, {**before, **value} if isinstance(before, dict) else value)
        return env

    return make


async def open_sandboxes(config: schema.SandboxConfig) -> SandboxProvider:
    """Start the sandbox launcher that the configuration names, or the first that works for `auto`.

    Raises:
        SandboxUnavailableError: this machine cannot give the isolation; never a quiet fallback.
    """
    limits = SandboxLimits(
        **{each.name: getattr(config, each.name) for each in fields(SandboxLimits) if hasattr(config, each.name)}
    )
    names = AUTO_ORDER if config.name == "auto" else (config.name,)

    def launcher(name: str) -> SandboxProvider:
        provider: SandboxProvider = registry.sandboxes.get(name)(
            limits=limits, preload=tuple(config.preload), **_launcher_settings(config, name)
        )
        return provider

    return await first_that_starts({name: partial(launcher, name) for name in names})


def _launcher_settings(config: schema.SandboxConfig, name: str) -> dict[str, Any]:
    if name != "docker":
        return {}
    from miles_agents.tools.sandboxes.docker import DockerSettings

    return {"settings": DockerSettings(**_arguments(config.docker, drop=()))}


def needs_sandbox(environments: EnvironmentPool) -> bool:
    """True if a tool of the environment runs in a sandbox."""
    return any(tool.needs_sandbox for tool in environments.tools())


def make_environments(
    config: schema.EnvConfig, env_class: type[Env], sandboxes: SandboxProvider | None
) -> EnvironmentPool:
    """The pool that lends environments to episodes."""
    return EnvironmentPool(make_env_factory(config, env_class), EnvResources(sandboxes=sandboxes))


def resolve_model(config: schema.ModelConfig, *, on_progress: Callable[[str], None]) -> Path:
    """The local Hugging Face folder of the model: made, converted or fetched if need be.

    Args:
        config: `source` is "starter", "smollm2", a folder, a run folder, a checkpoint, or a hub id.
        on_progress: is told what is going on when it takes long.

    Raises:
        UsageError: no such model.
    """
    if config.source == "starter":
        from miles_agents.starter.build import ensure_starter

        return ensure_starter(on_progress=on_progress)
    if config.source == "smollm2":
        from miles_agents.models.smollm2 import smollm2_folder

        return smollm2_folder()
    path = Path(config.source).expanduser()
    if path.exists():
        from miles_agents.runs.checkpoints import resolve_model_folder

        return resolve_model_folder(path.resolve())  # a run that begins now makes `outputs/last` a link to itself
    from miles_agents.models.hub import fetch_model

    return fetch_model(config.source)


def plan_batch(config: schema.TrainConfig) -> BatchPlan:
    """The arithmetic of one training step."""
    trainer = config.trainer
    return BatchPlan(
        groups_per_step=config.rollout.groups_per_step,
        group_size=config.rollout.group_size,
        minibatches=trainer.minibatches,
        epochs=trainer.epochs,
        max_new_tokens=config.rollout.max_new_tokens,
        max_tokens=config.rollout.max_tokens,
        token_budget=getattr(trainer, "token_budget", config.rollout.max_tokens),
        max_staleness=config.rollout.max_staleness,
    )


def concurrency_of(config: schema.TrainConfig) -> int:
    """Episodes in play at once."""
    return config.rollout.concurrency or config.rollout.groups_per_step * config.rollout.group_size


def evaluation_concurrency_of(config: schema.EvaluateConfig, tasks: int) -> int:
    """Episodes in play at once: no more than the engine can decode together, each may hold a sandbox."""
    return config.rollout.concurrency or min(_MAX_SLOTS, tasks * config.samples)


def slots_of(config: schema.EngineConfig, concurrency: int) -> int:
    """Sequences the local engine decodes together."""
    return getattr(config, "slots", None) or min(_MAX_SLOTS, concurrency)


def trainer_threads(config: schema.TrainerConfig, cluster: schema.ClusterConfig) -> int:
    """PyTorch threads of the trainer."""
    return LocalCluster(threads=cluster.threads).threads_of(getattr(config, "threads", None))


def engine_threads(config: schema.EngineConfig, cluster: schema.ClusterConfig) -> int:
    """PyTorch threads of the engine."""
    return LocalCluster(threads=cluster.threads).engine_threads(getattr(config, "threads", None))


def make_algorithm(config: schema.AlgorithmConfig) -> Algorithm:
    """The algorithm, from its own keys."""
    algorithm: Algorithm = registry.algorithms.get(config.name)(**_arguments(config, drop=("name",)))
    return algorithm


def make_trainer(config: schema.TrainConfig, model: Path, algorithm: Algorithm) -> Trainer:
    """The trainer of `config.trainer`."""
    settings = config.trainer
    if not isinstance(settings, schema.LocalTrainerConfig):
        raise ConfigError(f"no trainer can be built from {type(settings).__name__}")
    from miles_agents.trainers.local.settings import OptimizerSettings  # loads torch

    betas = settings.betas
    if len(betas) != 2:
        raise ConfigError(f"trainer.betas={betas}: give two numbers, trainer.betas=[0.9,0.95]")
    trainer: Trainer = registry.trainers.get(settings.name)(
        model=model,
        algorithm=algorithm,
        optimizer=OptimizerSettings(
            name=settings.optimizer,
            lr=config.model.lr if settings.lr is None else settings.lr,
            betas=(betas[0], betas[1]),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            warmup_steps=settings.warmup_steps,
            schedule=settings.schedule,
            total_steps=config.steps * settings.minibatches * settings.epochs,
        ),
        max_grad_norm=settings.max_grad_norm,
        dtype=settings.dtype,
        token_budget=settings.token_budget,
        temperature=config.rollout.temperature,
        packing=settings.packing,
        threads=trainer_threads(settings, config.cluster),
    )
    return trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """What an engine is sized for."""

    max_tokens: int  # per sequence
    concurrency: int
    threads: int
    dtype: str


def make_engine(config: schema.EngineConfig, plan: EnginePlan) -> RolloutEngine:
    """The engine of `config`; it has no weights before the first push."""
    refuse_chat_model(config)
    if not isinstance(config, schema.LocalEngineConfig):
        raise ConfigError(f"no engine can be built from {type(config).__name__}")
    engine: RolloutEngine = registry.engines.get(config.name)(
        context_length=plan.max_tokens,
        slots=slots_of(config, plan.concurrency),
        deterministic=config.deterministic,
        prefill_rows=config.prefill_rows,
        prefill_chunk=config.prefill_chunk,
        dtype=plan.dtype,
        threads=plan.threads,
    )
    return engine


def is_chat_model(config: schema.EngineConfig) -> bool:
    """True if the engine is spoken to in messages (`make_chat_model`)."""
    return isinstance(config, (schema.OpenAIEngineConfig, schema.ChatEngineConfig))


def refuse_chat_model(config: schema.EngineConfig) -> None:
    """Refuse a server where token ids are needed.

    Raises:
        ConfigError: it is one; only an evaluation can use it.
    """
    if is_chat_model(config):
        raise ConfigError(
            f"engine={config.name}: it gives no token ids, so nothing can be trained on what it says; "
            "it can be evaluated: python -m miles_agents.evaluate. Here write engine=local"
        )


def make_chat_model(config: schema.EngineConfig, model: str) -> ChatModel:
    """The model of that name on the server of `config`; its key is read from the environment, and nowhere written.

    Raises:
        ConfigError: an address that is none, or no key where one was named. The message does not repeat the value: it
            may be a key. Of a class of one's own: it is no chat model, or has no such argument.
    """
    if isinstance(config, schema.ChatEngineConfig):
        return _own_chat_model(config, model)
    if not isinstance(config, schema.OpenAIEngineConfig):
        raise ConfigError(f"no chat model can be built from {type(config).__name__}")
    from miles_agents.engines.openai.client import Server  # needs aiohttp

    made: ChatModel = registry.engines.get(config.name)(
        model=model,
        server=Server(
            base_url=config.base_url.rstrip("/"),
            key=_key_of(config.api_key_env),
            connections=config.connections,
            retries=config.retries,
        ),
        max_tokens_key=config.max_tokens_key,
        sends_seed=config.sends_seed,
        extra_body=config.extra_body,
    )
    return made


def _own_chat_model(config: schema.ChatEngineConfig, model: str) -> ChatModel:
    if config.name == schema.ChatEngineConfig.name:
        raise ConfigError(
            "engine=chat needs the class of the model: engine.name=./my_engine.py:MyModel (docs/engines.md)"
        )
    own = registry.is_object_spec(config.name)
    made: Any = registry.load_object(config.name) if own else registry.engines.get(config.name)
    if not (isinstance(made, type) and issubclass(made, ChatModel)):
        raise ConfigError(f"engine.name={config.name}: it is no miles_agents.contracts.chat_model.ChatModel class")
    takes = registry.init_arguments(made)
    for key in config.options:
        if key == "model" or key not in takes:
            rest = [name for name in takes if name != "model"]
            raise ConfigError(
                f"engine.options.{key}: {made.__name__} takes no such argument. {did_you_mean(key, rest)}"
            )
    arguments = {**config.options, **({"model": model} if "model" in takes else {})}
    try:
        inspect.signature(made).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"engine.options: {made.__name__}: {error}") from error
    chat_model: ChatModel = made(**arguments)
    return chat_model


def _key_of(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            "engine.api_key_env is the name of an environment variable that holds the key, and there is none of the "
            "name given: export OPENAI_API_KEY=… and write engine.api_key_env=OPENAI_API_KEY"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError("the key in the variable that engine.api_key_env names holds characters that no key has")
    return key


def shares_weights(config: schema.TrainConfig) -> bool:
    """True if the engine can decode from the trainer's own weights: float32, and they run in turns; else a copy."""
    return config.rollout.max_staleness == 0 and config.model.dtype == "float32"


def make_weight_sync(config: schema.TrainConfig) -> WeightSync:
    """The route from trainer to engine."""
    sync: WeightSync = registry.weight_syncs.get("memory")(share=shares_weights(config))
    return sync


def make_token_policy(
    engine: RolloutEngine,
    chat: ChatFormat,
    rollout: schema.RolloutConfig,
    sampling: Any,
    *,
    request_deadline_s: float = schema.EngineConfig.request_deadline_s,
    name: str = "policy",
    trained: bool = True,
) -> TokenPolicy:
    """A policy whose sampling keys come from `sampling` (the rollout's or the evaluation's configuration)."""
    return TokenPolicy(
        engine=engine,
        chat=chat,
        sampling=Sampling(
            max_new_tokens=rollout.max_new_tokens,
            max_tokens=rollout.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        ),
        request_deadline_s=request_deadline_s,
        name=name,
        trained=trained,
    )


def make_message_policy(
    model: ChatModel, rollout: schema.RolloutConfig, sampling: Any, *, request_deadline_s: float
) -> MessagePolicy:
    """The policy of a chat model; sampling keys come from `sampling`, as in `make_token_policy`."""
    return MessagePolicy(
        model=model,
        limits=ChatLimits(
            max_new_tokens=rollout.max_new_tokens,
            max_tokens=rollout.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        ),
        request_deadline_s=request_deadline_s,
    )


def make_player(
    engine: RolloutEngine,
    chat: ChatFormat,
    rollout: schema.RolloutConfig,
    sampling: Any,
    request_deadline_s: float,
    *,
    others: Mapping[str, Policy] | None = None,
) -> EpisodePlayer:
    """A player of the engine's policy; see `make_token_policy`. `others` play the seats that are theirs."""
    policy = make_token_policy(engine, chat, rollout, sampling, request_deadline_s=request_deadline_s)
    return EpisodePlayer(policy=policy, deadline_s=rollout.episode_deadline_s, others=others)


def check_modalities(env: Env) -> None:
    """Refuse an environment whose messages hold what cannot be turned into tokens here.

    Raises:
        ConfigError: it has images; says what can be done with it.
    """
    alien = sorted(env.modalities - ChatFormat.modalities)
    if alien:
        raise ConfigError(
            f"the messages of {type(env).__name__} hold {' and '.join(alien)} parts; models that run or train here "
            f"take {' and '.join(sorted(ChatFormat.modalities))} alone. A model behind a server can be evaluated on "
            "it: python -m miles_agents.evaluate env=… engine=openai model=…"
        )


def check_prompts(chat: ChatFormat, environments: EnvironmentPool, tasks: Sequence[Any], max_tokens: int) -> None:
    """Refuse a token budget that the prompts themselves do not fit into.

    Raises:
        ConfigError: how many prompts are too long, and what to type; or see `check_modalities`.
    """
    check_modalities(environments.catalogue)
    schemas = [tool.schema() for tool in environments.tools()]
    lengths = [len(chat.first_prompt(task.prompt, schemas)) for task in tasks]
    too_long = [length for length in lengths if length >= max_tokens]
    if too_long:
        raise ConfigError(
            f"{len(too_long)} of {len(lengths)} prompts have {min(too_long)} to {max(too_long)} tokens and leave no "
            f"room in rollout.max_tokens={max_tokens}; give rollout.max_tokens={max(too_long) + 64} or more"
        )


def model_shape(folder: Path) -> ModelShape:
    """The sizes of the model in a folder."""
    return ModelShape.from_folder(folder)


def check_training(config: schema.TrainConfig) -> None:
    """What can be said of a training run before the model is there.

    Raises:
        ConfigError: a value out of range, a sum that does not come out, sampling that cannot be trained on.
    """
    check_ranges(config)
    check_chat(config.model)
    refuse_chat_model(config.engine)
    check_sampling_for_training(config.rollout)
    plan = plan_batch(config)
    plan.check(model_context=plan.max_tokens)


def check_evaluation(config: schema.EvaluateConfig) -> None:
    """What can be said of an evaluation before the model is there.

    Raises:
        ConfigError: a value out of range, no room for a prompt, samples that would all be equal.
    """
    check_ranges(config)
    check_chat(config.model, on_server=is_chat_model(config.engine))
    check_tokens(config.rollout)
    if config.temperature == 0 and config.samples > 1:
        raise ConfigError(f"temperature=0 makes all {config.samples} samples of a task equal; give samples=1")
    if config.shard is not None:
        Shard.parse(config.shard)


def check_tokens(rollout: schema.RolloutConfig, *, model_context: int | None = None) -> None:
    """Refuse token limits that leave no room for a prompt or do not fit into the model's context.

    Raises:
        ConfigError: what to type instead.
    """
    if rollout.max_new_tokens >= rollout.max_tokens:
        raise ConfigError(
            f"rollout.max_new_tokens={rollout.max_new_tokens} leaves no room for a prompt in "
            f"rollout.max_tokens={rollout.max_tokens}"
        )
    if model_context is not None and rollout.max_tokens > model_context:
        raise ConfigError(
            f"rollout.max_tokens={rollout.max_tokens} is more than the model's context of {model_context} tokens; "
            f"give rollout.max_tokens={model_context} or less"
        )


def check_sampling_for_training(rollout: schema.RolloutConfig) -> None:
    """Refuse to train on logprobs that the trainer cannot reproduce.

    Raises:
        ConfigError: top-p or top-k sampling for training: the engine's logprobs are those of the truncated
            distribution, the trainer's those of the whole one. Greedy sampling: siblings would be equal.
    """
    if rollout.top_p != 1.0 or rollout.top_k != 0:
        raise ConfigError(
            f"rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k}: sampling for training must keep the "
            "whole distribution (rollout.top_p=1 rollout.top_k=0), or the ratios of the loss are wrong; eval.top_p and "
            "eval.top_k are free"
        )
    if rollout.temperature <= 0:
        raise ConfigError("rollout.temperature=0 is greedy: siblings would be equal; give e.g. rollout.temperature=1")


def _arguments(config: Any, *, drop: Sequence[str]) -> dict[str, Any]:
    return {each.name: getattr(config, each.name) for each in fields(config) if each.name not in drop}
