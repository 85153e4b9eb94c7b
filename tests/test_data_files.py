"""Problems from data files: formats, columns, splits, and errors that name file and line."""

import json
import logging
import os
from pathlib import Path

import pytest

from miles_agents.envs.data_files import DataColumns, find_files, load_split
from miles_agents.envs.splits import normalised, split_of
from miles_agents.errors import DataError
from miles_agents.types import Message

SHARED = Path(os.environ.get("MILES_AGENTS_DATA", Path(__file__).parents[2] / "shared" / "data"))
SPLITS = ("train", "validation", "test")


def word(n):
    """A word of its own for each number: "add bba to bba" are no near-duplicates of each other."""
    return "".join("abcdefghij"[int(digit)] for digit in f"{n:03}")


ROWS = [{"question": f"Twice {n} {word(n)} is what?", "answer": 2 * n} for n in range(200)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load_all(path, columns=None):
    return {split: load_split(path, split, columns or DataColumns()) for split in SPLITS}


def questions(problems):
    return [problem.question for problem in problems]


def load_one(tmp_path, row, columns):
    """One row's problem, through a file for the test split alone."""
    write_jsonl(tmp_path / "test.jsonl", [row])
    (problem,) = load_split(str(tmp_path), "test", columns)
    return problem


def test_a_question_is_in_the_same_split_however_it_is_typed():
    for n in range(50):
        text = f"How many apples are {n} apples?"
        assert split_of(text) == split_of(f"  HOW many\n apples  are {n} apples? ")


def test_split_of_never_changes():
    # Values recorded once: a change would move questions from training to test in users' files.
    assert [split_of(str(n)) for n in range(12)] == [
        "train", "train", "train", "train", "train", "train", "test", "train", "train", "train", "test", "train",
    ]  # fmt: skip


def test_splits_are_80_10_10():
    found = [split_of(f"question {n}") for n in range(10_000)]
    # Binomial with n = 10,000: standard deviations 40, 30, 30; five of them allowed.
    assert abs(found.count("train") - 8000) < 200
    assert abs(found.count("validation") - 1000) < 150
    assert abs(found.count("test") - 1000) < 150


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_every_format_gives_the_same_problems(tmp_path, suffix):
    path = tmp_path / f"sums.{suffix}"
    if suffix == "jsonl":
        write_jsonl(path, ROWS)
    elif suffix == "json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif suffix == "csv":
        path.write_text("question,answer\n" + "".join(f'"{row["question"]}",{row["answer"]}\n' for row in ROWS))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    splits = load_all(str(path))
    found = {problem.question: problem.answer for split in SPLITS for problem in splits[split]}
    assert found == {row["question"]: str(row["answer"]) for row in ROWS}
    assert sum(map(len, splits.values())) == len(ROWS)
    assert len(splits["train"]) > 140


def test_equal_questions_of_one_file_share_a_split_and_all_rows_are_kept(tmp_path):
    rows = ROWS + [{"question": row["question"].upper() + " ", "answer": row["answer"]} for row in ROWS]
    splits = load_all(write_jsonl(tmp_path / "twice.jsonl", rows))
    assert sum(map(len, splits.values())) == 400
    homes = {}
    for split, problems in splits.items():
        for problem in problems:
            assert homes.setdefault(normalised(problem.question), split) == split
    assert len({problem.id for problems in splits.values() for problem in problems}) == 400


def test_a_folder_gives_its_files_and_cuts_validation_from_train(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    write_jsonl(tmp_path / "test.jsonl", [{"question": "What is 1000 + 1?", "answer": 1001}])
    splits = load_all(str(tmp_path))
    assert questions(splits["test"]) == ["What is 1000 + 1?"]
    cut = [row["question"] for row in ROWS if split_of(row["question"]) == "validation"]
    assert questions(splits["validation"]) == cut
    assert questions(splits["train"]) == [row["question"] for row in ROWS if row["question"] not in cut]


def test_a_question_in_two_files_stays_in_test_then_validation_only(tmp_path, caplog):
    write_jsonl(tmp_path / "train.jsonl", ROWS[:50])
    write_jsonl(tmp_path / "dev.jsonl", ROWS[40:60])
    write_jsonl(tmp_path / "test.jsonl", ROWS[55:70] + ROWS[:2])
    with caplog.at_level(logging.WARNING):
        splits = load_all(str(tmp_path))
    assert questions(splits["test"]) == [row["question"] for row in ROWS[55:70] + ROWS[:2]]
    assert questions(splits["validation"]) == [row["question"] for row in ROWS[40:55]]
    assert questions(splits["train"]) == [row["question"] for row in ROWS[2:40]]
    assert "12 rows left out of 'train'" in caplog.text


def test_a_pattern_names_the_file_of_each_split(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        write_jsonl(tmp_path / split / "data.jsonl", [{"question": f"{split}?", "answer": 1}])
    splits = load_all(f"{tmp_path}/{{split}}/data.jsonl")
    assert {split: questions(problems) for split, problems in splits.items()} == {
        "train": ["train?"],
        "validation": ["valid?"],
        "test": ["test?"],
    }


def test_numbered_shards_are_read_in_order(tmp_path):
    write_jsonl(tmp_path / "test-00001-of-00002.jsonl", ROWS[5:10])
    write_jsonl(tmp_path / "test-00000-of-00002.jsonl", ROWS[:5])
    problems = load_split(str(tmp_path), "test", DataColumns())
    assert questions(problems) == [row["question"] for row in ROWS[:10]]
    assert len({problem.id for problem in problems}) == 10


def test_two_files_for_one_split_are_refused(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", ROWS)
    (tmp_path / "train.json").write_text(json.dumps(ROWS))
    with pytest.raises(DataError, match=r"several files for split 'train' \(train.json, train.jsonl\)"):
        find_files(str(tmp_path))


SVAMP = DataColumns(question=("Body", "Question"), answer="Answer")
MAWPS = DataColumns(question=("input",), answer="target")
DAPO = DataColumns(question=("prompt",), answer="reward_model.ground_truth")
DAPO_ROW = {"prompt": [{"role": "user", "content": "hi?"}], "reward_model": {"ground_truth": "34", "style": "rule"}}


@pytest.mark.parametrize(
    ("row", "columns", "question", "answer"),
    [
        ({"Body": "Ann has 3.", "Question": "How many?", "Answer": 145.0}, SVAMP, "Ann has 3. How many?", "145"),
        ({"input": "How many ?", "target": 43.0}, MAWPS, "How many ?", "43"),
        ({"question": "q", "answer": "3 <<1+2=3>>3 #### no\n#### 1,072"}, DataColumns(), "q", "1,072"),
        ({"question": "q", "answer": 0.1}, DataColumns(), "q", "0.1"),
        ({"question": "q", "answer": -12345678901234567890}, DataColumns(), "q", "-12345678901234567890"),
        ({"a.b": "flat", "a": {"b": "nested"}, "answer": "1"}, DataColumns(question=("a.b",)), "flat", "1"),
        (DAPO_ROW, DAPO, "hi?", "34"),
    ],
)
def test_columns_of_known_sets_work_as_they_are(tmp_path, row, columns, question, answer):
    problem = load_one(tmp_path, row, columns)
    assert (problem.question, problem.answer) == (question, answer)


@pytest.mark.parametrize("number", ["0.12345678901234567891", "123456789012345678901234567890.5", "1e-7"])
def test_numbers_of_json_files_are_not_rounded(tmp_path, number):
    (tmp_path / "test.jsonl").write_text(f'{{"question": "q", "answer": {number}}}')
    (problem,) = load_split(str(tmp_path), "test", DataColumns())
    assert problem.answer == number


def test_a_list_of_messages_is_the_prompt_as_it_is(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    problem = load_one(tmp_path, {"prompt": messages, "answer": 4}, DataColumns(question=("prompt",)))
    assert problem.prompt == (Message.system("Be brief."), Message.user("2+2?"))


def test_parquet_messages_and_nested_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([DAPO_ROW]), tmp_path / "test.parquet")
    (problem,) = load_split(str(tmp_path), "test", DAPO)
    assert (problem.question, problem.answer) == ("hi?", "34")


GOOD = b'{"question": "q", "answer": 1}'


def row(question=b'"q"', answer=b"1"):
    return b'{"question": ' + question + b', "answer": ' + answer + b"}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD + b'\n\n{"question": "q", "ans', r":3: broken JSON"),
        (GOOD + b"\n" + row(b'"\xff"'), r":2: broken JSON"),
        (b"[1, 2]\n", r":1: expected an object with named columns, got list"),
        (b"[" * 200_000, r":1: broken JSON"),
        (
            b'{"qestion": "q", "answer": 1}',
            r":1: no column 'question'; set env.question_column. Did you mean 'qestion'",
        ),
        (b'{"question": "q", "answers": 1}', r":1: no column 'answer'; set env.answer_column. Did you mean 'answers'"),
        (row(answer=b'{"gold": 1}'), r":1: 'answer' is .*, not a numeric answer"),
        (row(answer=b"null"), r":1: 'answer' is None, not a numeric answer"),
        (row(answer=b"true"), r":1: 'answer' is True, not a numeric answer"),
        (row(answer=b"NaN"), r":1: 'answer' is 'nan', which is no number"),
        (row(answer=b'"x^2"'), r":1: 'answer' is 'x\^2', which is no number"),
        (row(b'" "'), r":1: 'question' is ' ', not a question"),
        (row(b'["q"]'), r":1: 'question' holds 'q', not a message"),
        (row(b'[{"role": ["user"], "content": "q"}]'), r":1: 'question' holds .*, not a message"),
        (row(b'[{"role": "assistant", "content": "4"}]'), r":1: the messages of 'question' do not end with a question"),
        (row(b"[]"), r":1: the messages of 'question' do not end with a question"),
        (b"", r": the file is empty"),
    ],
)
def test_broken_jsonl_is_named_with_its_line(tmp_path, content, message):
    (tmp_path / "test.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"test\.jsonl" + message):
        load_split(str(tmp_path), "test", DataColumns())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.json", GOOD + b"\n" + GOOD, r": one object per line\? Then name it \.jsonl"),
        ("test.json", b'[{"question": "q",\n "answer": }]', r", line 2: broken JSON"),
        ("test.json", b'{"data": []}', r": expected a list of objects, got dict"),
        ("test.json", b"[" + GOOD + b", 7]", r": row 2: expected an object"),
        ("test.json", b"[]", r": the file is empty"),
        ("test.csv", b"question,answer\nq,1\nq\n", r":3: broken line"),
        ("test.csv", b"question,answer\nq,1,2\n", r":2: broken line"),
        ("test.csv", b'question,answer\n"q,1\n', r":\d: broken line"),
        ("test.csv", b"question,answer\n\xff,1\n", r":\d: broken line"),
        ("test.csv", b"question,answer\n", r": the file is empty"),
        ("test.parquet", b"PAR1 no, it is not", r": broken Parquet file"),
    ],
)
def test_other_broken_files_are_named_too(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name.replace(".", r"\.") + message):
        load_split(str(tmp_path), "test", DataColumns())


def test_a_missing_file_names_its_neighbours(tmp_path):
    write_jsonl(tmp_path / "gsm8k.jsonl", ROWS)
    with pytest.raises(DataError, match=r"no file or folder .*gsm8.jsonl.*Did you mean '.*gsm8k.jsonl'"):
        load_split(str(tmp_path / "gsm8.jsonl"), "train", DataColumns())


def test_an_unknown_format_lists_the_known_ones(tmp_path):
    (tmp_path / "data.xlsx").write_bytes(b"x")
    with pytest.raises(DataError, match=r"unknown format '.xlsx'; it can be .jsonl, .json, .csv, .parquet"):
        load_split(str(tmp_path / "data.xlsx"), "train", DataColumns())


def test_a_folder_without_data_files_says_what_it_needs(tmp_path):
    with pytest.raises(DataError, match=r"no data files; expected train, validation or test"):
        load_split(str(tmp_path), "train", DataColumns())


def test_a_split_without_a_file_or_a_row_is_an_error_not_an_empty_set(tmp_path):
    write_jsonl(tmp_path / "test.jsonl", ROWS[:1])
    with pytest.raises(DataError, match="no file for split 'train', nor a train file"):
        load_split(str(tmp_path), "train", DataColumns())
    home = split_of(ROWS[0]["question"])
    other = next(split for split in SPLITS if split != home)
    with pytest.raises(DataError, match=f"no row falls into split '{other}'"):
        load_split(str(tmp_path / "test.jsonl"), other, DataColumns())


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}; set MILES_AGENTS_DATA to the data folder")
@pytest.mark.parametrize(
    ("path", "columns", "sizes"),
    [
        ("gsm8k", DataColumns(), {"test": 1319}),
        ("svamp", SVAMP, {"test": 1000}),
        ("mawps", MAWPS, {"test": 2065}),
    ],
)
def test_real_sets_load_whole(path, columns, sizes):
    for split, size in sizes.items():
        problems = load_split(str(SHARED / path), split, columns)
        assert len(problems) == size
        assert len({problem.id for problem in problems}) == size


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}; set MILES_AGENTS_DATA to the data folder")
def test_gsm8k_splits_are_disjoint_and_complete():
    splits = load_all(str(SHARED / "gsm8k"))
    texts = {split: {normalised(problem.question) for problem in problems} for split, problems in splits.items()}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]
    assert len(splits["train"]) + len(splits["validation"]) == 7473
    assert splits["test"][0].answer == "18"
