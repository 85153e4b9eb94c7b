"""Aborts, pauses, deadlines, errors and the event loop."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import torch
from tiny_engine import VOCAB, bits, make_engine, perturbed, plain_logprobs, prompt, request, tiny_llama, tiny_qwen3

from miles_agents.engines.local.engine import LocalEngine
from miles_agents.engines.local.worker import Worker
from miles_agents.errors import ConfigError, EngineError, WeightSyncError
from miles_agents.types import GenerateRequest, PauseMode, SamplingParams, StopReason


async def loaded(**changes: object) -> LocalEngine:
    engine = make_engine(**({"slots": 8, "context_length": 512} | changes))
    await engine.share(tiny_qwen3())
    return engine


async def sampled(engine: LocalEngine, count: int) -> None:
    target = engine.stats()["sampled_tokens"] + count
    while engine.stats()["sampled_tokens"] < target:
        await asyncio.sleep(0.001)


async def test_abort_keeps_the_tokens_so_far() -> None:
    engine = await loaded()
    whole = await engine.generate(request("whole", prompt(1, 10), new=400, seed=3))
    task = asyncio.create_task(engine.generate(request("cut", prompt(1, 10), new=400, seed=3)))
    await sampled(engine, 20)
    await engine.abort("cut")
    cut = await task
    await engine.abort("cut")
    await engine.close()
    count = len(cut.ids)
    assert cut.stop_reason is StopReason.ABORT
    assert 20 <= count < 400
    assert cut.ids.tolist() == whole.ids[:count].tolist()
    assert cut.logprobs.tobytes() == whole.logprobs[:count].tobytes()


async def test_an_aborted_turn_leaves_no_trace_in_its_session() -> None:
    engine = await loaded()
    task = asyncio.create_task(engine.generate(request("cut", prompt(1, 50), new=400, session="s")))
    await sampled(engine, 5)
    await engine.abort("cut")
    cut = await task
    longer = np.concatenate([prompt(1, 50), cut.ids])[:60]
    again = await engine.generate(request("again", longer, session="s", seed=4))
    alone = await engine.generate(request("alone", longer, seed=4))
    await engine.close()
    assert again.cached_tokens == 0
    assert bits(again) == bits(alone)


async def test_cancelling_the_awaiting_task_frees_its_slot() -> None:
    engine = await loaded(slots=1)
    task = asyncio.create_task(engine.generate(request("gone", prompt(1, 10), new=450)))
    await sampled(engine, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await engine.generate(request("next", prompt(2, 10), new=3))
    assert engine.stats()["running"] == 0
    assert engine.stats()["sampled_tokens"] < 400
    await engine.close()


@pytest.mark.parametrize("mode", [PauseMode.IN_PLACE, PauseMode.RETRACT])
async def test_a_paused_request_goes_on_where_it_was(mode: PauseMode) -> None:
    engine = await loaded()
    whole = await engine.generate(request("whole", prompt(1, 30), new=300, seed=3))
    task = asyncio.create_task(engine.generate(request("paused", prompt(1, 30), new=300, seed=3)))
    await sampled(engine, 20)
    await engine.pause(mode)
    count = engine.stats()["sampled_tokens"]
    await asyncio.sleep(0.05)
    assert engine.stats()["sampled_tokens"] == count
    assert not task.done()
    prefilled = engine.stats()["prefill_tokens"]
    await engine.resume()
    completion = await task
    recomputed = engine.stats()["prefill_tokens"] - prefilled
    await engine.close()
    assert completion.ids.tolist() == whole.ids.tolist()
    if mode is PauseMode.IN_PLACE:
        assert bits(completion) == bits(whole)
        assert recomputed == 0
    else:
        assert recomputed >= 30 + 20 - 1
        assert np.abs(completion.logprobs - whole.logprobs).max() < 1e-4


async def test_pause_with_abort_ends_running_and_waiting_requests() -> None:
    engine = await loaded(slots=2)
    tasks = [asyncio.create_task(engine.generate(request(f"r{n}", prompt(n, 10), new=450))) for n in range(5)]
    await sampled(engine, 6)
    await engine.pause(PauseMode.ABORT)
    completions = await asyncio.gather(*tasks)
    assert {completion.stop_reason for completion in completions} == {StopReason.ABORT}
    assert sorted(len(completion.ids) > 0 for completion in completions) == [False, False, False, True, True]
    await engine.resume()
    assert len((await engine.generate(request("after", prompt(1, 5), new=4))).ids) == 4
    await engine.close()


async def test_a_deadline_ends_the_request_alone() -> None:
    engine = await loaded(slots=2)
    slow = GenerateRequest(
        ids=prompt(1, 10), params=SamplingParams(max_new_tokens=480), request_id="slow", deadline_s=0.03
    )
    other = asyncio.create_task(engine.generate(request("other", prompt(2, 10), new=60)))
    with pytest.raises(EngineError, match=r"'slow' passed its deadline of 0\.03 s with \d+ of 480"):
        await engine.generate(slow)
    assert len((await other).ids) == 60
    await engine.generate(request("slow", prompt(1, 10), new=2))  # its id is free again
    await engine.close()


async def test_requests_that_do_not_fit_are_refused_with_the_numbers() -> None:
    engine = make_engine(slots=2, context_length=50)
    with pytest.raises(RuntimeError, match="no model yet"):
        await engine.generate(request("early", prompt(1, 5)))
    await engine.share(tiny_qwen3())
    with pytest.raises(ValueError, match=r"41 prompt tokens \+ 10 new tokens = 51 exceed .* 50"):
        await engine.generate(request("long", prompt(1, 41), new=10))
    assert len((await engine.generate(request("fits", prompt(1, 40), new=10))).ids) == 10
    with pytest.raises(ValueError, match="non-empty"):
        await engine.generate(request("empty", prompt(1, 0)))
    with pytest.raises(ValueError, match=f"go from 0 to {VOCAB}; the model has 0 to {VOCAB - 1}"):
        await engine.generate(request("vocab", np.array([0, VOCAB], np.int32)))
    task = asyncio.create_task(engine.generate(request("twice", prompt(1, 5), new=40)))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="'twice' is in flight"):
        await engine.generate(request("twice", prompt(1, 5)))
    await task
    await engine.close()


@pytest.mark.parametrize(
    ("changes", "match"), [({"slots": 0}, r"engine\.slots is 0"), ({"dtype": "float8"}, r"'float8'\. Did you mean")]
)
def test_wrong_settings_are_named(changes: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_engine(**changes)


async def test_close_ends_requests_in_flight_and_later_ones() -> None:
    engine = await loaded(slots=1)
    tasks = [asyncio.create_task(engine.generate(request(f"r{n}", prompt(n, 10), new=450))) for n in range(3)]
    await sampled(engine, 2)
    await engine.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, EngineError) and "closed" in str(outcome) for outcome in outcomes)
    for late in (engine.generate(request("late", prompt(1, 5))), engine.pause(PauseMode.ABORT), engine.resume()):
        with pytest.raises(EngineError, match="closed"):
            await late
    never_started = make_engine()
    await never_started.close()
    with pytest.raises(EngineError, match="closed"):
        await never_started.generate(request("late", prompt(1, 5)))


async def test_a_request_that_arrives_while_the_engine_closes_is_answered() -> None:
    engine = await loaded(slots=1)
    slow = asyncio.create_task(engine.read_weights(["lm_head.weight"], lambda _: time.sleep(0.3)))
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(5):
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(request("late", prompt(1, 5)))
        await closing
        assert await slow == {"lm_head.weight": None}


async def test_requests_of_one_session_follow_each_other() -> None:
    engine = await loaded(slots=4)
    alone = [await engine.generate(request(f"alone{n}", prompt(n, 9), new=20, seed=n)) for n in range(3)]
    together = await asyncio.gather(
        *(engine.generate(request(f"r{n}", prompt(n, 9), new=20, seed=n, session="s")) for n in range(3))
    )
    assert [bits(completion) for completion in together] == [bits(completion) for completion in alone]
    assert engine.stats()["idle_sessions"] == 1
    await engine.end_session("s")
    assert engine.stats()["idle_sessions"] == 0
    await engine.close()


async def test_a_crash_of_the_worker_fails_everything_and_never_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await loaded(slots=2)
    tasks = [asyncio.create_task(engine.generate(request(f"r{n}", prompt(n, 10), new=450))) for n in range(4)]
    await sampled(engine, 2)

    def crash(*_: object) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(Worker, "_decode", crash)
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(o, EngineError) and "MemoryError: no memory left" in str(o) for o in outcomes)
        with pytest.raises(EngineError, match="no memory left"):
            await engine.generate(request("late", prompt(1, 5)))
        with pytest.raises(EngineError, match="no memory left"):
            await engine.pause(PauseMode.IN_PLACE)
        await engine.close()


async def test_logits_that_are_not_finite_fail_the_request_and_leave_nothing_behind() -> None:
    model, engine = tiny_llama(), make_engine(slots=1)
    poison, healthy = np.full(30, 7, np.int32), np.array([1, 2, 3], np.int32)
    stop = tuple(token for token in range(VOCAB) if token != 7)
    await engine.share(model)
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")  # a token whose keys and values are not finite
    await engine.mark_version(4)
    before = await engine.generate(request("a", healthy, stop_token_ids=stop))
    with pytest.raises(EngineError, match=r"'b' are not finite \(policy version 4\)"):
        await engine.generate(request("b", poison, session="s"))
    await engine.end_session("s")
    assert bits(await engine.generate(request("c", healthy, stop_token_ids=stop))) == bits(before)
    await engine.close()


async def test_a_model_with_damaged_weights_is_refused() -> None:
    model, engine = tiny_llama(), make_engine(slots=2)
    with torch.no_grad():
        model.lm_head.weight.fill_(float("inf"))
    with pytest.raises(ConfigError, match="not finite; its weights are damaged"):
        await engine.adopt(model)
    await engine.close()


async def test_weights_are_checked_completely_before_any_changes() -> None:
    model, engine = tiny_llama(), make_engine(slots=4)
    await engine.adopt(model, version=3)
    before = await engine.generate(request("a", prompt(1, 10)))
    new = dict(perturbed(model, 1).named_parameters())
    head = new["lm_head.weight"]
    for wrong, match in (
        ({k: v for k, v in new.items() if k != "lm_head.weight"}, r"'lm_head\.weight' was not sent"),
        (new | {"model.norm.wait": head}, r"'model\.norm\.wait' is unknown.*Did you mean 'model\.norm\.weight'"),
        (new | {"lm_head.weight": head[:-1]}, r"'lm_head\.weight' was sent with shape \(96, 48\)"),
        (new | {"lm_head.weight": head.int()}, r"'lm_head\.weight' was sent as torch\.int32"),
    ):
        with pytest.raises(WeightSyncError, match=match):
            await engine.update_weights(wrong.items(), version=4)
    with pytest.raises(WeightSyncError, match=r"'lm_head\.weight' was sent twice"):
        await engine.update_weights([*new.items(), ("lm_head.weight", head)], version=4)
    assert engine.version == 3
    assert bits(await engine.generate(request("b", prompt(1, 10)))) == bits(before)
    with pytest.raises(WeightSyncError, match="update_weights instead"):
        await engine.mark_version(4)
    await engine.close()


async def test_tied_weights_change_at_both_ends() -> None:
    model, engine = tiny_qwen3(), make_engine(slots=4)
    new = perturbed(model, 1)
    await engine.adopt(model)
    embedding = new.model.embed_tokens.weight.detach()
    rest = {name: p for name, p in new.named_parameters() if name != "model.embed_tokens.weight"}
    ids = prompt(1, 10)
    for version, names in enumerate((["model.embed_tokens.weight"], ["lm_head.weight"])):
        await engine.update_weights(model.named_parameters(), version=10)
        await engine.update_weights([*rest.items(), *((name, embedding) for name in names)], version=version)
        completion = await engine.generate(request(f"v{version}", ids))
        assert np.abs(completion.logprobs - plain_logprobs(new, ids, completion)).max() < 5e-5
    both = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding + 1}
    with pytest.raises(WeightSyncError, match="tied"):
        await engine.update_weights([*rest.items(), *both.items()], version=5)
    await engine.close()


async def test_sessions_beyond_the_slots_wait_by_priority_then_order_and_none_starves() -> None:
    engine = await loaded(slots=1, session_idle_s=0.3)
    started = time.monotonic()
    await engine.generate(request("a", prompt(1, 5), new=2, session="a"))  # nobody ends this session
    done: list[str] = []

    async def play(name: str, priority: int) -> None:
        params = SamplingParams(max_new_tokens=2)
        await engine.generate(
            GenerateRequest(ids=prompt(2, 5), params=params, request_id=name, session_id=name, priority=priority)
        )
        done.append(name)
        assert time.monotonic() - started >= 0.3  # no idle session lost its slot before its time
        await engine.end_session(name)

    await engine.pause(PauseMode.IN_PLACE)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for name, priority in (("third", 0), ("fourth", 0), ("first", 2), ("second", 1)):
            group.create_task(play(name, priority))
        while engine.stats()["waiting"] < 4:
            await asyncio.sleep(0.001)
        await engine.resume()
    assert engine.stats()["evicted_sessions"] == 1
    assert done == ["first", "second", "third", "fourth"]
    await engine.close()


async def test_an_idle_session_gives_way_at_once_when_determinism_is_off() -> None:
    engine = await loaded(slots=1, deterministic=False, session_idle_s=60.0)
    await engine.generate(request("a", prompt(1, 5), new=2, session="a"))
    async with asyncio.timeout(5):
        await engine.generate(request("b", prompt(1, 5), new=2))
    again = await engine.generate(request("a2", prompt(1, 40), new=2, session="a"))
    assert again.cached_tokens == 0
    await engine.close()


async def test_sleeping_frees_the_cache_and_the_next_request_takes_it_back() -> None:
    engine = await loaded()
    before = await engine.generate(request("a", prompt(1, 20), session="s"))
    await engine.sleep(frozenset({"kv_cache"}))
    await engine.wake(frozenset({"kv_cache"}))
    after = await engine.generate(request("b", prompt(1, 20), session="s"))
    await engine.close()
    assert bits(after) == bits(before)


async def test_the_event_loop_goes_on_while_tokens_are_sampled() -> None:
    engine = await loaded(slots=32)
    gaps: list[float] = []

    async def heartbeat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    beat = asyncio.create_task(heartbeat())
    await asyncio.gather(*(engine.generate(request(f"r{n}", prompt(n, 40), new=60)) for n in range(64)))
    beat.cancel()
    await engine.close()
    assert len(gaps) > 20
    assert float(np.median(gaps)) < 0.02
    assert float(np.quantile(gaps, 0.95)) < 0.1
