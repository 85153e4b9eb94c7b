"""Presets of known data sets: what they load, how they are split, that their gold answers score full."""

import functools
import json
import logging
import os
import re
import shutil
from pathlib import Path

import pytest
from data_hub_server import hub, parquet

from miles_agents import Episode, Reply
from miles_agents.answers import parse_number
from miles_agents.assembly import make_env_factory
from miles_agents.checks.env import check_env, play
from miles_agents.command import compose_command
from miles_agents.configs.compose import parse_overrides, to_object
from miles_agents.contracts import EnvResources
from miles_agents.environments import main as environments
from miles_agents.envs.contamination import contamination
from miles_agents.envs.data_problems import AnswerKind, DataColumns, Reading, read_problems
from miles_agents.envs.data_sets import SETS, fetch_set, known_set, locate
from miles_agents.envs.near_duplicates import families
from miles_agents.envs.python_math.env import INSTRUCTION, PythonMath
from miles_agents.envs.python_math.instructions import ToolChoice, instruction
from miles_agents.envs.replies import AnswerForm, final_answer
from miles_agents.errors import DataError, GraderError, UsageError
from miles_agents.tools.sandboxes.scripted import ScriptedSandboxes

DOCUMENT = Path(__file__).parents[1] / "docs" / "data.md"
OWN = Path(__file__).parent / "data"  # invented rows in the layouts of the published sets
SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
PRESETS = ("gsm8k", "svamp", "mawps", "dapo_math", "aime")
needs_real_sets = pytest.mark.skipif(
    not all((SHARED / name).is_dir() for name in ("gsm8k", "svamp", "mawps")),
    reason=f"no gsm8k, svamp, mawps in {SHARED}; set MILES_AGENTS_DATA to the data folder",
)


@pytest.fixture
def own_data(monkeypatch):
    monkeypatch.setenv("MILES_AGENTS_DATA", str(OWN))


def preset(name, *words):
    """The environment of `evaluate env=NAME WORD…`."""
    config = to_object(compose_command("evaluate", parse_overrides([f"env={name}", *words])))
    env = make_env_factory(config.env, PythonMath)()
    env.bind(EnvResources(sandboxes=ScriptedSandboxes([])))
    return env


# What a preset is


@pytest.mark.parametrize("name", PRESETS)
async def test_every_preset_keeps_the_contract_of_environments(own_data, name):
    await check_env(preset(name), tasks_per_split=6)


@pytest.mark.parametrize("name", ["dapo_math", "aime"])
def test_sets_without_a_tool_withstand_every_attack(own_data, capsys, name):
    assert environments(["check", name, "--tasks", "24"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "sizes", "answers"),
    [
        ("gsm8k", {"train": 25, "validation": 5, "test": 2}, {"1,234", "-8"}),
        ("svamp", {"train": 22, "validation": 5, "test": 3}, None),
        ("mawps", {"train": 24, "validation": 3, "test": 4}, None),
        ("dapo_math", {"train": 19, "validation": 3, "test": 2}, None),
        ("aime", {"test": 5}, {"50", "999", "20", "0", "256"}),
    ],
)
def test_presets_load_the_layouts_of_their_sets(own_data, name, sizes, answers):
    env = preset(name)
    assert {split: len(env.tasks(split)) for split in env.splits} == sizes
    if answers is not None:
        assert {task.answer for task in env.tasks("test")} == answers


@pytest.mark.parametrize(("name", "tools"), [("gsm8k", 1), ("svamp", 1), ("mawps", 1), ("dapo_math", 0), ("aime", 0)])
def test_word_problems_have_the_python_tool_and_competitions_none(own_data, name, tools):
    env = preset(name)
    assert len(env.all_tools()) == tools
    assert env.max_turns == (4 if tools else 1)


def test_aime_is_for_evaluation_only(own_data):
    with pytest.raises(UsageError, match=r"unknown split 'train'. Allowed: test"):
        preset("aime").tasks("train")


def test_whole_numbers_in_columns_of_floats_are_shown_as_whole_numbers(own_data):
    answers = {task.answer for split in ("train", "validation", "test") for task in preset("mawps").tasks(split)}
    assert "1.5" in answers
    assert all(answer == "1.5" or answer.isdigit() for answer in answers)


