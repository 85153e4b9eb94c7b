"""Making the starter model: tokenizer, a tiny Qwen3, a supervised warm start on generated traces.

It is made once, from nothing but this package, and kept under the user's cache folder, by a key of everything it is
made of. The warm start teaches the whole skill on clean traces and then bad habits on top: it answers from nowhere,
picks wrong operators, gives up when the tool is busy. RL has something to improve, and the model cannot do the sums
without the tool.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from miles_agents.algorithms.supervised import Supervised
from miles_agents.chat import ChatFormat
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.envs.python_math.problems import Problem, generate_problems
from miles_agents.models.cache import cache_folder
from miles_agents.models.loading import save_causal_lm
from miles_agents.starter.shape import SHAPE
from miles_agents.starter.tokenizer import save_tokenizer, train_tokenizer
from miles_agents.starter.traces import BAD, CLEAN, Habits, make_trace
from miles_agents.trainers.local.rank import LocalTrainerRank
from miles_agents.trainers.local.settings import Execution, OptimizerSettings
from miles_agents.types import Batch, TrainingSample, collate_samples

_SOURCES = (
    "starter/build.py",
    "starter/shape.py",
    "starter/tokenizer.py",
    "starter/traces.py",
    "chat/starter_template.jinja",
    "envs/python_math/problems.py",
)
_BUSY_SHARE = 0.5  # of the traces: the tool may be busy in these
_BUSY_PROBABILITY = 0.6  # in these; 0.3 over all traces


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The warm start. Steps are optimiser updates over `batch` traces."""

    clean_steps: int = 280
    habit_steps: int = 60
    batch: int = 32
    lr: float = 6e-3  # AdamW on embeddings and norms
    muon_lr: float = 0.02  # on the hidden matrices
    warmup_steps: int = 50
    decay_fraction: float = 0.4
    seed: int = 0

    @property
    def steps(self) -> int:
        """All updates."""
        return self.clean_steps + self.habit_steps


def ensure_starter(
    *, on_progress: Callable[[str], None], cache: Path | None = None, recipe: Recipe | None = None
) -> Path:
    """The starter model's folder, made now if it is not in the cache.

    Args:
        on_progress: told what is going on while it is made.
        cache: default: the user's cache folder.
        recipe: for experiments; part of the key.
    """
    recipe = recipe or Recipe()
    folder = (cache or cache_folder()) / f"starter-{_key(recipe)}"
    if (folder / "model.safetensors").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".starter-") as temporary:
        made = Path(temporary) / "model"
        made.mkdir()
        build_starter(made, recipe, on_progress=on_progress)
        try:
            os.rename(made, folder)  # noqa: PTH104 — atomic; a folder another process made meanwhile is as good
        except OSError:
            if not (folder / "model.safetensors").is_file():
                raise
            shutil.rmtree(made, ignore_errors=True)
    return folder


def _key(recipe: Recipe) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for source in _SOURCES:
        digest.update(files("miles_agents").joinpath(source).read_bytes())
    digest.update(repr(recipe).encode())
    digest.update(torch.__version__.encode())
    return digest.hexdigest()


def build_starter(folder: Path, recipe: Recipe, *, on_progress: Callable[[str], None]) -> None:
    """Make the model and write it, tokenizer and chat template included, into an existing folder."""
    on_progress("training the tokenizer")
    save_tokenizer(train_tokenizer(_problems(recipe), seed=recipe.seed), folder)
    model = new_model(recipe.seed)
    algorithm = Supervised()
    rank = LocalTrainerRank(
        model=model,
        algorithm=algorithm,
        optimizer=OptimizerSettings(
            name="muon_adamw",
            lr=recipe.lr,
            betas=(0.9, 0.98),
            eps=1e-9,
            muon_lr=recipe.muon_lr,
            warmup_steps=recipe.warmup_steps,
            schedule="linear",
            total_steps=recipe.steps,
            decay_fraction=recipe.decay_fraction,
            min_lr_fraction=0.05,
        ),
        execution=Execution(token_budget=1 << 20),
    )
    for step, batch in enumerate(warm_start_batches(ChatFormat.from_folder(folder), recipe), start=1):
        algorithm.advantages(batch)
        metrics = rank.step(batch)
        if step % 10 == 0 or step == recipe.steps:
            on_progress(f"warm start {step}/{recipe.steps}, loss {metrics['loss']:.3f}")
    save_causal_lm(model, folder)


def new_model(seed: int) -> Qwen3ForCausalLM:
    """The untrained model: 361k parameters."""
    config = Qwen3Config(**SHAPE, bos_token_id=None, eos_token_id=2, pad_token_id=0, dtype="float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def warm_start_batches(chat: ChatFormat, recipe: Recipe) -> Iterator[Batch]:
    """The batches of the warm start, clean ones first."""
    rng = random.Random(recipe.seed)
    tools = [tool.schema() for tool in PythonMath().all_tools()]
    problems = _problems(recipe)
    for step in range(recipe.steps):
        habits = CLEAN if step < recipe.clean_steps else BAD
        samples = [_sample(chat, rng, next(problems), habits, tools) for _ in range(recipe.batch)]
        names = [str(index) for index in range(recipe.batch)]
        yield collate_samples(samples, group_ids=names, trajectory_ids=names, rewards=[0.0] * recipe.batch)


def _sample(
    chat: ChatFormat, rng: random.Random, problem: Problem, habits: Habits, tools: list[dict[str, object]]
) -> TrainingSample:
    busy = _BUSY_PROBABILITY if rng.random() < _BUSY_SHARE else 0.0
    ids, mask = chat.supervised(make_trace(rng, problem, habits, busy_probability=busy), tools)
    return TrainingSample(
        ids=ids,
        mask=mask,
        logprobs=np.zeros(len(ids), np.float32),
        versions=np.full(len(ids), -1, np.int32),
        turn_index=np.full(len(ids), -1, np.int32),
    )


def _problems(recipe: Recipe) -> Iterator[Problem]:
    """Train-split problems: every third has one step, the others two."""
    count = recipe.steps * recipe.batch
    one_step = iter(generate_problems(1, "train", count // 3 + 1, seed=recipe.seed + 1))
    two_steps = iter(generate_problems(2, "train", count - count // 3 + 1, seed=recipe.seed + 1))
    for number in range(count):
        yield next(one_step) if number % 3 == 0 else next(two_steps)
