"""python_math in a real sandbox: the gold code computes the gold answers, episodes share nothing."""

import pytest

from miles_agents import Reply
from miles_agents.checks.env import check_env, play
from miles_agents.contracts import EnvResources
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.tools.sandboxes import NamespaceSandboxes, probe, refusal
from miles_agents.types import ToolCall

FOUND = probe()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


@pytest.fixture
async def env():
    async with NamespaceSandboxes(preload=()) as sandboxes:
        env = PythonMath(level=3, train_size=8, validation_size=2, test_size=2, tool_timeout_s=2.0)
        env.bind(EnvResources(sandboxes=sandboxes))
        yield env
        await env.close()


def python(*codes):
    calls = (ToolCall(id=f"c{n}", name="python", arguments={"code": code}, raw="…") for n, code in enumerate(codes))
    return Reply(text="…", calls=tuple(calls))


async def test_the_oracle_computes_every_answer(env):
    for task in env.tasks("train"):
        results = await play(env, task, env.oracle(task), seed=0)
        assert results[-2].observation[0].text == task.answer
        assert results[-1].reward == 1.0


async def test_it_keeps_the_contract_of_environments(env):
    await check_env(env, tasks_per_split=2)


async def test_variables_live_as_long_as_the_episode(env):
    env.busy_probability = 0.0
    task = env.tasks("train")[0]
    await env.reset(seed=0, options={"task": task})
    first = await env.step(python("x = 41", "print(x + 1)"))
    assert [message.text for message in first.observation] == ["(no output)", "42"]
    assert (await env.step(python("print(x)"))).observation[0].text == "41"
    await env.reset(seed=0, options={"task": task})
    step = await env.step(python("print(x)"))
    assert "NameError" in step.observation[0].text
    assert not step.info["tool_events"][0].ok


async def test_an_endless_loop_is_a_timeout_and_the_episode_goes_on(env):
    env.busy_probability = 0.0
    await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    step = await env.step(python("while True: pass"))
    assert step.observation[0].text.startswith("Error: timed out after 2 s")
    assert (await env.step(python("print(1)"))).observation[0].text == "1"
