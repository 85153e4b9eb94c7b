"""The python_math environment: problems, splits, rewards, the busy tool, data files, arguments."""

import inspect
import json
import os
import random
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from miles_agents import Episode, Message, Reply
from miles_agents.checks.env import check_env, check_tasks, play
from miles_agents.contracts import EnvResources, ExecResult, ExecStatus
from miles_agents.envs.python_math import generate_problems
from miles_agents.envs.python_math import problems as problems_module
from miles_agents.envs.python_math.env import BUSY, INSTRUCTION, PythonMath
from miles_agents.errors import ConfigError, DataError, SandboxError
from miles_agents.registry import environments
from miles_agents.tools.sandboxes.scripted import ScriptedSandboxes
from miles_agents.types import Role, ToolCall

SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
SPLITS = ("train", "validation", "test")
LEVELS = (1, 2, 3)
SMALL = {"train_size": 20, "validation_size": 5, "test_size": 5}


def calculator(code):
    """What the interpreter prints for `print(<arithmetic>)`."""
    expression = code.removeprefix("print(").removesuffix(")")
    return ExecResult(status=ExecStatus.OK, stdout=f"{eval(expression, {'__builtins__': {}})}\n")


def lent(env, script=calculator, **options):
    sandboxes = ScriptedSandboxes(script, **options)
    env.bind(EnvResources(sandboxes=sandboxes))
    return env, sandboxes


def python(code, call_id="c0"):
    return ToolCall(id=call_id, name="python", arguments={"code": code}, raw="…")


def calls(*each):
    return Reply(text="…", calls=tuple(each))


# Problems


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_is_the_value_of_its_expression(level, split):
    for problem in generate_problems(level, split, 400, seed=5):
        assert eval(problem.expression, {"__builtins__": {}}) == problem.answer
        assert problem.answer >= 0
        assert problem.level == level


@pytest.mark.parametrize("level", LEVELS)
def test_a_question_says_exactly_the_numbers_of_its_expression_in_their_order(level):
    for problem in generate_problems(level, "train", 400):
        said = [int(word) for word in problem.question.replace(".", "").replace(",", "").split() if word.isdigit()]
        used = [int(word) for word in "".join(c if c.isdigit() else " " for c in problem.expression).split()]
        assert said == used


def test_levels_have_one_and_two_steps():
    for level, steps in ((1, 1), (2, 2), (3, 2)):
        for problem in generate_problems(level, "train", 200):
            assert sum(problem.expression.count(operator) for operator in "+-*") == steps
            assert problem.kind.count("_") == steps - 1


def test_no_question_is_in_two_splits_over_all_levels_and_seeds():
    texts = {
        split: {
            problem.question
            for level in LEVELS
            for seed in (0, 1, 12345)
            for problem in generate_problems(level, split, 1500, seed)
        }
        for split in SPLITS
    }
    assert all(len(found) > 2000 for found in texts.values())
    assert not texts["train"] & texts["validation"]
    assert not texts["train"] & texts["test"]
    assert not texts["validation"] & texts["test"]


@pytest.mark.parametrize("level", LEVELS)
def test_no_arithmetic_is_in_two_splits_in_other_words(level):
    used = {split: {p.expression for p in generate_problems(level, split, 3000)} for split in SPLITS}
    assert not used["train"] & (used["validation"] | used["test"])
    assert not used["validation"] & used["test"]


@pytest.mark.parametrize("level", LEVELS)
def test_no_question_is_twice_in_a_split(level):
    problems = generate_problems(level, "train", 8192)
    assert len({problem.question for problem in problems}) == 8192


def test_a_problem_that_comes_up_again_is_not_taken_twice(monkeypatch):
    draw = problems_module._draw
    expected = generate_problems(1, "train", 30)
    monkeypatch.setattr(problems_module, "_draw", lambda rng, *rest: draw(random.Random(rng.randrange(40)), *rest))
    assert len({problem.question for problem in generate_problems(1, "train", 20)}) == 20
    monkeypatch.undo()
    assert generate_problems(1, "train", 30) == expected


