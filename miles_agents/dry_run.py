"""`dry_run=true`: the composed plan in numbers. Loads no model and no torch."""

from __future__ import annotations

import os
from pathlib import Path

from miles_agents import assembly
from miles_agents.configs import schema
from miles_agents.planning import BatchPlan, ModelShape, format_bytes, plan_memory
from miles_agents.starter.shape import SHAPE


def describe_plan(config: schema.TrainConfig) -> str:
    """Batch arithmetic, token budget and memory of a training run, as text.

    Raises:
        ConfigError: a sum that does not come out.
    """
    assembly.check_training(config)
    plan = assembly.plan_batch(config)
    shape = _shape(config.model)
    plan.check(model_context=shape.context if shape else plan.max_tokens)
    lines = [
        f"environment      {config.env.id}",
        f"model            {config.model.name}" + (f", {shape.parameters:,} parameters" if shape else ""),
        "",
        *_batch_lines(plan, config.steps),
        "",
        *_token_lines(plan, shape),
        "",
        *_memory_lines(config, plan, shape),
    ]
    return "\n".join(lines) + "\n"


def describe_evaluation(config: schema.EvaluateConfig) -> str:
    """Episodes and token budget of an evaluation, as text.

    Raises:
        ConfigError: a sum that does not come out.
    """
    assembly.check_evaluation(config)
    shape = _shape(config.model)
    assembly.check_tokens(config.rollout, model_context=shape.context if shape else None)
    rollout, episodes = config.rollout, config.tasks * config.samples
    refused = ", every tool call refused" if config.refuse_tools else ""
    lines = [
        f"environment      {config.env.id}, {config.split} split{refused}",
        f"model            {config.model.name}" + (f", {shape.parameters:,} parameters" if shape else ""),
        f"episodes         at most {config.tasks} tasks × {config.samples} samples = {episodes:,} episodes, "
        f"temperature {config.temperature:g}",
        f"tokens           {rollout.max_tokens} per trajectory (prompt and all turns), "
        f"{rollout.max_new_tokens} per turn",
    ]
    return "\n".join(lines) + "\n"


def _shape(model: schema.ModelConfig) -> ModelShape | None:
    if model.source == "starter":
        return ModelShape.from_config(SHAPE)
    folder = Path(model.source).expanduser()
    if not folder.exists():
        return None
    from miles_agents.runs.checkpoints import resolve_model_folder

    return ModelShape.from_folder(resolve_model_folder(folder))


def _batch_lines(plan: BatchPlan, steps: int) -> list[str]:
    mode = {0: "synchronous", 1: "one step off"}.get(plan.max_staleness, "asynchronous")
    return [
        f"batch            {plan.groups_per_step} tasks × {plan.group_size} episodes = {plan.episodes} episodes a step",
        f"updates          {plan.minibatches} minibatches × {plan.epochs} epochs = {plan.updates} a step, "
        f"about {plan.episodes / plan.minibatches:g} episodes each",
        f"run              {steps} steps = {steps * plan.episodes:,} episodes, {steps * plan.updates:,} updates",
        f"staleness        at most {plan.max_staleness} ({mode})",
    ]


def _token_lines(plan: BatchPlan, shape: ModelShape | None) -> list[str]:
    context = f"{shape.context}" if shape else "known once the model is here"
    return [
        f"tokens           {plan.max_tokens} per trajectory (prompt and all turns), {plan.max_new_tokens} per turn; "
        f"the model's context: {context}",
        f"micro-batches    {plan.token_budget} tokens ({plan.token_budget // plan.max_tokens} trajectories or more), "
        f"at most {-(-plan.episodes * plan.max_tokens // plan.token_budget)} micro-batches a step",
    ]


def _memory_lines(config: schema.TrainConfig, plan: BatchPlan, shape: ModelShape | None) -> list[str]:
    if shape is None:
        return ["memory           known once the model is here"]
    concurrency = assembly.concurrency_of(config)
    memory = plan_memory(
        shape,
        dtype=config.model.dtype,
        slots=assembly.slots_of(config.engine, concurrency),
        max_tokens=plan.max_tokens,
        token_budget=min(plan.token_budget, plan.episodes * plan.max_tokens),
        engine_copies_weights=not assembly.shares_weights(config),
    )
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return [
        f"memory           about {format_bytes(memory.total)} of this machine's {format_bytes(machine)}: "
        f"weights {format_bytes(memory.weights)}, gradients {format_bytes(memory.gradients)}, "
        f"optimiser {format_bytes(memory.optimizer)}, activations up to {format_bytes(memory.activations)}, "
        f"KV cache {format_bytes(memory.kv_cache)}"
        + (f", the engine's copy {format_bytes(memory.engine_weights)}" if memory.engine_weights else "")
    ]