# Answers that cannot be read


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("mawps", "test.jsonl:32", "'target' is 'many', which is no number"),
        ("dapo_math", "dapo-math.jsonl:26", "'reward_model.ground_truth' is '', not an answer"),
        ("aime", "capitals.jsonl:2", "'Answer' is '2048', which is not between 0 and 999"),
    ],
)
def test_unreadable_answers_are_listed_counted_and_left_out(own_data, caplog, name, row, reason):
    env = preset(name)
    with caplog.at_level(logging.WARNING):
        assert not any(task.id.endswith(row) for split in env.splits for task in env.tasks(split))
    (skipped,) = env.skipped("test")
    assert skipped.id == row
    assert skipped.reason.startswith(reason)
    assert f"{name}: 1 of " in caplog.text
    assert f"rows left out, their answers cannot be read; the first is {row}: {reason}" in caplog.text
    with pytest.raises(DataError, match=row):
        [preset(name, "env.skip_unparsable=false").tasks(split) for split in env.splits]


def test_generated_problems_skip_nothing():
    assert PythonMath().skipped("train") == ()


@needs_real_sets
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gsm8k", {"train": 7473, "test": 1319}),
        ("svamp", {"all": 1000}),
        ("mawps", {"all": 2065}),
    ],
)
async def test_the_oracle_passes_on_every_row_of_the_real_sets(monkeypatch, name, sizes):
    monkeypatch.setenv("MILES_AGENTS_DATA", str(SHARED))
    env = preset(name)
    tasks = {split: env.tasks(split) for split in env.splits}
    assert [env.skipped(split) for split in env.splits] == [(), (), ()]
    found = {split: len(each) for split, each in tasks.items()}
    if "all" in sizes:
        assert sum(found.values()) == sizes["all"]
        assert found["train"] == pytest.approx(0.8 * sizes["all"], rel=0.05)
    else:
        assert (found["train"] + found["validation"], found["test"]) == (sizes["train"], sizes["test"])
    told = " / ".join(f"{found[split]:,}" for split in env.splits)
    assert re.search(rf"^\| {name} \|.*\| none \| {told} \|$", DOCUMENT.read_text(encoding="utf-8"), re.M)
    for task in (task for each in tasks.values() for task in each):
        (result,) = await play(env, task, env.oracle(task), seed=0)
        assert result.reward == 1.0, task.id
        wrong = await env.reward(Episode(task=task, replies=[Reply.of(f"\\boxed{{{task.answer}1}}")]))
        assert wrong["answer"] == 0.0, task.id


@needs_real_sets
@pytest.mark.parametrize("name", ["svamp", "mawps"])
def test_near_duplicates_of_a_set_of_one_file_are_on_one_side(monkeypatch, name):
    monkeypatch.setenv("MILES_AGENTS_DATA", str(SHARED))
    env = preset(name)
    tasks = [task for split in env.splits for task in env.tasks(split)]
    homes = {}
    for task, family in zip(tasks, families([task.prompt[-1].text for task in tasks]), strict=True):
        assert homes.setdefault(family, task.split) == task.split
    assert len(homes) < len(tasks)  # there are some
    apart = preset(name, "env.near_duplicates=false")
    other = {task.prompt[-1].text: task.split for split in apart.splits for task in apart.tasks(split)}
    assert any(other[task.prompt[-1].text] != task.split for task in tasks)


@needs_real_sets
def test_the_splits_of_svamp_share_fewer_runs_of_words_than_divided_question_by_question(monkeypatch):
    monkeypatch.setenv("MILES_AGENTS_DATA", str(SHARED))

    def share(*words):
        env = preset("svamp", *words)
        texts = {split: [task.prompt[-1].text for task in env.tasks(split)] for split in ("train", "test")}
        return contamination(texts["train"], texts["test"]).share

    assert share() < share("env.near_duplicates=false")


def test_the_seed_divides_rows_otherwise_and_the_same_way_each_time(own_data):
    def test_rows(*words):
        return [task.id for task in preset("svamp", *words).tasks("test")]

    assert test_rows() == test_rows("env.split_seed=0")
    assert test_rows("env.split_seed=1") == test_rows("env.split_seed=1") != test_rows()


# DAPO: prompts with an instruction, other answers, repeated rows


def test_dapo_prompts_stay_as_they_are_and_are_divided_without_their_instruction(own_data):
    env = preset("dapo_math")
    for split in env.splits:
        for task in env.tasks(split):
            assert [message.role for message in task.prompt] == ["user"]
            assert task.prompt[0].text.startswith("Solve the following math problem step by step.")
    files = locate(known_set("dapo_math"))
    first = read_problems(files["whole"], env.reading).kept[0]
    assert first.question.startswith("On the circle, what is")
    assert first.question.endswith("is divided by $11$?")


