"""`code`: its tasks, how solutions are read, data files, and episodes in a real sandbox."""

import json
import shutil
from pathlib import Path

import pytest

from miles_agents import Reply
from miles_agents.checks.env import check_env, check_tasks, play
from miles_agents.contracts import EnvResources
from miles_agents.envs.code.checks import read_check, same_output, same_value
from miles_agents.envs.code.env import Code, extract_code, submitted_code
from miles_agents.envs.code.harness import encode_value
from miles_agents.envs.code.templates import TEMPLATES
from miles_agents.errors import ConfigError, DataError
from miles_agents.tools.sandboxes import NamespaceSandboxes, ScriptedSandboxes, probe, refusal
from miles_agents.types import ToolCall

FOUND = probe()
DATA = Path(__file__).parent / "data" / "code" / "problems.jsonl"
in_sandbox = [pytest.mark.sandbox, pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))]


@pytest.fixture
async def sandboxes():
    async with NamespaceSandboxes(preload=()) as provider:
        yield provider


def bound(sandboxes, **settings):
    env = Code(**settings)
    env.bind(EnvResources(sandboxes=sandboxes))
    return env


def code(text):
    return Reply.of(f"Here it is.\n\n```python\n{text}\n```\n")


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_the_generated_tasks_are_the_same_every_time_and_in_one_split_each():
    tasks = check_tasks(Code())
    assert {split: len(each) for split, each in tasks.items()} == {"train": 847, "validation": 96, "test": 115}
    points = {split: {task.id.partition("/")[2] for task in each} for split, each in tasks.items()}
    assert not points["train"] & points["validation"]
    assert not (points["train"] | points["validation"]) & points["test"]
    for each in tasks.values():
        assert {task.metadata["template"] for task in each} == {template.name for template in TEMPLATES}
    assert len(TEMPLATES) == 12


def test_hidden_tests_are_not_in_the_prompt_and_examples_are():
    for task in Code(train_size=40).tasks("train"):
        shown = task.prompt[-1].text
        assert len(task.answer["tests"]) == 10
        assert len(task.answer["examples"]) == 2
        for row in task.answer["examples"]:
            assert (repr(row["args"][0]) if "args" in row else row["stdin"].strip()) in shown
        assert not any(row in task.answer["examples"] for row in task.answer["tests"])


def test_expected_values_are_those_worked_out_by_hand():
    by_name = {template.name: template for template in TEMPLATES}
    assert by_name["multiples_sum"].solve(10, a=3, b=5) == 3 + 5 + 6 + 9
    assert by_name["shift_letters"].solve("aZ.b", shift=1, step=2) == "bC.g"  # a+1, Z+3, b+5
    assert by_name["encode_runs"].solve("aaab", least=3, mark="*") == "3*ab"
    assert by_name["best_window"].solve([1, 9, 2, 8], width=2, skip=2) == 17  # 1+2, 9+8
    assert by_name["group_by_remainder"].solve([5, -1, 2], modulus=3, offset=1) == {"0": [-1, 2, 5]}
    assert by_name["digit_game"].solve(4, base=10, power=2) == 8  # 4 16 37 58 89 145 42 20 4
    assert by_name["checked_mean"].solve([1.0, 2.0], low=-9, high=9) == 1.5
    assert by_name["smooth"].solve([0.0, 10.0, 10.0], percent=50, drop=1) == [5.0, 7.5]
    assert by_name["rotate_rings"].solve([[1, 2], [3, 4]], turns=1, add=10) == [[13, 11], [14, 12]]
    assert by_name["tally_lines"].solve("b:1\na: 5\nb :9\nx;9\nc:1\n", separator=":", least=2) == "b 10\na 5\n"
    assert by_name["countdown"].solve("7\n", step=3, word="end") == "7\n4\n1\nend\n"
    assert by_name["column_sums"].solve("1 1\n2 3\n4 9\n", skip=1, modulus=5) == "1 2\n"


def test_values_out_of_range_are_refused():
    with pytest.raises(ConfigError, match=r"env\.tests=0: it must be from 1 to 200; env\.test_size=0"):
        Code(tests=0, test_size=0)
    with pytest.raises(ConfigError, match=r"env\.total_timeout_s=0"):
        Code(total_timeout_s=0)
    with pytest.raises(ConfigError, match="unknown split 'tests'"):
        Code().tasks("tests")


# --- reading a solution -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\na = 1\n```", "a = 1"),
        ("```py\na = 1\n```\nor better\n```\nb = 2\n\nc = 3\n```\nDone.", "b = 2\n\nc = 3"),
        ("````python\na = '''\n```\n'''\n````", "a = '''\n```\n'''"),
        ("```python\na = 1\n```\n```python\nb = ", None),
        ("```python\na = 1\n```\n```bash\nls\n```", None),
        ("a = 1", None),
        ("`a = 1`", None),
        ("", None),
    ],
)
def test_the_last_closed_python_block_is_the_solution(text, found):
    assert extract_code(text) == found


