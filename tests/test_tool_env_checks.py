"""The conformance suite of environments: it passes what keeps the contract and names what does not."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from miles_agents import Message, Reply, Task, ToolEnv, ToolOutput, tool
from miles_agents.checks.env import check_env, play
from miles_agents.contracts import StepResult
from miles_agents.errors import UsageError
from miles_agents.registry import load_object
from miles_agents.types import ToolCall

EXAMPLE = Path(__file__).parents[1] / "examples" / "my_env.py"


class Doubling(ToolEnv):
    """A sound environment that the faulty ones below spoil in one place each."""

    splits = ("train", "test")

    @tool
    async def double(self, n: int) -> int:
        """Double it."""
        return 2 * n

    def tasks(self, split):
        for n in range(4 if split == "train" else 2):
            number = n + (0 if split == "train" else 100)
            prompt = (Message.user(f"Twice {number}?"),)
            yield Task(id=f"{split}-{n}", prompt=prompt, answer=str(2 * number), metadata={"n": number}, split=split)

    def reward(self, episode):
        return float(episode.final.content == episode.task.answer)

    def oracle(self, task):
        call = ToolCall(id="c0", name="double", arguments={"n": task.metadata["n"]}, raw="…")
        observation = yield Reply(text="…", calls=(call,))
        yield Reply.of(observation[0].text)


async def test_a_sound_environment_passes():
    await check_env(Doubling())


async def test_the_example_of_the_readme_passes_and_its_oracle_scores_full():
    weekdays = load_object(f"{EXAMPLE}:Weekdays")

    class WithOracle(weekdays):
        def oracle(self, task):
            day = task.id.removeprefix("weekday-of-")
            call = ToolCall(id="c0", name="calendar", arguments={"day": day}, raw="…")
            observation = yield Reply(text="…", calls=(call,))
            yield Reply.of(observation[0].text)

    await check_env(weekdays())
    await check_env(WithOracle())
    sizes = {split: len(list(weekdays().tasks(split))) for split in weekdays.splits}
    assert sizes == {"train": 2000, "validation": 2000, "test": 2000}


def test_the_example_fits_on_a_screen():
    code = [line for line in EXAMPLE.read_text().splitlines() if line.strip() and '"""' not in line]
    assert len(code) <= 20


class SharedIds(Doubling):
    def tasks(self, split):
        return [Task(id="same", prompt=(Message.user(split),), split=split)]


class SharedPrompts(Doubling):
    def tasks(self, split):
        return [Task(id=split, prompt=(Message.user("Twice 1?"),), answer="2", metadata={"n": 1}, split=split)]


class WrongSplit(Doubling):
    def tasks(self, split):
        return list(super().tasks("train"))


class Shuffled(Doubling):
    def tasks(self, split):
        tasks = list(super().tasks(split))
        self.times = getattr(self, "times", 0) + 1
        return tasks if self.times % 2 else tasks[::-1]


class Empty(Doubling):
    def tasks(self, split):
        return []


class Unserialisable(Doubling):
    def tasks(self, split):
        return [Task(id=split, prompt=(Message.user(split),), answer={1, 2}, split=split)]


class Generous(Doubling):
    def reward(self, episode):
        return 1.0


class OutOfRange(Doubling):
    def reward(self, episode):
        return 2 * super().reward(episode)


class HalfOracle(Doubling):
    def oracle(self, task):
        return [Reply.of("I forgot")]


class Silent(Doubling):
    def oracle(self, task):
        return [Reply(text="…", calls=(ToolCall(id="c0", name="double", arguments={"n": 1}, raw="…"),))]


class Global(Doubling):
    def reward(self, episode):
        random.random()
        return super().reward(episode)


class GlobalNumpy(Doubling):
    def reward(self, episode):
        np.random.rand()
        return super().reward(episode)


class Unseeded(Doubling):
    async def call_tool(self, tool, call, context):
        return ToolOutput(f"{await super().call_tool(tool, call, context)} {np.random.default_rng().random()}")

    def oracle(self, task):
        call = ToolCall(id="c0", name="double", arguments={"n": 1}, raw="…")
        return [Reply(text="…", calls=(call,)), Reply.of(task.answer)]


class RunsBadCalls(Doubling):
    async def step(self, action):
        mended = [
            replace(call, name="double", arguments=call.arguments or {"n": 1}, error=None) for call in action.calls
        ]
        return await super().step(replace(action, calls=tuple(mended)))


class RunsBadCallsQuietly(RunsBadCalls):
    async def step(self, action):
        result = await super().step(action)
        events = tuple(replace(event, ok=False) for event in result.info["tool_events"])
        return result._replace(info={**result.info, "tool_events": events})


class ReportsBadCallsAsFine(Doubling):
    async def step(self, action):
        result = await super().step(action)
        events = tuple(replace(event, ok=True) for event in result.info["tool_events"])
        return result._replace(info={**result.info, "tool_events": events})


class RaisesOnBadCalls(Doubling):
    async def step(self, action):
        if any(call.error for call in action.calls):
            raise UsageError("bad call")
        return await super().step(action)


class ForgetsIds(Doubling):
    async def step(self, action):
        result = await super().step(action)
        return result._replace(observation=tuple(Message.tool(m.text) for m in result.observation))


class NeverEnds(Doubling):
    async def step(self, action):
        self._current()
        return StepResult((), 0.0, False, False, {})


class StepsForEver(Doubling):
    def _current(self):
        return self._episode or super()._current()

    async def close(self):
        """Frees everything, but keeps the episode."""
        episode = self._episode
        await super().close()
        self._episode = episode


class ForgetsReason(Doubling):
    async def truncate(self, reason):
        result = await super().truncate(reason)
        return result._replace(info={**result.info, "truncated_by": "something"})


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (SharedIds, "task id 'same' is used twice"),
        (SharedPrompts, "the same prompt is in split 'train' and in 'test'"),
        (WrongSplit, r"of tasks\('test'\) says split='train'"),
        (Shuffled, "another order, the second time"),
        (Empty, "gave none"),
        (Unserialisable, "cannot be written as JSON"),
        (Generous, "junk '' scores 1.0"),
        (OutOfRange, "reward 2.0 is outside 0.0…1.0"),
        (HalfOracle, "the oracle scores 0.0, not 1.0"),
        (Silent, "the oracle's replies do not end the episode"),
        (Global, "global random generator"),
        (GlobalNumpy, "global random generator"),
        (Unseeded, "seed 0 gave two different episodes"),
        (RunsBadCalls, "must have ok=False"),
        (RunsBadCallsQuietly, r"bad calls were executed: \['bad_0', 'bad_1'\]"),
        (ReportsBadCallsAsFine, "must have ok=False"),
        (RaisesOnBadCalls, "must be answered, not raise"),
        (ForgetsIds, "were answered under the ids"),
        (NeverEnds, "never end it"),
        (StepsForEver, r"must raise UsageError; it went on"),
        (ForgetsReason, "must be the reason"),
    ],
)
async def test_each_fault_is_named(faulty, message):
    with pytest.raises(AssertionError, match=message):
        await check_env(faulty())


async def test_play_sends_observations_to_a_generator_and_stops_with_it():
    env = Doubling()
    task = next(iter(env.tasks("test")))
    results = await play(env, task, env.oracle(task), seed=0)
    assert [message.text for message in results[0].observation] == ["200"]
    assert (results[-1].reward, results[-1].terminated) == (1.0, True)
    assert await play(env, task, [], seed=0) == []
    await env.close()
