"""`LocalEngine`: decode any Hugging Face causal LM in this process.

    generate() ──► worker thread: admit → prefill call or decode call → sample ──► futures
                        ▲ commands between two calls: abort, pause, new weights

With `deterministic=True` (the default) a request's tokens and logprobs are the same bits alone, in a full batch, in
any slot and after any order of arrival: see `shapes` for how. They are a function of the weights, the ids, the
sampling parameters and the earlier requests of its session, for one machine and one number of threads. Three things
outside a request may still change its last bits, because its keys and values are computed in other pieces: a pause
with `RETRACT`, new weights while it runs, and the eviction of its session after `session_idle_s`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from miles_agents.contracts import RolloutEngine
from miles_agents.engines.local.model import SlotModel
from miles_agents.engines.local.sampling import uniforms
from miles_agents.engines.local.scheduler import Job, Scheduler
from miles_agents.engines.local.shapes import KEY_BLOCK, ROW_BLOCK, Shapes, check_against_plain_attention, probe, up
from miles_agents.engines.local.weights import replace_weights
from miles_agents.engines.local.worker import Worker, settle
from miles_agents.errors import ConfigError, EngineError, WeightSyncError, did_you_mean
from miles_agents.types import Completion, GenerateRequest, LogprobsMode, PauseMode

T = TypeVar("T")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LocalEngine(RolloutEngine):
    """Continuous batching over a fixed number of slots, in one worker thread.

    Args:
        context_length: longest prompt + completion, in tokens. The cache holds `slots` × this.
        slots: how many requests and idle sessions are held at a time; the others wait.
        prefill_rows: prompts per prefill call.
        prefill_chunk: most tokens per prompt and prefill call.
        deterministic: see the module; False also lets waiting requests take the slots of idle sessions at once.
        dtype: of weights and cache: "float32", "bfloat16", "float16".
        threads: torch threads for decoding; None leaves torch's setting.
        session_idle_s: how long an idle session may keep its slot while others wait for one.
    """

    logprobs_mode = LogprobsMode.PROCESSED

    def __init__(
        self,
        *,
        context_length: int,
        slots: int = 128,
        prefill_rows: int = 8,
        prefill_chunk: int = 96,
        deterministic: bool = True,
        dtype: str = "float32",
        threads: int | None = None,
        session_idle_s: float = 120.0,
    ) -> None:
        sizes = {"context_length": context_length, "slots": slots}
        sizes |= {"prefill_rows": prefill_rows, "prefill_chunk": prefill_chunk}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"engine.{name} is {size}; it must be at least 1")
        if dtype not in _DTYPES:
            raise ConfigError(f"unknown engine.dtype '{dtype}'. {did_you_mean(dtype, _DTYPES)}")
        self.context_length = context_length
        self._length, self._rows = up(context_length, KEY_BLOCK), up(slots, ROW_BLOCK)
        self._deterministic, self._dtype = deterministic, _DTYPES[dtype]
        self._ladder = Shapes.ladder(
            slots=self._rows,
            length=self._length,
            prefill_rows=prefill_rows,
            prefill_chunk=prefill_chunk,
        )
        scheduler = Scheduler(slots=slots, session_idle_s=session_idle_s, steal_idle=not deterministic)
        self._worker = Worker(scheduler, threads=threads)
        self._order = itertools.count()
        self._in_flight: set[str] = set()
        self._shared = False

    @property
    def version(self) -> int:
        """Policy version of the weights that new tokens are sampled with; −1 before the first push."""
        return self._worker.version

    async def start(self) -> None:
        """Start the worker thread."""
        self._worker.start()

    # ------------------------------------------------------------------ weights

    async def share(self, module: nn.Module) -> None:
        """Decode from the very parameters of `module`: in-place updates of its owner need no copy.

        The owner must not change them while requests run, and calls `mark_version` after changing them.

        Raises:
            ConfigError: a model this engine cannot decode, or cannot decode batch-invariantly.
        """
        await self._load(module, share=True)

    async def adopt(self, module: nn.Module, *, version: int = -1) -> None:
        """Decode from a copy of `module`; `update_weights` replaces its weights.

        Raises:
            ConfigError: a model this engine cannot decode, or cannot decode batch-invariantly.
        """
        await self._load(module, share=False, version=version)

    async def _load(self, module: nn.Module, *, share: bool, version: int = -1) -> None:
        await self.start()

        def load() -> None:
            model = SlotModel(module, share=share, dtype=self._dtype, slots=self._rows, length=self._length)
            check_against_plain_attention(model, self._ladder)
            shapes = probe(model, self._ladder) if self._deterministic else self._ladder
            self._worker.forget()
            self._worker.model, self._worker.shapes, self._worker.version = model, shapes, version

        await self._worker.call(load)
        self._shared = share

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Replace all weights of an adopted model between two tokens; clears every cache.

        Requests in flight go on under the new weights, with their keys and values computed again.

        Raises:
            WeightSyncError: the names or shapes are not this model's; nothing has changed then.
        """
        if self._shared:
            raise WeightSyncError("the engine decodes from the trainer's own weights; call mark_version instead")

        def update() -> None:
            replace_weights(self._loaded().module, tensors)
            self._worker.new_weights(version)

        await self._worker.call(update)

    async def mark_version(self, version: int) -> None:
        """The shared module has changed and is policy version `version` now; clears every cache.

        Raises:
            WeightSyncError: the engine decodes from its own copy, which changes by `update_weights` alone.
        """
        if not self._shared:
            raise WeightSyncError("the engine decodes from its own copy of the weights; call update_weights instead")
        await self._worker.call(lambda: self._worker.new_weights(version))

    async def read_weights(self, names: Sequence[str], read: Callable[[Tensor], T]) -> dict[str, T]:
        """Apply `read` to the named tensors that new tokens are sampled with, in the worker thread.

        Raises:
            WeightSyncError: the model has no tensor of that name.
        """

        def run() -> dict[str, T]:
            held = self._loaded().module.state_dict()
            for name in names:
                if name not in held:
                    raise WeightSyncError(f"the engine has no weight '{name}'. {did_you_mean(name, held)}")
            return {name: read(held[name]) for name in names}

        return await self._worker.call(run)

    def _loaded(self) -> SlotModel:
        if self._worker.model is None:
            raise RuntimeError("the local engine has no model yet: await share(module) or adopt(module) first")
        return self._worker.model

    # ------------------------------------------------------------------ requests

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample a continuation.

        Raises:
            EngineError: the engine failed or was closed, the logits are not finite, or the deadline passed.
            ValueError: the request does not fit the context or names tokens the model does not have.
        """
        self._worker.refuse_if_stopped()
        job = self._job(request)
        self._in_flight.add(request.request_id)
        try:
            self._worker.post(lambda: self._worker.scheduler.add(job), lambda error: settle(job.future, error))
            async with asyncio.timeout(request.deadline_s):
                return await job.future
        except TimeoutError as error:
            raise EngineError(
                f"request '{request.request_id}' passed its deadline of {request.deadline_s} s "
                f"with {len(job.logprobs)} of {request.params.max_new_tokens} tokens sampled"
            ) from error
        finally:
            self._in_flight.discard(request.request_id)
            if job.future.cancelled():  # by the deadline or with the awaiting task
                self._worker.post_if_running(lambda: self._worker.abort(job))

    def _job(self, request: GenerateRequest) -> Job:
        self._check(request)
        params = request.params
        return Job(
            request=request,
            future=asyncio.get_running_loop().create_future(),
            order=next(self._order),
            arrived=time.monotonic(),
            noise=uniforms(params.seed, params.max_new_tokens),
            tokens=np.asarray(request.ids).tolist(),
            stop_ids=frozenset(params.stop_token_ids),
        )

    def _check(self, request: GenerateRequest) -> None:
        ids, new, name = np.asarray(request.ids), request.params.max_new_tokens, request.request_id
        if ids.ndim != 1 or not len(ids):
            raise ValueError(f"request '{name}': the prompt is a non-empty row of token ids, got shape {ids.shape}")
        if len(ids) + new > self.context_length:
            raise ValueError(
                f"request '{name}': {len(ids)} prompt tokens + {new} new tokens = {len(ids) + new} exceed the "
                f"engine's context length of {self.context_length}"
            )
        if request.media or request.routed_experts:
            raise ValueError(f"request '{name}': the local engine takes no media and reports no routed experts")
        if name in self._in_flight:
            raise ValueError(f"request id '{name}' is in flight already")
        vocab = self._loaded().vocab_size
        if ids.min() < 0 or ids.max() >= vocab:
            raise ValueError(
                f"request '{name}': token ids go from {ids.min()} to {ids.max()}; the model has 0 to {vocab - 1}"
            )

    async def abort(self, request_id: str) -> None:
        """End a request; its `generate` returns what it has. Unknown ids are ignored."""

        def run() -> None:
            job = self._worker.scheduler.jobs.get(request_id)
            if job is not None:
                self._worker.abort(job)

        await self._worker.call(run)

    async def end_session(self, session_id: str) -> None:
        """Free the session's slot."""
        await self._worker.call(lambda: self._worker.scheduler.end_session(session_id))

    async def pause(self, mode: PauseMode) -> None:
        """Stop sampling after the current token; requests that arrive meanwhile wait."""

        def run() -> None:
            self._worker.paused = True
            if mode is PauseMode.ABORT:
                self._worker.abort_all()
            elif mode is PauseMode.RETRACT:
                self._worker.forget()

        await self._worker.call(run)

    async def resume(self) -> None:
        """Sample again."""

        def run() -> None:
            self._worker.paused = False

        await self._worker.call(run)

    async def sleep(self, what: frozenset[str]) -> None:
        """Free the KV cache; it is allocated again at the next call. Weights stay."""
        if "kv_cache" in what:

            def run() -> None:
                self._worker.forget()
                if self._worker.model is not None:
                    self._worker.model.cache.free()

            await self._worker.call(run)

    async def close(self) -> None:
        """End every request with EngineError and the worker thread."""
        await asyncio.to_thread(self._worker.stop)

    def stats(self) -> dict[str, float]:
        """Counters since the start.

        `sampled_tokens`, `prefill_tokens` (computed), `cached_tokens` (prompt tokens reused), `decode_calls`,
        `decode_rows` (rows computed, padding included), `prefill_calls`, `prefill_s`, `decode_s`, `busy_s`, and now:
        `running`, `waiting`, `idle_sessions`, `evicted_sessions`.
        """
        worker, scheduler = self._worker, self._worker.scheduler
        prefill_s, decode_s = worker.busy_s["prefill"], worker.busy_s["decode"]
        waiting = scheduler.waiting
        return {
            **{name: float(count) for name, count in worker.counters.items()},
            "prefill_s": prefill_s,
            "decode_s": decode_s,
            "busy_s": prefill_s + decode_s,
            "running": float(len(scheduler.jobs) - waiting),
            "waiting": float(waiting),
            "idle_sessions": float(scheduler.idle_sessions),
            "evicted_sessions": float(scheduler.evictions),
        }
