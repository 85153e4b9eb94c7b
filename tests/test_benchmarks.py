"""The benchmarks' own arithmetic, and a quick look at whether they still fit the package."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import trl_step
from benchmarks.__main__ import BENCHMARKS, figure, parse_words
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.altered_results import ALTERED, FOLLOWED, AlteredMath, altered
from benchmarks.controls import main as controls_main
from benchmarks.measuring import Settings, compared, interleaved
from benchmarks.shuffled_rewards import NAME, ShuffledRewards, shuffled_within_groups
from benchmarks.sleeping_env import Sleeper, SleepingMath, printed_value
from miles_agents import registry
from miles_agents.contracts import EnvResources, ExecResult, ExecStatus, ToolContext
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.tools.sandboxes.scripted import ScriptedSandboxes
from miles_agents.types import Batch, Reply, ToolCall, TrainingSample, collate_samples

ROOT = Path(__file__).parents[1]


async def test_repetitions_take_turns_and_the_first_round_is_not_counted():
    order: list[str] = []
    values = {"a": iter([99.0, 1.0, 5.0, 3.0]), "b": iter([99.0, 10.0, 30.0, 20.0])}

    def measure(name):
        async def measured() -> float:
            order.append(name)
            return next(values[name])

        return measured

    medians = await interleaved({name: measure(name) for name in values}, repeats=3)
    assert medians == {"a": 3.0, "b": 20.0}
    assert order == ["a", "b"] * 4


def test_every_row_but_the_baseline_has_a_ratio_to_it():
    rows = compared({"slow": 20.0, "fast": 50.0}, "calls/s", baseline="slow")
    assert [(row.name, row.ratio, row.against) for row in rows] == [("slow", None, ""), ("fast", 2.5, "slow")]


def test_words_choose_benchmarks_and_settings():
    names, settings = parse_words(["rollout", "threads=1", "scale=0.5", "model=smollm2"])
    assert names == ["rollout"]
    assert settings == Settings(threads=1, scale=0.5, model="smollm2")
    assert settings.words() == ["cluster.threads=1", "model=smollm2"]
    assert settings.count(5, least=4) == 4
    assert parse_words([])[0] == BENCHMARKS


@pytest.mark.parametrize("word", ["rolout", "repeat=3", "repeats=0", "scale=0", "threads=0", "repeats=many"])
def test_a_word_that_means_nothing_is_refused(word):
    with pytest.raises(ValueError, match=word.partition("=")[0] if "repeats=" not in word else "repeats|invalid"):
        parse_words([word])


def test_figures_have_three_digits_and_no_exponent():
    assert [figure(value) for value in (12345.6, 99.94, 0.01234, -0.2)] == ["12,346", "99.9", "0.0123", "-0.2"]


@pytest.mark.parametrize(("main", "module"), [(benchmarks_main, "benchmarks"), (controls_main, "benchmarks.controls")])
def test_help_is_printed(main, module, capsys):
    assert main(["--help"]) == 0
    assert f"python -m {module}" in capsys.readouterr().out


def test_an_unknown_benchmark_is_named_with_what_there_is():
    done = subprocess.run([sys.executable, "-m", "benchmarks", "rolout"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown: rolout" in done.stderr
    assert "rollout" in done.stderr


def test_controls_refuse_what_they_cannot_run(capsys, tmp_path):
    assert controls_main(["env=gsm8k"]) == 2
    assert "python_math" in capsys.readouterr().err
    assert controls_main([f"model={tmp_path / 'nothing'}"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_the_forked_interpreter_runs_what_it_is_given():
    program = ROOT / "benchmarks" / "forked_interpreter.py"
    ran = subprocess.run([sys.executable, "-I", program, "3", "print(7*6)"], capture_output=True, text=True)
    assert float(ran.stdout) > 0
    silent = subprocess.run([sys.executable, "-I", program, "3", "x=1"], capture_output=True, text=True)
    assert silent.returncode == 1


# ---------------------------------------------------------------------- sleeping tools


def test_the_sleeping_interpreter_computes_what_print_would_show():
    assert printed_value("print((214+350)*12)") == 6768
    assert printed_value(" print(9-2-3)\n") == 4
    assert printed_value("print(-3*2)") == -6


@pytest.mark.parametrize("code", ["x=1+1", "print(2**3)", "print(1/2)", "print(open('x'))", "print(1);print(2)", ""])
def test_the_sleeping_interpreter_refuses_everything_else(code):
    with pytest.raises((ValueError, SyntaxError)):
        printed_value(code)


async def test_the_sleeping_tool_looks_like_the_real_one_and_sleeps_as_long_as_configured():
    env, real = SleepingMath(level=2), PythonMath(level=2)
    env.sleep_s = 0.02
    (tool,) = env.all_tools()
    assert tool.schema() == real.all_tools()[0].schema()
    assert not tool.needs_sandbox
    started = time.perf_counter()
    call = ToolCall(id="call_0", name="python", arguments={"code": "print(12*12)"}, raw="")
    output = await env.call_tool(tool, call, ToolContext())
    assert time.perf_counter() - started >= 0.02
    assert (output.text, output.ok) == ("144", True)
    assert not (await tool.call({"code": "print(a)"}, ToolContext())).ok


async def test_oracle_solves_the_sleeping_environment():
    env = SleepingMath(level=3)
    env.sleep_s = 0.0
    for task in env.tasks("test")[:5]:
        await env.reset(seed=1, options={"task": task})
        oracle = env.oracle(task)
        reply = next(oracle)
        while not (result := await env.step(reply)).terminated:
            reply = oracle.send(result.observation)
        assert result.info["rewards"]["answer"] == 1.0


# ---------------------------------------------------------------------- controls


@given(
    st.integers(min_value=-(10**9), max_value=10**9),
    st.floats(min_value=0, max_value=1, exclude_max=True),
    st.integers(min_value=1, max_value=8),
)
def test_an_altered_number_differs_in_one_digit_and_stays_a_number(number, place, step):
    text = str(number)
    changed = altered(text, place=place, step=step)
    assert len(changed) == len(text)
    assert sum(a != b for a, b in zip(text, changed, strict=True)) == 1
    assert str(int(changed)) == changed


async def _altered_episode(answer_of) -> dict[str, float]:
    """Compute 6*7 with the real code path, then answer; `answer_of` sees what the tool said."""
    sandboxes = ScriptedSandboxes(lambda code: ExecResult(status=ExecStatus.OK, stdout="42\n"))
    env = AlteredMath(level=2)
    env.bind(EnvResources(sandboxes=sandboxes))
    task = env.tasks("test")[0]
    await env.reset(seed=3, options={"task": task})
    oracle = env.oracle(task)
    result = await env.step(next(oracle))
    shown = result.observation[0].text
    assert shown != "42"
    assert len(shown) == 2
    result = await env.step(Reply.of(f"\\boxed{{{answer_of(shown, task)}}}"))
    assert result.terminated
    assert result.reward == result.info["rewards"]["answer"]  # the two new rewards weigh nothing
    return result.info["rewards"]


async def test_an_answer_that_follows_the_altered_result_is_told_from_one_that_does_not():
    followed = await _altered_episode(lambda shown, task: shown)
    assert (followed[ALTERED], followed[FOLLOWED], followed["answer"]) == (1.0, 1.0, 0.0)
    right = await _altered_episode(lambda shown, task: task.answer)
    assert (right[ALTERED], right[FOLLOWED], right["answer"]) == (1.0, 0.0, 1.0)


def _batch() -> Batch:
    """Two groups of four trajectories; the first trajectory of group `a` has two samples."""
    ids = [("a", "a0"), ("a", "a0"), *(("a", f"a{n}") for n in (1, 2, 3)), *(("b", f"b{n}") for n in range(4))]
    rewards = {"a0": 1.0, "a1": 2.0, "a2": 3.0, "a3": 4.0, "b0": 10.0, "b1": 20.0, "b2": 30.0, "b3": 40.0}
    one = TrainingSample(
        ids=np.array([1, 2], np.int32),
        mask=np.array([0, 1], np.int8),
        logprobs=np.array([0, -1], np.float32),
        versions=np.zeros(2, np.int32),
        turn_index=np.zeros(2, np.int32),
    )
    return collate_samples(
        [one] * len(ids),
        group_ids=[group for group, _ in ids],
        trajectory_ids=[name for _, name in ids],
        rewards=[rewards[name] for _, name in ids],
    )


def test_rewards_are_shuffled_within_their_group_alone():
    batch, rng = _batch(), np.random.default_rng(0)
    changed = 0
    for _ in range(20):
        rewards = shuffled_within_groups(batch, rng)
        assert rewards[0] == rewards[1]  # samples of one trajectory
        assert sorted(rewards[1:5]) == [1.0, 2.0, 3.0, 4.0]
        assert sorted(rewards[5:]) == [10.0, 20.0, 30.0, 40.0]
        changed += bool((rewards != batch.rewards).any())
    assert changed >= 18  # the identity of both groups at once has probability 1/576


def test_the_shuffled_algorithm_is_grpo_on_the_permuted_rewards():
    assert registry.algorithms.get(NAME) is ShuffledRewards
    batch, plain = _batch(), _batch()
    ShuffledRewards().advantages(batch)
    registry.algorithms.get("grpo")().advantages(plain)
    by_reward = {float(r): float(a) for r, a in zip(plain.rewards, plain.advantages[1::2], strict=True)}
    # Group a's baseline counts its trajectory of two samples once, whoever has which reward.
    expected = [by_reward[float(reward)] for reward in batch.rewards]
    np.testing.assert_allclose(batch.advantages[1::2], expected, rtol=1e-6)


# ---------------------------------------------------------------------- against the package


async def test_a_bare_run_gives_a_row_per_step(tiny_model):
    from benchmarks.runs import bare_run

    record = await bare_run(
        [
            "env=benchmarks.sleeping_env:SleepingMath",
            "env.sleep_s=0",
            f"model={tiny_model}",
            "steps=2",
            "rollout.groups_per_step=2",
            "rollout.group_size=2",
            "rollout.max_new_tokens=4",
            "cluster.threads=1",
        ]
    )
    steps = record.steps()
    assert len(steps) == 2
    assert all(step["rollout/episodes"] == 4 and step["time/step"] > 0 for step in steps)
    assert len(record.steps(first=2)) == 1
    assert record.summary["steps"] == 2


@pytest.mark.parametrize("how", ["two turns of one call", "one turn of two calls"])
async def test_a_scripted_step_makes_two_calls_an_episode_and_they_overlap(tiny_model, monkeypatch, how):
    from benchmarks import sleeping_env, tool_overlap

    running, most, calls = 0, 0, 0

    async def sleep(seconds: float) -> None:
        nonlocal running, most, calls
        running, calls = running + 1, calls + 1
        most = max(most, running)
        for _ in range(40):  # a call waits a while for all 32 episodes to be calling at once
            if most >= 32:
                break
            await asyncio.sleep(0.005)
        running -= 1

    monkeypatch.setattr(sleeping_env, "asyncio", SimpleNamespace(sleep=sleep))
    settings = Settings(scale=0.1, threads=1, model=str(tiny_model))
    assert await tool_overlap.step_time(settings, how, 1.0)() > 0
    assert calls >= 3 * 64  # three steps of 32 episodes × 2 calls, and the evaluations before and after
    assert most >= 32


def test_the_breakdown_takes_medians_over_steps():
    from benchmarks.main_job import breakdown

    def step(whole, wait):
        return {
            "time/step": whole,
            "time/wait_for_rollouts": wait,
            "time/train": 0.5,
            "throughput/tool_seconds": 4.0,
            "throughput/sampled_tokens_per_s": 1000.0,
        }

    rows = {row.name: row for row in breakdown([step(1.0, 0.4), step(2.0, 1.0), step(9.0, 8.0)])}
    assert rows["step"].value == 2.0
    assert (rows["wait for rollouts"].value, rows["wait for rollouts"].ratio) == (1.0, 0.5)
    assert rows["push weights"].value == 0.0  # a step without an update has no push lap
    assert rows["sampled tokens"].value == statistics.median([1000.0])


def test_without_trl_the_reason_is_printed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install" in str(trl_step.missing())


def test_a_sleeper_task_is_answered_by_yes():
    env = Sleeper()
    assert {task.answer for task in env.tasks("train")} == {"yes"}
    assert env.sleep_s == 0.05
