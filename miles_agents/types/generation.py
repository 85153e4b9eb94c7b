"""What is asked of an inference engine and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from miles_agents.types.messages import ImagePart

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]


class StopReason(StrEnum):
    """Why sampling ended."""

    STOP = "stop"  # a stop or end-of-turn token was sampled; it is the last completion id
    LENGTH = "length"  # max_new_tokens reached
    ABORT = "abort"  # aborted; the tokens so far are kept


class LogprobsMode(StrEnum):
    """What an engine's logprobs are the logprobs of."""

    PROCESSED = "processed"  # of the distribution sampled from: after temperature, top-k and top-p, renormalised
    TEMPERATURE = "temperature"  # after temperature only; top-k and top-p are not accounted for
    NONE = "none"  # no logprobs: can be evaluated, never trained on


class PauseMode(StrEnum):
    """What happens to requests in flight when an engine is paused."""

    IN_PLACE = "in_place"  # kept, with their KV cache; go on at resume
    RETRACT = "retract"  # kept, KV cache dropped and computed again at resume
    ABORT = "abort"  # ended with StopReason.ABORT


class VersionSpan(NamedTuple):
    """Completion tokens `start:end` were sampled by policy version `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. `temperature=0` is greedy; `top_k=0` and `top_p=1` are off."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        checks = {
            "max_new_tokens ≥ 1": self.max_new_tokens >= 1,
            "temperature ≥ 0": self.temperature >= 0,
            "0 < top_p ≤ 1": 0 < self.top_p <= 1,
            "top_k ≥ 0": self.top_k >= 0,
            "0 ≤ seed < 2**63": 0 <= self.seed < 2**63,
        }
        wrong = [rule for rule, holds in checks.items() if not holds]
        if wrong:
            raise ValueError(f"sampling parameters must satisfy {', '.join(wrong)}; got {self}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """Continue `ids` (prompt token ids, shape (P,), int32)."""

    ids: IntArray
    params: SamplingParams
    request_id: str
    session_id: str | None = None  # requests of one session extend each other: engines may keep their KV cache
    priority: int = 0  # higher first
    deadline_s: float | None = None  # seconds from arrival; then EngineError
    media: tuple[ImagePart, ...] = ()
    routed_experts: bool = False  # ask for the experts chosen per token and layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """The sampled tokens.

    `ids` (C,) int32 and `logprobs` (C,) float32 go together; `versions` cover 0:C without gaps. `routed_experts` is
    (P + C − 1, layers, k) int16 when it was asked for.
    """

    ids: IntArray
    logprobs: FloatArray
    stop_reason: StopReason
    versions: tuple[VersionSpan, ...]
    routed_experts: NDArray[np.int16] | None = None
    cached_tokens: int = 0  # prompt tokens whose KV cache was reused
    timings: dict[str, float] = field(default_factory=dict)  # seconds: queue, prefill, decode

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} logprobs; never pad one with the other")
        covered = 0
        for span in self.versions:
            if span.start != covered or span.end <= span.start:
                raise ValueError(f"version spans {self.versions} do not cover 0:{len(self.ids)} without gaps")
            covered = span.end
        if covered != len(self.ids):
            raise ValueError(f"version spans {self.versions} do not cover 0:{len(self.ids)}")
