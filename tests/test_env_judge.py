"""`judge` without a model: built-in tasks, rubrics of files, keywords, settings."""

import json

import pytest

from miles_agents import Reply
from miles_agents.checks.env import check_env, play
from miles_agents.environments import main as environments
from miles_agents.envs.judge import Judged
from miles_agents.envs.judge.rubric import Criterion, Rubric, read_criteria
from miles_agents.envs.judge.rules import keyword_scores
from miles_agents.errors import ConfigError, DataError, GraderError, UsageError


def rules(**keys):
    return Judged(judge="rules", **keys)


async def reward(env, task, text):
    [result] = await play(env, task, [Reply.of(text)], seed=0)
    return result.reward, result.info["rewards"]


def all_tasks(env):
    return [task for split in env.splits for task in env.tasks(split)]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


async def test_with_rules_it_keeps_the_contract_of_environments():
    await check_env(rules(), tasks_per_split=4)


async def test_each_reference_scores_full_and_each_prompt_said_back_nothing():
    env = rules()
    for task in all_tasks(env):
        assert (await reward(env, task, env.oracle(task)[0].text))[0] == 1.0, task.id
        assert (await reward(env, task, task.prompt[0].text))[0] == 0.0, task.id


def test_topics_are_in_one_split_and_sizes_take_the_first():
    env = rules()
    topics = {split: {task.id.split("/")[1] for task in env.tasks(split)} for split in env.splits}
    assert not topics["train"] & topics["test"]
    assert not topics["train"] & topics["validation"]
    assert not topics["validation"] & topics["test"]
    assert {split: len(env.tasks(split)) for split in env.splits} == {"train": 32, "validation": 10, "test": 10}
    assert rules(train_size=3).tasks("train") == env.tasks("train")[:3]


# --- points and weights -----------------------------------------------------------------------------------------------


async def test_criteria_are_components_weighted_by_the_rubric(tmp_path):
    rubric = [
        {"name": "facts", "description": "both facts", "weight": 3, "keywords": ["salt", ["ice", "snow"]]},
        {"name": "tone", "description": "kind", "weight": 1, "keywords": ["please"]},
    ]
    file = write(tmp_path / "test.jsonl", {"question": "How?", "rubric": rubric})
    env = rules(data=str(tmp_path), pass_mark=0.6)
    assert file
    [task] = env.tasks("test")
    # facts ½ (snow, no salt), tone 1: ¾ · ½ + ¼ · 1
    total, rewards = await reward(env, task, "Snow, please.")
    assert total == pytest.approx(0.625)
    assert rewards == {"facts": 0.5, "tone": 1.0, "answer": 1.0, "judge_failed": 0.0}
    total, rewards = await reward(env, task, "Saltish snowman")  # whole words only
    assert (total, rewards["answer"]) == (0.0, 0.0)


def test_keywords_are_whole_words_or_beginnings_and_long_replies_get_nothing():
    criteria = (
        Criterion(name="a", description="…", keywords=(("scatter*",), ("co2", "carbon dioxide"))),
        Criterion(name="b", description="…"),
    )
    rubric = Rubric(criteria=criteria, max_words=5)
    assert keyword_scores(rubric, "It SCATTERS carbon dioxide.") == {"a": 1.0, "b": 1.0}
    assert keyword_scores(rubric, "Scattered light") == {"a": 0.5, "b": 0.5}
    assert keyword_scores(rubric, "one two three four five scatters CO2") == {"a": 0.0, "b": 0.0}


def test_a_rubric_goes_through_json_unchanged():
    criteria = (Criterion(name="a", description="…", weight=0.5, keywords=(("x", "y"), ("z",))),)
    rubric = Rubric(criteria=criteria, reference="…", max_words=3)
    assert Rubric.from_json(json.loads(json.dumps(rubric.as_json()))) == rubric


# --- files ------------------------------------------------------------------------------------------------------------


