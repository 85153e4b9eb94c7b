"""The scripted engine answers as told and otherwise behaves like an engine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from miles_agents.checks.engine import check_engine
from miles_agents.engines.scripted import ScriptedEngine, ScriptedReply
from miles_agents.errors import EngineError
from miles_agents.types import Completion, GenerateRequest, PauseMode, SamplingParams, StopReason, VersionSpan

END = 0


class Letters:
    """One token per letter; `.` is the end-of-turn token."""

    def encode(self, text: str) -> list[int]:
        return [END if letter == "." else ord(letter) for letter in text]


def ask(name: str = "r", **changes: object) -> GenerateRequest:
    params = SamplingParams(max_new_tokens=8, stop_token_ids=(END,))
    defaults = {"ids": np.array([1, 2, 3], np.int32), "params": params, "request_id": name}
    return GenerateRequest(**(defaults | changes))  # type: ignore[arg-type]


async def test_replies_come_in_order_and_requests_are_kept() -> None:
    engine = ScriptedEngine(["hi.", ScriptedReply(ids=[5, 6])], tokenizer=Letters(), version=3)
    first, second = await engine.generate(ask("a")), await engine.generate(ask("b"))
    assert first.ids.tolist() == [ord("h"), ord("i"), END]
    assert second.ids.tolist() == [5, 6, END]  # the end-of-turn token a trained model would sample
    assert (first.stop_reason, first.versions) == (StopReason.STOP, (VersionSpan(3, 0, 3),))
    assert [request.request_id for request in engine.requests] == ["a", "b"]
    with pytest.raises(EngineError, match="no reply left for request 'c'"):
        await engine.generate(ask("c"))


async def test_a_long_reply_is_cut_at_its_limit_and_at_the_first_stop() -> None:
    engine = ScriptedEngine(["abcdefghij.", "ab.cd."], tokenizer=Letters())
    long, stopped = await engine.generate(ask("a")), await engine.generate(ask("b"))
    assert (len(long.ids), long.stop_reason) == (8, StopReason.LENGTH)
    assert (stopped.ids.tolist(), stopped.stop_reason) == ([ord("a"), ord("b"), END], StopReason.STOP)


async def test_failures_logprobs_and_stop_reasons_are_as_scripted() -> None:
    script = [
        ScriptedReply(error="server gone"),
        ScriptedReply(ids=[7, 8], logprobs=[-0.25, -0.5], stop_reason=StopReason.ABORT),
    ]
    engine = ScriptedEngine(script)
    with pytest.raises(EngineError, match="server gone"):
        await engine.generate(ask("a"))
    completion = await engine.generate(ask("b"))
    assert completion.ids.tolist() == [7, 8]
    assert completion.logprobs.tolist() == [-0.25, -0.5]
    assert completion.stop_reason is StopReason.ABORT


async def test_a_script_can_be_a_function_of_the_request() -> None:
    engine = ScriptedEngine(lambda request: ScriptedReply(ids=[int(request.ids.sum())]))
    engine.set_version(9)
    completion = await engine.generate(ask())
    assert completion.ids.tolist() == [6, END]
    assert completion.versions == (VersionSpan(9, 0, 2),)


async def test_delays_pass_concurrently_and_deadlines_and_close_end_them() -> None:
    engine = ScriptedEngine(lambda _: ScriptedReply(ids=[1], delay_s=30.0))
    with pytest.raises(EngineError, match="deadline"):
        await engine.generate(ask("late", deadline_s=0.01))
    tasks = [asyncio.create_task(engine.generate(ask(f"r{n}"))) for n in range(3)]
    await asyncio.sleep(0.01)
    await engine.pause(PauseMode.ABORT)
    assert {(await task).stop_reason for task in tasks} == {StopReason.ABORT}
    await engine.resume()
    last = asyncio.create_task(engine.generate(ask("last")))
    await asyncio.sleep(0.01)
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await last
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(ask("after"))


@pytest.mark.parametrize("fields", [{}, {"text": "a", "ids": [1]}])
def test_a_reply_is_exactly_one_thing(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        ScriptedReply(**fields)  # type: ignore[arg-type]


def eight_tokens(request: GenerateRequest) -> ScriptedReply:
    return ScriptedReply(ids=[int(request.ids[0]) + step for step in range(1, 9)])


PROMPTS = [np.array([10, 11], np.int32), np.array([30], np.int32)]


async def test_the_scripted_engine_passes_the_contract_suite() -> None:
    engine = ScriptedEngine(eight_tokens, context_length=64)
    await check_engine(engine, PROMPTS)
    await engine.close()


class IgnoresStops(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await super().generate(ask(request.request_id, ids=request.ids, params=SamplingParams(max_new_tokens=8)))


class ServesWhilePaused(ScriptedEngine):
    async def pause(self, mode: PauseMode) -> None:
        await super().pause(mode)
        await self.resume()


class DependsOnTheCrowd(ScriptedEngine):
    async def generate(self, request: GenerateRequest) -> Completion:
        self.set_version(self.version)
        completion = await super().generate(request)
        completion.ids[-1] += len(self.requests) % 2
        return completion


class ForgetsTheVersion(ScriptedEngine):
    @property
    def version(self) -> int:
        return self._version + 1


class LosesAborts(ScriptedEngine):
    async def abort(self, request_id: str) -> None:
        return None


class TakesAnyLength(ScriptedEngine):
    def _check(self, request: GenerateRequest) -> None:
        if not len(request.ids):
            super()._check(request)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (IgnoresStops, "stop token"),
        (ServesWhilePaused, "an aborted request ended with length|served while paused"),
        (DependsOnTheCrowd, "tokens differ"),
        (ForgetsTheVersion, "serves version 1"),
        (LosesAborts, "aborted request|did not return"),
        (TakesAnyLength, "too long a prompt"),
    ],
)
async def test_the_contract_suite_catches_broken_engines(
    broken: type[ScriptedEngine], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miles_agents.checks.engine._PATIENCE_S", 0.3)
    engine = broken(eight_tokens, context_length=64)
    with pytest.raises(AssertionError, match=message):
        await check_engine(engine, PROMPTS)
    await engine.close()