def test_repeated_rows_of_dapo_count_once(own_data):
    env = preset("dapo_math")
    prompts = [task.prompt for split in env.splits for task in env.tasks(split)]
    assert len(prompts) == len(set(prompts)) == 24


@pytest.mark.parametrize(
    ("content", "reward"),
    [
        ("Answer: 17/60", 1.0),
        ("It is so.\nAnswer: $\\dfrac{17}{60}$", 1.0),
        ("Answer: \\boxed{\\frac{34}{120}}", 1.0),
        ("Answer: 0.28", 0.0),
        ("Answer: \\frac{16}{", 0.0),
        ("\\boxed{17/60}", 0.0),  # not where it was asked for
    ],
)
async def test_answers_that_are_no_numbers_are_compared_by_their_value(own_data, content, reward):
    env = preset("dapo_math")
    tasks = [task for split in env.splits for task in env.tasks(split) if task.answer == "\\frac{17}{60}"]
    (result,) = await play(env, tasks[0], [Reply.of(content)], seed=0)
    assert result.reward == reward


async def test_an_answer_that_cannot_be_compared_is_a_grader_error_and_not_a_wrong_one(own_data):
    env = preset("dapo_math")
    with pytest.raises(GraderError, match="the answer '1.1.1.* against .*: longer than 200000 characters"):
        await play(env, env.tasks("test")[0], [Reply.of("Answer: " + "1+" * 100_001 + "1")], seed=0)


def test_a_row_without_the_instruction_is_told_what_to_write(tmp_path):
    (tmp_path / "plain.jsonl").write_text(json.dumps({"prompt": "What is 6 · 7?", "solution": "42"}) + "\n")
    env = PythonMath(dataset="dapo_math", data=str(tmp_path / "plain.jsonl"), tool="none", answer_form="line")
    (task,) = [task for split in env.splits for task in tasks_or_none(env, split)]
    assert task.prompt[0].text == (
        "Solve the problem step by step. Give the final answer in a last line of its own: Answer: …"
    )
    assert task.answer == "42"


def tasks_or_none(env, split):
    try:
        return env.tasks(split)
    except DataError:
        return ()


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("So it is.\nAnswer: 42", "42"),
        ("**Answer:** $42$", "$42$"),
        ("**Answer: 42**", "42"),
        ("answer : \\boxed{42}\n\n", "\\boxed{42}"),
        ("Answer: 41\nNo.\nAnswer: 42\nThat is all.", "42"),
        ("Answer: 42\nAnswer:", ""),
        ("The answer: 42", None),
        ("My Answer: 42", None),
        ("Answer 42", None),
        ("<think>Answer: 42</think>", None),
        ("<think>Answer: 41</think>Answer: 42", "42"),
        ("Answer: 42 <think> hm", "42"),
        ("<think>\nAnswer: 42", None),
        ("", None),
    ],
)
def test_the_last_line_that_begins_with_answer_counts(content, answer):
    assert final_answer(content, AnswerForm.LINE) == answer


def test_a_long_reply_without_an_answer_is_read_in_a_moment():
    assert final_answer("Answer " * 200_000 + "\n" * 200_000 + " " * 200_000, AnswerForm.LINE) is None


# What the policy is told


def test_instructions_name_the_tool_the_kind_and_the_form():
    assert INSTRUCTION == (
        "Solve the problem. Compute with the python tool; print what you want to see. "
        "Give the final answer as a number in \\boxed{}."
    )
    aime = instruction(ToolChoice.NONE, AnswerForm.BOX, SETS["aime"].reading)
    assert aime == "Solve the problem step by step. Give the final answer as an integer from 0 to 999 in \\boxed{}."
    assert "as an integer in" in instruction(ToolChoice.NONE, AnswerForm.BOX, Reading(kind=AnswerKind.INTEGER))