def test_problems_depend_on_their_arguments_only():
    first = generate_problems(2, "train", 50)
    assert generate_problems(2, "train", 50) == first
    assert generate_problems(2, "train", 80)[:50] == first
    assert generate_problems(2, "train", 50, seed=1) != first


def test_the_first_problem_never_changes():
    (problem,) = generate_problems(1, "train", 1)  # recorded once: results name tasks by their number
    assert problem.question == "Of 595 plates in a room, 340 were taken out. How many plates stayed?"
    assert (problem.expression, problem.answer, problem.kind) == ("595-340", 255, "sub")


@pytest.mark.parametrize(("level", "kinds"), [(1, 3), (2, 6)])
def test_every_kind_is_about_equally_common(level, kinds):
    counts = Counter(problem.kind for problem in generate_problems(level, "train", 6000))
    assert len(counts) == kinds
    # Binomial, n = 6000, p = 1/3 or 1/6: standard deviation at most 37; five of them and the split allowed for.
    assert all(abs(count - 6000 / kinds) < 200 for count in counts.values())


def test_the_vocabulary_is_small():
    words = {
        word
        for level in LEVELS
        for problem in generate_problems(level, "train", 2000)
        for word in problem.question.replace(",", "").replace(".", "").replace("?", "").split()
        if not word.isdigit()
    }
    assert len(words) < 120


@pytest.mark.parametrize("level", LEVELS)
def test_the_largest_split_is_generated_in_a_moment(level):
    started = time.perf_counter()
    generate_problems(level, "train", 8192)
    assert time.perf_counter() - started < 1.0  # 0.06 s on an idle machine


def test_unknown_levels_and_splits_are_refused():
    with pytest.raises(ValueError, match="level is 4; it can be 1, 2 or 3"):
        generate_problems(4, "train", 1)
    with pytest.raises(ValueError, match="split is 'dev'"):
        generate_problems(1, "dev", 1)


# Tasks and rewards


def test_it_is_registered_as_python_math():
    assert environments.get("python_math") is PythonMath


def test_tasks_are_sized_described_and_ask_only_the_question():
    env = PythonMath(level=2, train_size=30, validation_size=6, test_size=7)
    assert {split: len(env.tasks(split)) for split in SPLITS} == {"train": 30, "validation": 6, "test": 7}
    task, problem = env.tasks("test")[0], generate_problems(2, "test", 1)[0]
    assert task.prompt == (Message.user(problem.question),)
    assert task.answer == str(problem.answer)
    assert task.metadata["level"] == 2
    assert task.metadata["kind"] == problem.kind
    assert task.split == "test"


@pytest.mark.parametrize("level", LEVELS)
def test_the_default_splits_are_disjoint_and_identified(level):
    sizes = {split: len(tasks) for split, tasks in check_tasks(PythonMath(level=level)).items()}
    assert sizes == {"train": 8192, "validation": 256, "test": 512}


