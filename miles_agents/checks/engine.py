"""The contract suite for inference engines: what any `RolloutEngine` must do, as plain assertions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np

from miles_agents.contracts import RolloutEngine
from miles_agents.errors import EngineError
from miles_agents.types import (
    Completion,
    GenerateRequest,
    IntArray,
    LogprobsMode,
    PauseMode,
    SamplingParams,
    StopReason,
)

_PATIENCE_S = 60.0


async def check_engine(
    engine: RolloutEngine,
    prompts: Sequence[IntArray],
    *,
    max_new_tokens: int = 8,
    repeatable: bool = True,
) -> None:
    """Run every check on a started engine with a policy loaded. The engine is left running.

    Args:
        engine: its `context_length` must be larger than any prompt + `max_new_tokens`.
        prompts: at least two, each a non-empty row of token ids.
        max_new_tokens: per request; at least 2.
        repeatable: the same seed gives the same tokens whatever the neighbours (bits of logprobs included).

    Raises:
        AssertionError: the message says which promise is broken, with what was got.
    """
    suite = _Suite(engine, prompts, max_new_tokens)
    await suite.completions_are_well_formed()
    if repeatable:
        await suite.same_seed_gives_the_same_tokens()
    await suite.stop_token_ends_the_completion()
    await suite.abort_ends_a_request()
    for mode in PauseMode:
        await suite.pause_holds(mode)
    await suite.deadline_raises()
    await suite.too_long_requests_are_refused()
    await suite.sessions_continue()


class _Suite:
    def __init__(self, engine: RolloutEngine, prompts: Sequence[IntArray], max_new_tokens: int) -> None:
        if len(prompts) < 2 or max_new_tokens < 2:
            raise ValueError("check_engine needs at least 2 prompts and max_new_tokens of at least 2")
        self.engine = engine
        self.prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
        self.new = max_new_tokens
        self._count = 0

    def request(self, prompt: IntArray, **changes: object) -> GenerateRequest:
        self._count += 1
        names = {"request_id", "session_id", "deadline_s"}
        top = {key: value for key, value in changes.items() if key in names}
        params = {"max_new_tokens": self.new, "seed": 1} | {k: v for k, v in changes.items() if k not in names}
        return GenerateRequest(
            ids=prompt,
            params=SamplingParams(**params),  # type: ignore[arg-type]
            **({"request_id": f"check-{id(self):x}-{self._count}"} | top),  # type: ignore[arg-type]
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                completion = await self.engine.generate(request)
        except TimeoutError:
            raise AssertionError(f"generate did not return within {_PATIENCE_S:.0f} s") from None
        self.well_formed(completion, request)
        return completion

    def well_formed(self, completion: Completion, request: GenerateRequest) -> None:
        ids, logprobs, limit = completion.ids, completion.logprobs, request.params.max_new_tokens
        assert ids.dtype == np.int32, f"completion ids are int32, got {ids.dtype}"
        assert logprobs.dtype == np.float32, f"logprobs are float32, got {logprobs.dtype}"
        assert len(ids) <= limit, f"{len(ids)} tokens but max_new_tokens is {limit}"
        if self.engine.logprobs_mode is not LogprobsMode.NONE:
            values = logprobs.tolist()
            assert all(math.isfinite(p) and p <= 1e-6 for p in values), f"logprobs must be finite and ≤ 0: {values}"
        stops = [token in request.params.stop_token_ids for token in ids.tolist()]
        assert not any(stops[:-1]), "sampling went on after a stop token"
        if completion.stop_reason is StopReason.STOP and request.params.stop_token_ids:
            assert any(stops[-1:]), "the stop reason is STOP but the last id is no stop token"
        if completion.stop_reason is StopReason.LENGTH:
            assert len(ids) == limit, f"the stop reason is LENGTH after {len(ids)} of {limit} tokens"

    async def completions_are_well_formed(self) -> None:
        await asyncio.gather(*(self.generate(self.request(prompt)) for prompt in self.prompts))
        completion = await self.generate(self.request(self.prompts[0]))
        version = self.engine.version
        spans = completion.versions
        assert spans, "a completion with tokens has a version span"
        assert spans[-1].version == version, f"version spans {spans}, but the engine serves version {version}"

    async def same_seed_gives_the_same_tokens(self) -> None:
        alone = [await self.generate(self.request(prompt, seed=5)) for prompt in self.prompts]
        together = await asyncio.gather(*(self.generate(self.request(p, seed=5)) for p in reversed(self.prompts)))
        for index, (one, other) in enumerate(zip(alone, reversed(together), strict=True)):
            assert one.ids.tolist() == other.ids.tolist(), f"prompt {index}: tokens differ alone and with neighbours"
            assert one.logprobs.tobytes() == other.logprobs.tobytes(), f"prompt {index}: bits of logprobs differ"

    async def stop_token_ends_the_completion(self) -> None:
        free = await self.generate(self.request(self.prompts[0], seed=3))
        ids = free.ids.tolist()
        stop = ids[len(ids) // 2]
        stopped = await self.generate(self.request(self.prompts[0], seed=3, stop_token_ids=(stop,)))
        assert stopped.stop_reason is StopReason.STOP, f"stop token {stop} was sampled but the end was {stopped}"
        assert stopped.ids.tolist() == ids[: ids.index(stop) + 1], "a stop token changed the tokens before it"

    async def abort_ends_a_request(self) -> None:
        await self.engine.abort("no-such-request")
        await self.engine.pause(PauseMode.IN_PLACE)
        request = self.request(self.prompts[0])
        task = asyncio.create_task(self.generate(request))
        await asyncio.sleep(0.01)
        await self.engine.abort(request.request_id)
        completion = await task
        assert completion.stop_reason is StopReason.ABORT, f"an aborted request ended with {completion.stop_reason}"
        await self.engine.resume()
        await self.generate(self.request(self.prompts[1]))

    async def pause_holds(self, mode: PauseMode) -> None:
        before = await self.generate(self.request(self.prompts[0], seed=9))
        await self.engine.pause(mode)
        task = asyncio.create_task(self.generate(self.request(self.prompts[0], seed=9)))
        await asyncio.sleep(0.05)
        assert not task.done(), f"a request was served while paused ({mode})"
        await self.engine.resume()
        after = await task
        assert after.stop_reason is before.stop_reason, f"a request that waited for a pause ended {after.stop_reason}"

    async def deadline_raises(self) -> None:
        await self.engine.pause(PauseMode.IN_PLACE)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self.engine.generate(self.request(self.prompts[0], deadline_s=0.02))
        except EngineError:
            pass
        except TimeoutError:
            raise AssertionError("a request outlived its deadline while the engine was paused") from None
        else:
            raise AssertionError("a request past its deadline must raise EngineError")
        finally:
            await self.engine.resume()

    async def too_long_requests_are_refused(self) -> None:
        limit = self.engine.context_length
        prompt = np.resize(self.prompts[0], max(1, limit - self.new + 1)).astype(np.int32)
        for what, ids in (("too long a", prompt), ("an empty", np.zeros(0, np.int32))):
            try:
                await self.engine.generate(self.request(ids))
            except ValueError as error:
                message = str(error)
            else:
                raise AssertionError(f"{what} prompt must raise ValueError")
            assert not len(ids) or str(limit) in message, f"the error must name the limit {limit}: {message}"

    async def sessions_continue(self) -> None:
        session = f"check-{id(self):x}"
        first = await self.generate(self.request(self.prompts[0], session_id=session))
        longer = np.concatenate([self.prompts[0], first.ids, self.prompts[1]]).astype(np.int32)
        if len(longer) + self.new <= self.engine.context_length:
            second = await self.generate(self.request(longer, session_id=session))
            assert 0 <= second.cached_tokens < len(longer), f"{second.cached_tokens} of {len(longer)} tokens cached"
        await self.engine.end_session(session)
        await self.engine.end_session(session)