def test_a_submission_is_code_with_or_without_a_fence():
    assert submitted_code("a = 1") == "a = 1"
    assert submitted_code("```python\na = 1\n```") == "a = 1"


# --- comparing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "printed", "tolerance", "same"),
    [
        ("1 2\n", "1 2", 0, True),
        ("1 2\n", "1 2  \r\n\n\n", 0, True),
        ("1\n\n2", "1\n2", 0, False),
        ("", "\n \n", 0, True),
        ("", "0", 0, False),
        ("1 2", "1  2", 0, False),
        ("0.3333 x", "0.33333 x", 1e-3, True),
        ("0.3333 x", "0.33333 y", 1e-3, False),
        ("0.3333", "0.33333 x", 1e-3, False),
        ("nan", "nan", 1e-3, True),
    ],
)
def test_outputs_are_compared_line_by_line(expected, printed, tolerance, same):
    assert same_output(expected, printed, tolerance) is same


def test_what_came_back_in_a_form_no_harness_writes_equals_nothing():
    forged = [{}, {"i": 5}, {"i": "5"}, {"i": "0x7"}, {"x": []}, {"i": "0x5", "f": "0x1p0"}, [5], "5", 5, {"d": [[1]]}]
    assert [same_value(5, each) for each in forged] == [False, False, True, *[False] * 7]
    assert not any(same_value({"a": 1}, each) for each in (*forged, {"d": [["a"]]}, {"d": {"a": 1}}))
    twice = {"d": [["a", {"i": "0x1"}], ["a", {"i": "0x1"}]]}
    assert not same_value({"a": 1, "b": 2}, twice)
    assert not same_value({1, 2}, {"s": [{"i": "0x1"}]})
    assert same_value({1, 2}, {"s": [{"i": "0x2"}, {"i": "0x1"}]})
    assert not same_value(10**400, {"f": "0x1p+1"}, 0.1)
    assert not same_value(1.0, {"f": "0x1p+99999"}, 0.1)


def test_comparing_takes_time_by_the_size_of_what_is_expected():
    enormous = {"s": [{"i": hex(n * (2**61 - 1))} for n in range(50_000)]}  # equal hashes, were they ever put in a set
    assert not same_value({1, 2}, enormous)
    assert not same_value([1], [{"i": "0x1"}] * 10**6)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"args": [1]}, "says what must come of it"),
        ({"arg": [1], "expected": 1}, "has no 'arg'. Did you mean 'args'"),
        ({"stdin": "", "expected": 1}, "has 'stdout' and nothing else"),
        ({"stdin": "", "args": [], "stdout": ""}, "does not go together"),
        ({"args": [], "raises": "E", "expected": 1}, "has neither 'expected' nor 'stdout'"),
        ({"args": 1, "expected": 1}, "'args' of a test is a list"),
        ({"args": [], "stdout": 1}, "'stdout' of a test is 1, not text"),
        ("assert f(x) == 1", "assert NAME"),
        ("assert __import__('os').system('ls') == 1", "assert NAME"),
        ("print(1)", "assert NAME"),
        (7, "a test is an object or an assert statement"),
    ],
)
def test_a_test_of_no_known_form_is_named(row, message):
    with pytest.raises(DataError, match="place: .*") as caught:
        read_check(row, "place")
    assert message in str(caught.value)


# --- data files -------------------------------------------------------------------------------------------------------


def test_a_file_is_divided_by_its_prompts(tmp_path):
    rows = [
        {"prompt": f"Return {n}.", "entry_point": "f", "tests": [{"expected": n}], "solution": "x"} for n in range(100)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rows[:5]]))
    with pytest.raises(AssertionError, match="is used twice"):
        check_tasks_of_ids(Code(data=str(file)))
    sizes = {split: len(Code(data=str(file)).tasks(split)) for split in Code.splits}
    assert sum(sizes.values()) == 105
    assert all(sizes[split] > 2 for split in sizes)


def check_tasks_of_ids(env):
    """Equal prompts are different tasks by their line; only the same prompt twice would give equal texts."""
    texts = [task.prompt[-1].text for split in env.splits for task in env.tasks(split)]
    assert len(texts) == len(set(texts)), "a prompt is used twice"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "broken JSON"),
        ("[1]", "expected an object"),
        ({"prompt": "p", "tests": []}, "'tests' is a list of at least one test"),
        ({"tests": [{"stdin": "", "stdout": ""}]}, "has no 'prompt'"),
        ({"prompt": "p", "tests": [{"args": [], "expected": 1}]}, "without by stdin"),
        ({"prompt": "p", "entry_point": "f", "tests": [{"stdin": "", "stdout": ""}]}, "tested by args and kwargs"),
        ({"prompt": "p", "entry": "f", "tests": [1]}, "Did you mean 'entry_point'"),
        ({"prompt": "p", "float_tolerance": "x", "tests": [1]}, "'float_tolerance' is 'x'"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path, row, message):
    file = tmp_path / "train.jsonl"
    good = {"prompt": "q", "entry_point": "f", "tests": [{"expected": 1}]}
    file.write_text(json.dumps(good) + "\n" + (row if isinstance(row, str) else json.dumps(row)) + "\n")
    with pytest.raises(DataError, match=r"train\.jsonl:2") as caught:
        Code(data=str(tmp_path)).tasks("train")
    assert message in str(caught.value)


