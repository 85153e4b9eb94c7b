"""Data sets of the hub by address: which files are taken, how they are split, what is said when there are none."""

import contextlib
import functools
import json

import pytest
from data_hub_server import hub, parquet

from miles_agents.envs.data_files import files_of
from miles_agents.envs.python_math.env import PythonMath
from miles_agents.errors import DataError

ROWS = [
    {"question": f"How many are {n} and {'one more ' * (n % 7)}of the {n * 37 % 101}?", "answer": n} for n in range(60)
]


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Serves files from then on, to every download; gives what was asked for."""
    with contextlib.ExitStack() as stack:

        def serve(files):
            from huggingface_hub import snapshot_download

            address, asked = stack.enter_context(hub(files))
            own = functools.partial(snapshot_download, endpoint=address, cache_dir=tmp_path / "cache")
            monkeypatch.setattr("huggingface_hub.snapshot_download", own)
            return asked

        yield serve


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_files_named_after_splits_are_those_splits(served, tmp_path):
    asked = served(
        {
            "data/train-00000-of-00001.parquet": parquet(tmp_path / "a", ROWS[:40]),
            "data/test-00000-of-00001.parquet": parquet(tmp_path / "b", ROWS[40:]),
            "README.md": b"not wanted",
        }
    )
    env = PythonMath(data="hf://own/set", near_duplicates=False)
    assert [task.answer for task in env.tasks("test")] == [str(n) for n in range(40, 60)]
    assert len(env.tasks("train")) + len(env.tasks("validation")) == 40
    assert not any("README" in path for path in asked)


def test_one_file_is_divided_and_a_pattern_takes_some_files_only(served):
    served({"train.jsonl": jsonl(ROWS), "test.jsonl": jsonl(ROWS[:2])})
    assert set(files_of("hf://own/set")) == {"train", "test"}
    assert list(files_of("hf://own/set/train*")) == ["whole"]  # what was fetched before does not count
    env = PythonMath(data="hf://own/set/train.jsonl", near_duplicates=False)
    assert sum(len(env.tasks(split)) for split in env.splits) == 60
    assert 0 < len(env.tasks("test")) < 20


def test_all_files_of_a_set_for_evaluation_are_its_test_split(served):
    served({"train.jsonl": jsonl([{"problem": "What is it?", "answer": 7}])})
    assert [task.answer for task in PythonMath(dataset="aime", data="hf://own/set").tasks("test")] == ["7"]


def test_files_in_several_folders_are_refused_with_what_to_type(served):
    served({"main/train.jsonl": jsonl(ROWS), "other/train.jsonl": jsonl(ROWS)})
    with pytest.raises(DataError, match=r"in 2 folders \(main, other\); name one: hf://own/set/main/\*.jsonl"):
        files_of("hf://own/set")
    assert list(files_of("hf://own/set/main/*.jsonl")) == ["whole"]


@pytest.mark.parametrize("address", ["hf://", "hf://own", "hf:///set"])
def test_an_address_without_owner_or_name_says_what_it_needs(address):
    with pytest.raises(DataError, match="give hf://OWNER/NAME, or hf://OWNER/NAME/PATTERN"):
        files_of(address)


def test_a_set_without_data_files_says_what_to_type(served):
    served({"README.md": b"nothing"})
    with pytest.raises(DataError, match=r"env.data: own/set has no files .*; or give a file or folder: env.data=PATH"):
        files_of("hf://own/set")
    with pytest.raises(DataError, match=r"env.data: cannot be fetched from the hub \(o wn/set: HFValidationError\)"):
        files_of("hf://o wn/set")