def test_rubrics_are_text_names_or_criteria():
    assert [each.name for each in read_criteria("It is clear.", "here")] == ["quality"]
    assert [each.name for each in read_criteria({"clear": "…", "short": "…"}, "here")] == ["clear", "short"]
    [criterion] = read_criteria([{"name": "a b", "description": " x ", "weight": "2", "keywords": ["k"]}], "here")
    assert (criterion.description, criterion.weight, criterion.keywords) == ("x", 2.0, (("k",),))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rubric": "…"}, "'question' is None"),
        ({"question": "Q"}, "the row has no 'rubric'"),
        ({"question": "Q", "rubric": ""}, "'rubric' is text, a mapping"),
        ({"question": "Q", "rubric": "…", "referense": "x"}, "Did you mean 'reference'"),
        ({"question": "Q", "rubric": [{"name": "answer", "description": "…"}]}, "'name' is 'answer'"),
        ({"question": "Q", "rubric": [{"name": "a", "descripton": "…"}]}, "Did you mean 'description'"),
        ({"question": "Q", "rubric": [{"name": "a", "description": "…", "weight": -1}]}, "'weight' is"),
        ({"question": "Q", "rubric": [{"name": "a", "description": "…", "weight": 0}]}, "all criteria have the weight"),
        ({"question": "Q", "rubric": [{"name": "a", "description": "…", "keywords": "salt"}]}, "'keywords' is a list"),
        ({"question": "Q", "rubric": [{"name": "a", "description": "…"}] * 2}, "two criteria are named 'a'"),
        ({"question": "Q", "rubric": "…", "max_words": 0}, "'max_words' is"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(tmp_path, row, said):
    write(tmp_path / "test.jsonl", {"question": "fine", "rubric": "…"}, row)
    with pytest.raises(DataError, match=r"test\.jsonl:2") as caught:
        Judged(data=str(tmp_path)).tasks("test")
    assert said in str(caught.value)


def test_one_file_is_divided_and_a_held_out_question_is_in_no_other_split(tmp_path):
    rows = [{"question": f"Question {n}?", "rubric": "…"} for n in range(60)]
    whole = Judged(data=write(tmp_path / "tasks.jsonl", *rows))
    ids = [task.id.split("/")[1] for task in all_tasks(whole)]
    assert len(ids) == len(set(ids)) == 60
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "train.jsonl", *rows)
    write(folder / "test.jsonl", *rows[:5])
    env = Judged(data=str(folder))
    questions = {split: {task.metadata["question"] for task in env.tasks(split)} for split in env.splits}
    assert questions["test"] == {row["question"] for row in rows[:5]}
    assert len(questions["train"] | questions["validation"]) == 55
    assert not questions["train"] & questions["validation"]


def test_rules_refuse_a_rubric_without_keywords(tmp_path):
    write(tmp_path / "test.jsonl", {"question": "Q", "rubric": "It is clear."})
    with pytest.raises(DataError, match="env.judge=rules counts keywords"):
        rules(data=str(tmp_path)).tasks("test")


def test_a_task_without_reference_has_no_oracle(tmp_path):
    write(tmp_path / "test.jsonl", {"question": "Q", "rubric": "…"})
    env = Judged(data=str(tmp_path))
    with pytest.raises(GraderError, match="no reference"):
        env.oracle(env.tasks("test")[0])


# --- settings ---------------------------------------------------------------------------------------------------------


async def test_without_a_judge_the_first_episode_says_what_to_type():
    env = Judged()
    for keys in ({}, {"base_url": "http://127.0.0.1:1/v1"}, {"model": "m"}):
        env = Judged(**keys)
        with pytest.raises(UsageError, match=r"env\.base_url=\S+ env\.model=NAME.*env\.judge=rules"):
            await env.open_shared()


def test_check_says_what_to_type_and_works_offline_with_rules(capsys):
    assert environments(["check", "judge"]) == 2
    assert "env.base_url=" in capsys.readouterr().err
    assert environments(["check", "judge", "env.judge=rules", "--tasks", "1"]) == 0
    assert "failed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"judge": "rule"}, "env.judge"),
        ({"failure": "ignore"}, "env.failure='ignore'"),
        ({"failure": 1.5}, "env.failure=1.5"),
        ({"failure": True}, "env.failure=True"),
        ({"scale": 0}, "env.scale=0"),
        ({"pass_mark": 0.0}, "env.pass_mark=0.0"),
        ({"retries": -1}, "env.retries=-1"),
        ({"request_deadline_s": 0.0}, "env.request_deadline_s=0.0"),
        ({"temperature": -1.0}, "env.temperature=-1.0"),
        ({"test_size": 0}, "env.test_size=0"),
        ({"extra_body": "low"}, "env.extra_body='low'"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(keys, said):
    with pytest.raises(UsageError) as caught:
        Judged(**keys)
    assert said in str(caught.value)


async def test_a_key_that_is_not_there_is_refused_without_repeating_its_name(monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    env = Judged(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="NO_SUCH_KEY")
    with pytest.raises(ConfigError, match="export JUDGE_API_KEY") as caught:
        await env.open_shared()
    assert "NO_SUCH_KEY" not in str(caught.value)