@pytest.mark.parametrize(
    ("content", "answer", "form"),
    [
        (r"\boxed{42}", 1.0, 1.0),
        (r"It is \fbox{42.0}.", 1.0, 1.0),
        (r"\boxed{41} or rather \boxed{42}", 1.0, 1.0),
        (r"\boxed{42} or rather \boxed{41}", 0.0, 1.0),
        (r"\boxed{forty-two}", 0.0, 1.0),
        (r"\boxed{}", 0.0, 0.0),
        (r"\boxed{42", 0.0, 0.0),
        (r"First \boxed{42}. Actually it is \boxed{", 0.0, 0.0),
        (r"<think>\boxed{42}</think>", 0.0, 0.0),
        ("The answer is 42.", 0.0, 0.0),
        (" ".join(map(str, range(100))), 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
async def test_rewards_are_strict_and_named(content, answer, form):
    env = PythonMath(**SMALL)
    task = env.tasks("train")[0]
    episode = Episode(task=type(task)(id="t", prompt=task.prompt, answer="42"), replies=[Reply.of(content)])
    assert await env.reward(episode) == {"answer": answer, "format": form}


async def test_weights_sum_the_rewards_and_set_their_range():
    env, _ = lent(PythonMath(level=1, answer_weight=0.8, format_weight=0.2, **SMALL))
    task = env.tasks("train")[0]
    assert env.reward_range == (0.0, 1.0)
    (right,) = await play(env, task, [Reply.of(f"\\boxed{{{task.answer}}}")], seed=0)
    (wrong,) = await play(env, task, [Reply.of("\\boxed{-1}")], seed=0)
    assert right.reward == pytest.approx(1.0, abs=1e-12)
    assert wrong.reward == pytest.approx(0.2, abs=1e-12)
    assert wrong.info["rewards"] == {"answer": 0.0, "format": 1.0}
    assert PythonMath(format_weight=-0.5).reward_range == (-0.5, 1.0)


async def test_scoring_is_fast():
    env = PythonMath(**SMALL)
    task = env.tasks("train")[0]
    episode = Episode(task=task, replies=[Reply.of("So the answer is " + f"\\boxed{{{task.answer}}}")])
    started = time.perf_counter()
    for _ in range(200):
        await env.reward(episode)
    assert (time.perf_counter() - started) / 200 < 1e-3  # 0.02 ms on an idle machine


# Episodes


@pytest.mark.parametrize("level", LEVELS)
async def test_it_keeps_the_contract_of_environments(level):
    env, sandboxes = lent(PythonMath(level=level, **SMALL))
    await check_env(env, tasks_per_split=5)
    assert all(sandbox.closed for sandbox in sandboxes.opened)


@pytest.mark.parametrize("level", LEVELS)
async def test_the_oracle_scores_full_on_every_task_and_computes_with_the_tool(level):
    env, sandboxes = lent(PythonMath(level=level, train_size=40, validation_size=5, test_size=5))
    for task in env.tasks("train"):
        results = await play(env, task, env.oracle(task), seed=3)
        assert results[-1].reward == 1.0
        assert results[-2].observation[0].text.strip() == task.answer
        assert results[-2].info["tool_events"][0].ok
    assert [call.code for call in sandboxes.opened[0].calls] == [
        f"print({env.tasks('train')[0].metadata['expression']})"
    ]


async def test_the_tool_is_python_with_one_argument():
    env, _ = lent(PythonMath(**SMALL))
    _, info = await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    (schema,) = info["tools"]
    assert schema["function"]["name"] == "python"
    assert list(schema["function"]["parameters"]["properties"]) == ["code"]
    await env.close()


async def busy_flags(env, seed, turns):
    """Whether each of so many calls, one a turn, was answered busy."""
    await env.reset(seed=seed, options={"task": env.tasks("train")[0]})
    flags = []
    for _ in range(turns):
        step = await env.step(calls(python("print(1)")))
        flags.append(step.observation[0].text == BUSY)
        assert step.info["tool_events"][0].ok is not flags[-1]
    await env.close()
    return flags


async def test_at_level_3_the_tool_is_busy_for_some_calls_and_never_twice_in_a_row():
    env, _ = lent(PythonMath(level=3, max_turns=10, **SMALL))
    episodes = [await busy_flags(env, seed, 8) for seed in range(250)]
    assert not any(first and second for flags in episodes for first, second in pairwise(flags))
    # 250 draws at p = 0.3: mean 75, standard deviation 7.2; five of them allowed.
    assert 39 < sum(flags[0] for flags in episodes) < 111


async def test_a_busy_answer_is_an_error_message_and_runs_nothing():
    env, sandboxes = lent(PythonMath(level=3, busy_probability=1.0, **SMALL))
    await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    step = await env.step(calls(python("print(1)")))
    assert step.observation[0].text == "Error: busy, try again"
    assert step.info["tool_events"][0].info == {"status": "busy"}
    assert sandboxes.opened[0].calls == []
    step = await env.step(calls(python("print(1)")))
    assert step.observation[0].text.strip() == "1"
    await env.close()


async def test_busy_answers_follow_the_seed_and_start_afresh_with_each_episode():
    env, _ = lent(PythonMath(level=3, max_turns=10, **SMALL))
    first = [await busy_flags(env, seed, 6) for seed in range(20)]
    other, _ = lent(PythonMath(level=3, max_turns=10, **SMALL))
    assert [await busy_flags(other, seed, 6) for seed in reversed(range(20))] == first[::-1]
    assert len({tuple(flags) for flags in first}) > 3


@pytest.mark.parametrize("level", [1, 2])
async def test_at_lower_levels_the_tool_is_never_busy(level):
    env, _ = lent(PythonMath(level=level, busy_probability=1.0, max_turns=10, **SMALL))
    assert not any(await busy_flags(env, 0, 8))


async def test_code_that_raises_or_hangs_is_shown_and_a_lost_sandbox_is_not():
    script = [
        ExecResult(status=ExecStatus.ERROR, stderr="Traceback …\nNameError: name 'x' is not defined\n"),
        ExecResult(status=ExecStatus.TIMEOUT, state_lost=True),
    ]
    env, _ = lent(PythonMath(level=1, **SMALL), script, lost_after=2)
    await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    step = await env.step(calls(python("print(x)")))
    assert "NameError" in step.observation[0].text
    assert not step.info["tool_events"][0].ok
    step = await env.step(calls(python("while True: pass")))
    assert step.info["tool_events"][0].info["status"] == "timeout"
    with pytest.raises(SandboxError):
        await env.step(calls(python("print(1)")))
    await env.close()


# Data files


def gsm8k_file(path):
    things = ["".join("abcdefghij"[int(digit)] for digit in f"{n:02}") for n in range(100)]  # no near-duplicates
    rows = [
        {"question": f"How many {thing}s are twice {n} {thing}s?", "answer": f"Twice {n}.\n#### {2 * n}"}
        for n, thing in enumerate(things)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


async def test_a_data_file_is_played_like_generated_problems(tmp_path):
    env, _ = lent(PythonMath(level=3, data=gsm8k_file(tmp_path / "sums.jsonl"), busy_probability=1.0))
    await check_env(env)
    task = env.tasks("train")[0]
    assert task.prompt == (Message.system(INSTRUCTION), Message.user("How many aas are twice 0 aas?"))
    assert task.metadata == {"kind": "data", "source": "sums.jsonl:1"}
    assert not any(await busy_flags(env, 0, 3))  # levels belong to generated problems


def test_sizes_take_the_first_rows_of_each_split(tmp_path):
    path = gsm8k_file(tmp_path / "sums.jsonl")
    whole, cut = PythonMath(data=path), PythonMath(data=path, train_size=3)
    assert cut.tasks("train") == whole.tasks("train")[:3]
    assert cut.tasks("test") == whole.tasks("test")


@pytest.mark.parametrize(("text", "system"), [(None, INSTRUCTION), ("", None), ("Be brief.", "Be brief.")])
def test_the_system_prompt_of_data_can_be_changed_or_left_out(tmp_path, text, system):
    env = PythonMath(data=gsm8k_file(tmp_path / "sums.jsonl"), system_prompt=text)
    roles = {message.role: message.text for message in env.tasks("train")[0].prompt}
    assert roles.get(Role.SYSTEM) == system


def test_the_system_prompt_of_generated_problems_is_none_unless_given():
    assert [m.role for m in PythonMath(**SMALL).tasks("train")[0].prompt] == ["user"]
    assert PythonMath(system_prompt="Hi.", **SMALL).tasks("train")[0].prompt[0] == Message.system("Hi.")


def test_messages_with_their_own_system_prompt_are_left_alone(tmp_path):
    messages = [{"role": "system", "content": "Own."}, {"role": "user", "content": "2+2?"}]
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": messages, "answer": 4}))
    env = PythonMath(data=str(tmp_path), question_column="prompt", system_prompt="Other.")
    assert env.tasks("test")[0].prompt == (Message.system("Own."), Message.user("2+2?"))


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}; set MILES_AGENTS_DATA to the data folder")
@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"data": "gsm8k"}, 1319),
        ({"data": "svamp", "question_column": ["Body", "Question"], "answer_column": "Answer"}, 1000),
        ({"data": "mawps", "question_column": "input", "answer_column": "target"}, 2065),
    ],
)
async def test_the_gold_answers_of_real_sets_score_full(options, size):
    env, _ = lent(PythonMath(**{**options, "data": str(SHARED / options["data"])}))
    tasks = env.tasks("test")
    assert len(tasks) == size
    for task in tasks:
        gold = await env.reward(Episode(task=task, replies=[Reply.of(f"\\boxed{{{task.answer}}}")]))
        off_by_one = await env.reward(Episode(task=task, replies=[Reply.of(f"\\boxed{{{task.answer}1}}")]))
        assert (gold["answer"], off_by_one["answer"]) == (1.0, 0.0)


