"""Wall time that a step spends on tools: 32 completions × 2 calls, each of which sleeps 50 ms."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from torch import nn

from benchmarks.measuring import Measure, Row, Settings, Table, interleaved
from benchmarks.runs import bare_run
from benchmarks.sleeping_env import SLEEP_S
from miles_agents.chat import ChatFormat
from miles_agents.engines.local.engine import LocalEngine
from miles_agents.engines.scripted import ScriptedEngine
from miles_agents.registry import engines
from miles_agents.types import Completion, GenerateRequest

LIMIT_S = 0.15
GROUPS, GROUP_SIZE = 4, 8
_CALLS = tuple(f'<tool_call>\n{{"name": "look", "arguments": {{"place": {place}}}}}\n</tool_call>' for place in (1, 2))


class ScriptedLooks(LocalEngine):
    """The local engine, weights and pushes included, whose completions come from a script.

    Each episode makes two calls, then answers; the answer is right for every second sibling, so that each group has
    something to learn from.
    """

    turns: ClassVar[tuple[str, ...]] = _CALLS
    _scripted: ScriptedEngine

    async def share(self, module: nn.Module) -> None:
        """Also read the chat format from the model's folder."""
        await super().share(module)
        chat = ChatFormat.from_folder(Path(str(module.name_or_path)))
        self._scripted = ScriptedEngine(
            _policy(self.turns), tokenizer=_Encoder(chat), context_length=self.context_length
        )

    async def generate(self, request: GenerateRequest) -> Completion:
        """The script's reply, sampled by the version that was pushed last."""
        self._scripted.set_version(self.version)
        return await self._scripted.generate(request)


class ScriptedPairs(ScriptedLooks):
    """Makes the two calls in one turn."""

    turns = ("\n".join(_CALLS),)


ENGINES = {"two turns of one call": "scripted_looks", "one turn of two calls": "scripted_pairs"}
engines.register("scripted_looks")(ScriptedLooks)
engines.register("scripted_pairs")(ScriptedPairs)


async def measure(settings: Settings) -> list[Table]:
    """The training loop with a scripted policy; the same seeds with sleeping and with instant tools."""
    measures: dict[str, Measure] = {}
    for how in ENGINES:
        measures[f"{how}, instant"] = step_time(settings, how, 0.0)
        measures[f"{how}, sleeping"] = step_time(settings, how, SLEEP_S)
    medians = await interleaved(measures, repeats=settings.repeats)
    in_turn_s = 2 * GROUPS * GROUP_SIZE * SLEEP_S
    rows: list[Row] = []
    for how in ENGINES:
        sleeping, instant = medians[f"{how}, sleeping"], medians[f"{how}, instant"]
        spent = sleeping - instant
        rows += [
            Row(name=f"step, {how}, instant tools", value=instant, unit="s"),
            Row(name=f"step, {how}, sleeping tools", value=sleeping, unit="s"),
            Row(name=f"on tools, {how}", value=spent, unit="s", ratio=spent / in_turn_s, against="one by one"),
        ]
    note = (
        f"claim: at most {LIMIT_S} s on tools; one by one, the {2 * GROUPS * GROUP_SIZE} sleeps take {in_turn_s:.1f} s"
    )
    return [Table(title="tool overlap", rows=rows, notes=(note,))]


def step_time(settings: Settings, how: str, sleep_s: float) -> Measure:
    """Median wall time of a training step whose scripted episodes make their two calls in this way."""
    words = [
        *settings.words(),
        "env=benchmarks.sleeping_env:Sleeper",
        f"env.sleep_s={sleep_s}",
        f"engine.name={ENGINES[how]}",
        f"rollout.groups_per_step={GROUPS}",
        f"rollout.group_size={GROUP_SIZE}",
        f"steps={settings.count(8, least=3)}",
    ]

    async def measured() -> float:
        rows = (await bare_run(words)).steps(first=2)  # the first step warms up
        if any(row["rollout/tool_calls"] != 2 or row["rollout/failed_episodes"] for row in rows):
            raise RuntimeError("an episode was lost or did not make its two calls")
        return statistics.median(row["time/step"] for row in rows)

    return measured


def _policy(turns: tuple[str, ...]) -> Callable[[GenerateRequest], str]:
    def reply(request: GenerateRequest) -> str:
        _, index, turn = request.request_id.rsplit("/", 2)
        if int(turn) < len(turns):
            return turns[int(turn)]
        return "yes" if int(index) % 2 else "no"

    return reply


class _Encoder:
    """The chat format, as the scripted engine's tokenizer."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self._chat.encode_reply(text, ended=False)]