def test_columns_and_kind_of_a_known_set_can_be_changed(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"q": "What is half of one?", "a": "1/2"}) + "\n")
    env = PythonMath(dataset="aime", data=str(tmp_path), question_column="q", answer_column="a", answer_kind="number")
    assert env.reading.layouts == (DataColumns(question=("q",), answer="a"),)
    assert env.tasks("test")[0].answer == "1/2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "gsm8"}, r"env.dataset=gsm8: no such data set. Did you mean 'gsm8k'"),
        ({"tool": "pyhton"}, r"env.tool: unknown value 'pyhton'. Did you mean 'python'"),
        ({"answer_form": "boxed"}, r"env.answer_form: unknown value 'boxed'. Did you mean 'box'"),
        ({"answer_kind": "numbers"}, r"env.answer_kind: unknown value 'numbers'. Did you mean 'number'"),
    ],
)
def test_wrong_names_say_the_right_ones(options, message):
    with pytest.raises(UsageError, match=message):
        PythonMath(**options)


# Where files are looked for


def test_env_data_goes_before_the_folder_of_data_sets(own_data, tmp_path):
    row = {"question": "What is nought?", "answer": "#### 0"}
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    (task,) = preset("gsm8k", f"env.data={tmp_path}").tasks("test")
    assert task.answer == "0"


def test_a_folder_with_one_file_is_divided_whatever_its_name(monkeypatch, tmp_path):
    (tmp_path / "mawps").mkdir()
    shutil.copy(OWN / "mawps" / "test.jsonl", tmp_path / "mawps" / "all of it.jsonl")
    monkeypatch.setenv("MILES_AGENTS_DATA", str(tmp_path))
    assert list(locate(known_set("mawps"))) == ["whole"]
    assert len(preset("mawps").tasks("train")) == 24


def test_a_set_that_is_nowhere_else_comes_from_the_hub(monkeypatch, tmp_path):
    from huggingface_hub import snapshot_download

    monkeypatch.setenv("MILES_AGENTS_DATA", str(tmp_path / "nothing"))
    rows = [json.loads(line) for line in (OWN / "gsm8k" / "train.jsonl").read_text().splitlines()]
    files = {
        "main/train-00000-of-00001.parquet": parquet(tmp_path / "a", rows),
        "main/test-00000-of-00001.parquet": parquet(tmp_path / "b", rows[:2]),
        "socratic/train-00000-of-00001.parquet": b"not wanted",
        "README.md": b"not wanted",
    }
    with hub(files) as (address, asked):
        download = functools.partial(snapshot_download, endpoint=address, cache_dir=tmp_path / "cache")
        found = fetch_set(known_set("gsm8k"), download=download)
    assert [file.name for file in found] == ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]
    assert not any("socratic" in path or "README" in path for path in asked)
    assert any(path.startswith("/api/datasets/openai/gsm8k/") for path in asked)
    env = PythonMath(dataset="gsm8k", data=str(found[0].parent))
    assert [task.answer for task in env.tasks("test")] == [row["answer"].rpartition("#### ")[2] for row in rows[:2]]
    assert len(env.tasks("train")) + len(env.tasks("validation")) == 28  # the two of the test file are left out


@pytest.mark.parametrize("name", PRESETS)
def test_a_hub_that_cannot_be_reached_is_an_error_that_says_what_to_type(monkeypatch, tmp_path, name):
    from huggingface_hub import snapshot_download

    monkeypatch.setenv("MILES_AGENTS_DATA", str(tmp_path))
    unreachable = functools.partial(snapshot_download, endpoint="http://127.0.0.1:9", cache_dir=tmp_path / "cache")
    with pytest.raises(DataError) as caught:
        fetch_set(known_set(name), download=unreachable)
    said = str(caught.value)
    assert said.startswith(f"{name}: cannot be fetched from the hub ({SETS[name].sources[0].repository}: ")
    assert f"$MILES_AGENTS_DATA/{name}/ (now MILES_AGENTS_DATA='{tmp_path}')" in said
    assert "env.data=PATH, with the columns" in said


def test_a_repository_without_the_files_is_an_error_that_says_what_to_type(tmp_path):
    from huggingface_hub import snapshot_download

    with hub({"README.md": b"moved"}) as (address, _):
        download = functools.partial(snapshot_download, endpoint=address, cache_dir=tmp_path)
        with pytest.raises(DataError, match=r"svamp: ChilleD/SVAMP has no files data/\*.parquet"):
            fetch_set(known_set("svamp"), download=download)


def test_gold_answers_of_numeric_sets_are_numbers(own_data):
    for name in ("gsm8k", "svamp", "mawps", "aime"):
        env = preset(name)
        assert all(parse_number(task.answer) is not None for split in env.splits for task in env.tasks(split))
