"""Rollout tokens per second: the local engine against Hugging Face `generate` at the same batch, and whole episodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import torch
from transformers import GenerationConfig, PreTrainedModel

from benchmarks.measuring import Measure, Row, Settings, Table, compared, interleaved
from benchmarks.runs import Ground, ground
from miles_agents.assembly import engine_threads
from miles_agents.contracts import RolloutEngine
from miles_agents.evaluation import play_all
from miles_agents.models.loading import load_causal_lm
from miles_agents.types import GenerateRequest, IntArray, SamplingParams

_EPISODES = 128  # a step of the main job
_NEW_TOKENS = 48  # per prompt; no token stops a row, so that every decoder does the same work


async def measure(settings: Settings) -> list[Table]:
    """Tokens sampled per second, from prompt to last token, prefill included."""
    async with ground(settings.words()) as place:
        prompts = _prompts(place, settings.count(_EPISODES, least=8))
        async with (
            place.engine(deterministic=True) as deterministic,
            place.engine(deterministic=False) as free,
        ):
            threads = engine_threads(place.config.engine, place.config.cluster)
            medians = await interleaved(
                {
                    "transformers generate": _generate(load_causal_lm(place.opened.model), prompts, threads),
                    "local engine": _decode(deterministic, prompts),
                    "local engine, deterministic=false": _decode(free, prompts),
                },
                repeats=settings.repeats,
            )
            episodes = await interleaved(
                {"whole episodes": _play(place, deterministic, len(prompts))}, repeats=settings.repeats
            )
    rows = compared(medians, "tokens/s", baseline="transformers generate")
    engine, whole = medians["local engine"], episodes["whole episodes"]
    rows += [
        Row(
            name="deterministic against not",
            value=engine,
            unit="tokens/s",
            ratio=engine / medians["local engine, deterministic=false"],
            against="local engine, deterministic=false",
        ),
        Row(name="whole episodes", value=whole, unit="tokens/s", ratio=whole / engine, against="local engine"),
    ]
    notes = (
        f"{len(prompts)} prompts of {min(map(len, prompts))}–{max(map(len, prompts))} tokens, {_NEW_TOKENS} sampled "
        "after each; the engine also returns logprobs, generate does not",
        "whole episodes: all turns, prompts, parsing, sandboxes and tool calls included; sampled tokens are counted",
    )
    return [Table(title="rollout", rows=rows, notes=notes)]


def _prompts(place: Ground, count: int) -> list[IntArray]:
    schemas = [tool.schema() for tool in place.environments.tools()]
    tasks = place.opened.train_tasks[:count]
    return [place.opened.chat.first_prompt(task.prompt, schemas) for task in tasks]


def _decode(engine: RolloutEngine, prompts: Sequence[IntArray]) -> Measure:
    async def measured() -> float:
        requests = [
            GenerateRequest(
                ids=ids, params=SamplingParams(max_new_tokens=_NEW_TOKENS, seed=number), request_id=str(number)
            )
            for number, ids in enumerate(prompts)
        ]
        started = time.perf_counter()
        completions = await asyncio.gather(*(engine.generate(request) for request in requests))
        return sum(len(each.ids) for each in completions) / (time.perf_counter() - started)

    return measured


def _generate(model: PreTrainedModel, prompts: Sequence[IntArray], threads: int) -> Measure:
    width = max(map(len, prompts))
    ids_BT = torch.zeros((len(prompts), width), dtype=torch.int64)
    mask_BT = torch.zeros_like(ids_BT)
    for row, ids in enumerate(prompts):  # decoder-only models are padded on the left
        ids_BT[row, width - len(ids) :] = torch.from_numpy(ids)
        mask_BT[row, width - len(ids) :] = 1
    # A config of its own: the model's names an end-of-sequence token, which would stop rows early.
    model.generation_config = GenerationConfig(do_sample=True, top_k=0, max_new_tokens=_NEW_TOKENS, pad_token_id=0)

    def run() -> float:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            started = time.perf_counter()
            out_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT)
            return float(out_BT.shape[0] * (out_BT.shape[1] - width)) / (time.perf_counter() - started)

    async def measured() -> float:
        return await asyncio.to_thread(run)

    return measured


def _play(place: Ground, engine: RolloutEngine, count: int) -> Measure:
    player, tasks = place.player(engine), place.opened.train_tasks[:count]

    async def measured() -> float:
        started = time.perf_counter()
        played = await play_all(player, place.environments, tasks, samples=1, seed=0, concurrency=count)
        return sum(trajectory.sampled_tokens for trajectory in played) / (time.perf_counter() - started)

    return measured
