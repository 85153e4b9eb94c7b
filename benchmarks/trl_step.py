"""The main job's GRPO batch on TRL's `GRPOTrainer`, where TRL is installed.

Same model, tasks, batch (16 × 8), turn limits, learning rate, clipping and two updates a batch. TRL has no sandbox: its
tool evaluates the arithmetic in this process, which costs next to nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import Settings
from benchmarks.runs import invocation_of
from benchmarks.sleeping_env import printed_value
from miles_agents import assembly
from miles_agents.answers import extract_boxed, numbers_equal
from miles_agents.command import load_env_class
from miles_agents.configs import schema
from miles_agents.envs.python_math.env import BUSY
from miles_agents.models.loading import load_causal_lm
from miles_agents.types import Task

NOTE = (
    "TRL: same model, tasks, batch, turn limits and updates; its tool is a function call without any isolation, ours "
    "runs in a sandbox opened for each episode"
)
_UPDATES = 2  # optimiser steps of TRL that make one step of ours


def missing() -> str | None:
    """Why TRL cannot be measured here; None if it can."""
    if importlib.util.find_spec("trl") is None:
        return "it is not installed; pip install -c constraints.txt '.[bench]'"
    return None


async def step_times(settings: Settings, *, steps: int) -> list[float]:
    """Wall time of each of `steps` steps: generation with tools, then two updates."""
    config: schema.TrainConfig = invocation_of("train", settings.words()).config
    return await asyncio.to_thread(_run, config, steps)


def _run(config: schema.TrainConfig, steps: int) -> list[float]:
    from transformers import PrinterCallback, TrainerCallback

    class Stopwatch(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
        """Notes when each optimiser step ends."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    torch.set_num_threads(assembly.trainer_threads(config.trainer, config.cluster))
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = _trainer(config, steps, Path(folder))
        trainer.add_callback(stopwatch)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    marks = stopwatch.ends[::_UPDATES]
    return [end - start for start, end in itertools.pairwise(marks)]


def _trainer(config: schema.TrainConfig, steps: int, folder: Path) -> Any:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_schema, qwen3_template

    logging.getLogger("trl").setLevel(logging.ERROR)
    model = assembly.resolve_model(config.model, on_progress=lambda text: None)
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The starter model writes Qwen3's tool calls, but TRL knows templates by their exact text alone.
    tokenizer.response_template, tokenizer.response_schema = qwen3_template, qwen3_schema
    episodes = config.rollout.groups_per_step * config.rollout.group_size
    arguments = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=episodes // _UPDATES,
        steps_per_generation=_UPDATES,
        num_generations=config.rollout.group_size,
        max_steps=steps * _UPDATES,
        max_completion_length=config.rollout.max_tokens - 80,  # prompts have at most 70 tokens
        max_tool_calling_iterations=3,  # four turns
        generation_kwargs={"max_new_tokens": config.rollout.max_new_tokens},
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        learning_rate=3e-4,
        adam_beta2=0.95,
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=config.seed,
    )
    return GRPOTrainer(
        model=load_causal_lm(model),
        processing_class=tokenizer,
        args=arguments,
        train_dataset=Dataset.from_list([_row(task) for task in _tasks(config)]),
        reward_funcs=_answer_reward,
        tools=[_python_tool(config.seed)],
    )


def _tasks(config: schema.TrainConfig) -> list[Task]:
    return assembly.make_environments(config.env, load_env_class(config.env.id), None).tasks("train")[:2048]


def _row(task: Task) -> dict[str, Any]:
    messages = [{"role": message.role.value, "content": message.text} for message in task.prompt]
    return {"prompt": messages, "answer": str(task.answer)}


def _answer_reward(completions: list[list[dict[str, Any]]], answer: list[str], **_: Any) -> list[float]:
    found = [extract_boxed(str(completion[-1].get("content") or "")) for completion in completions]
    return [float(box is not None and numbers_equal(box, gold)) for box, gold in zip(found, answer, strict=True)]


def _python_tool(seed: int) -> Any:
    rng = random.Random(seed)

    def python(code: str) -> str:
        """Run Python code and return what it prints.

        Args:
            code: the code.
        """
        if rng.random() < 0.3:  # as often as the environment's tool
            return BUSY
        try:
            return str(printed_value(code))
        except (SyntaxError, ValueError) as error:
            return f"Error: {error}"

    return python
