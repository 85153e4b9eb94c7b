"""Sums that must come out before anything starts: batch arithmetic, token budget, memory.

Plain arithmetic on plain numbers; no model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles_agents.errors import ConfigError, UsageError

_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer that sums need."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int  # tokens
    tied_embeddings: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Read a Hugging Face `config.json` (Llama, Qwen2, Qwen3 and their like)."""
        heads = int(config["num_attention_heads"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            intermediate=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelShape:
        """Read `folder/config.json`.

        Raises:
            UsageError: no such file, or a key is missing; the file is named.
        """
        file = folder / "config.json"
        if not file.is_file():
            raise UsageError(f"{folder} holds no config.json: give a Hugging Face model folder, model=./FOLDER")
        try:
            return cls.from_config(json.loads(file.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{file} is no config of a decoder-only transformer: {error!r}") from error

    @property
    def parameters(self) -> int:
        """Weights of the model (norms of q and k left out)."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden

    def kv_bytes(self, tokens: int, dtype: str) -> int:
        """KV cache of `tokens` tokens."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * _BYTES[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """One training step's arithmetic."""

    groups_per_step: int
    group_size: int
    minibatches: int
    epochs: int
    max_new_tokens: int
    max_tokens: int  # per trajectory
    token_budget: int  # per micro-batch
    max_staleness: int

    @property
    def episodes(self) -> int:
        """Episodes per step."""
        return self.groups_per_step * self.group_size

    @property
    def updates(self) -> int:
        """Optimiser updates per step."""
        return self.minibatches * self.epochs

    def check(self, *, model_context: int) -> None:
        """Refuse sums that cannot come out.

        Raises:
            ConfigError: every broken rule, with the keys to change.
        """
        positive = {
            "rollout.groups_per_step": self.groups_per_step,
            "rollout.group_size": self.group_size,
            "trainer.minibatches": self.minibatches,
            "trainer.epochs": self.epochs,
            "rollout.max_new_tokens": self.max_new_tokens,
            "rollout.max_tokens": self.max_tokens,
            "trainer.token_budget": self.token_budget,
        }
        problems = [f"{key}={value}: must be at least 1" for key, value in positive.items() if value < 1]
        if self.max_staleness < 0:
            problems.append(f"rollout.max_staleness={self.max_staleness}: must be 0 or more")
        problems += self._broken_sums(model_context)
        if problems:
            raise ConfigError("the plan does not come out:\n  " + "\n  ".join(problems))

    def _broken_sums(self, model_context: int) -> list[str]:
        problems = []
        if self.group_size == 1:
            problems.append("rollout.group_size=1: a group of one has no baseline; give 2 or more")
        if self.minibatches > self.episodes:
            problems.append(
                f"trainer.minibatches={self.minibatches} is more than the {self.episodes} episodes of a step "
                f"(rollout.groups_per_step={self.groups_per_step} × rollout.group_size={self.group_size})"
            )
        if self.max_tokens > model_context:
            problems.append(
                f"rollout.max_tokens={self.max_tokens} is more than the model's context of {model_context} tokens; "
                f"give rollout.max_tokens={model_context} or less"
            )
        if self.max_new_tokens >= self.max_tokens:
            problems.append(
                f"rollout.max_new_tokens={self.max_new_tokens} leaves no room for a prompt in "
                f"rollout.max_tokens={self.max_tokens}"
            )
        if self.token_budget < self.max_tokens:
            problems.append(
                f"trainer.token_budget={self.token_budget} cannot hold one trajectory of "
                f"rollout.max_tokens={self.max_tokens}; give trainer.token_budget={self.max_tokens} or more"
            )
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Estimated bytes; activations are a rough upper bound of one micro-batch."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    engine_weights: int
    kv_cache: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.engine_weights + self.kv_cache


def plan_memory(
    shape: ModelShape, *, dtype: str, slots: int, max_tokens: int, token_budget: int, engine_copies_weights: bool
) -> MemoryPlan:
    """Estimate what training in one process takes. The trainer's weights are float32; `dtype` is the engine's.

    Activations: per layer and token about 34 bytes of a transformer block with recomputed softmax for each of its
    hidden numbers (Korthikanti et al. 2022, arXiv 2205.05198, eq. 1 without the attention term) at 2 bytes a number
    there, scaled to float32, plus the logits.
    """
    weights = shape.parameters * _BYTES["float32"]
    activations = token_budget * (17 * _BYTES["float32"] * shape.hidden * shape.layers + 2 * 4 * shape.vocabulary)
    return MemoryPlan(
        weights=weights,
        gradients=weights,
        optimizer=2 * shape.parameters * 4,
        activations=activations,
        engine_weights=shape.parameters * _BYTES[dtype] if engine_copies_weights else 0,
        kv_cache=shape.kv_bytes(slots * max_tokens, dtype),
    )


def format_bytes(count: int) -> str:
    """`1.4 MB`, with decimal prefixes."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