# Arguments


def test_every_argument_is_typed_for_configuration_and_documented():
    hints = get_type_hints(PythonMath.__init__)
    hints.pop("return")
    assert hints.pop("question_column") is Any
    allowed = {int, float, bool, str, str | None, int | None}
    assert {name: hint for name, hint in hints.items() if hint not in allowed} == {}
    described = (inspect.getdoc(PythonMath) or "").partition("Args:")[2]
    assert [name for name in (*hints, "question_column") if f"\n    {name}: " not in described] == []


def test_the_outer_deadline_leaves_the_sandbox_time_to_stop_the_code():
    assert PythonMath(tool_timeout_s=7.0).tool_timeout_s > 7.0
    assert PythonMath(tool_timeout_s=7.0).all_tools()[0].timeout_s == 7.0
    assert PythonMath(max_output_chars=300).all_tools()[0].max_output_chars == 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 4}, r"env.level=4: it must be 1, 2 or 3"),
        ({"max_turns": 0}, r"env.max_turns=0: it must be at least 1"),
        ({"busy_probability": 1.5}, r"env.busy_probability=1.5: it must be between 0 and 1"),
        ({"busy_probability": float("nan")}, r"env.busy_probability=nan"),
        ({"train_size": 0}, r"env.train_size=0: it must be at least 1"),
        ({"tool_timeout_s": 0.0}, r"env.tool_timeout_s=0.0: it must be above 0"),
        ({"max_output_chars": 5}, r"env.max_output_chars=5"),
        ({"answer_weight": float("inf")}, r"env.answer_weight=inf: it must be a finite number"),
        ({"question_column": 3}, r"env.question_column is 3; give a name, or a list of names"),
        ({"question_column": []}, r"env.question_column is \[\]"),
        ({"question_column": ["a", 1]}, r"env.question_column is \['a', 1\]"),
        ({"level": 0, "max_turns": -1}, r"env.level=0.*; env.max_turns=-1"),
    ],
)
def test_wrong_arguments_say_what_to_type(options, message):
    with pytest.raises(ConfigError, match=message):
        PythonMath(**options)


def test_unknown_splits_and_missing_files_are_one_message():
    with pytest.raises(ConfigError, match=r"unknown split 'tset'\. Did you mean 'test'"):
        PythonMath().tasks("tset")
    with pytest.raises(DataError, match=r"no file or folder /nowhere/data\.jsonl"):
        PythonMath(data="/nowhere/data.jsonl").tasks("train")