def test_a_missing_file_and_another_format_are_refused(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        Code(data=str(tmp_path / "none")).tasks("train")
    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"name it \.jsonl"):
        Code(data=str(tmp_path)).tasks("train")


# --- episodes ---------------------------------------------------------------------------------------------------------


async def test_no_code_opens_no_sandbox():
    provider = ScriptedSandboxes.printing("")
    env = bound(provider)
    task = env.tasks("train")[0]
    for reply in (Reply.of("I cannot."), Reply.of("```python\nunfinished"), code("x" * 200_000)):
        results = await play(env, task, [reply], seed=0)
        assert results[-1].info["rewards"] == {"tests": 0.0, "fraction": 0.0}
    assert provider.opened == []


class TestInASandbox:
    pytestmark = in_sandbox

    async def test_it_keeps_the_contract_of_environments(self, sandboxes):
        await check_env(bound(sandboxes), tasks_per_split=2)

    async def test_every_template_is_solved_by_its_reference_in_every_split(self, sandboxes):
        env = bound(sandboxes, tests=6)
        for split in env.splits:
            firsts = {task.metadata["template"]: task for task in reversed(env.tasks(split))}
            for task in firsts.values():
                results = await play(env, task, env.oracle(task), seed=0)
                assert results[-1].info["rewards"] == {"tests": 1.0, "fraction": 1.0}, task.id

    async def test_the_share_of_passed_tests_is_recorded_and_weighs_nothing(self, sandboxes):
        env = bound(sandboxes)
        task = next(task for task in env.tasks("train") if task.metadata["template"] == "multiples_sum")
        results = await play(env, task, [code("def sum_of_multiples(n):\n    return 0")], seed=0)
        # of 12 tests one has the answer 0: that of n = 0
        assert results[-1].info["rewards"] == {"tests": 0.0, "fraction": pytest.approx(1 / 12)}
        assert results[-1].reward == 0.0
        env = bound(sandboxes, fraction_weight=0.5)
        results = await play(env, task, [code("def sum_of_multiples(n):\n    return 0")], seed=0)
        assert results[-1].reward == pytest.approx(0.5 / 12)
        assert env.reward_range == (0.0, 1.5)

    async def test_code_may_be_tried_first_and_submitted_by_the_tool(self, sandboxes):
        env = bound(sandboxes)
        task = env.tasks("test")[0]
        tried = ToolCall(id="a", name="python", arguments={"code": "print(6 * 7)"}, raw="…")
        handed_in = ToolCall(id="b", name="submit", arguments={"answer": task.answer["solution"]}, raw="…")
        replies = [Reply(text="…", calls=(tried,)), Reply(text="…", calls=(handed_in,))]
        results = await play(env, task, replies, seed=0)
        assert results[0].observation[0].text == "42"
        assert results[-1].terminated
        assert results[-1].reward == 1.0

    async def test_problems_of_a_file_are_solved_by_their_solutions_alone(self, sandboxes, tmp_path):
        for name in ("train", "validation", "test"):  # equal files: each problem is kept for the test split
            shutil.copy(DATA, tmp_path / f"{name}.jsonl")
        env = bound(sandboxes, data=str(tmp_path))
        with pytest.raises(DataError, match="no row falls into split 'train'"):
            env.tasks("train")
        tasks = env.tasks("test")
        assert [task.id for task in tasks][:2] == ["test/test.jsonl:1", "test/thirds"]
        assert "add(2, 2) == 4" in tasks[0].prompt[-1].text
        assert "Input:\n```\n1\nxyz\n```" in tasks[3].prompt[-1].text
        for task in tasks:
            assert (await play(env, task, env.oracle(task), seed=0))[-1].reward == 1.0, task.id
            other = tasks[0] if task is not tasks[0] else tasks[1]
            assert (await play(env, task, env.oracle(other), seed=0))[-1].reward == 0.0, task.id


async def test_a_row_without_a_solution_has_no_oracle(tmp_path):
    row = {"prompt": "p", "entry_point": "f", "tests": [{"expected": 1}]}
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    env = Code(data=str(tmp_path))
    with pytest.raises(DataError, match="has no 'solution'"):
        list(env.oracle(env.tasks("test")[0]))


def test_values_are_written_down_with_their_types():
    assert encode_value([1, (2.5, None), {"a": {True}}, b"x"]) == [
        {"i": "0x1"},
        {"t": [{"f": "0x1.4000000000000p+1"}, None]},
        {"d": [["a", {"s": [True]}]]},
        {"b": "78"},
    ]
