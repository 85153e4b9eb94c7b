"""Trajectories on disk: exact, readable, safe."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_agents.errors import DataError, FailureCause, ToolErrorKind
from miles_agents.runs import (
    group_from_json,
    group_to_json,
    read_trajectories,
    task_from_json,
    task_to_json,
    trajectory_from_json,
    trajectory_to_json,
    write_trajectories,
)
from miles_agents.types import (
    EpisodeStatus,
    ImagePart,
    Message,
    Role,
    StopReason,
    Task,
    TextPart,
    ToolCall,
    ToolEvent,
    Trajectory,
    TrajectoryGroup,
    Turn,
    VersionSpan,
)

PICTURE = ImagePart(data=b"\x89PNG\x00\xff", media_type="image/png")
HOSTILE = "</script>\u2028\x85\x1b[31m\r\n\ud800 “ünïcode” 🍎 \x00 <|im_end|>"


def same(left: Any, right: Any) -> bool:
    """Deep equality; arrays must agree in dtype, shape and every bit."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left):
        names = [field.name for field in dataclasses.fields(left)]
        return type(left) is type(right) and all(same(getattr(left, n), getattr(right, n)) for n in names)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))


def turn(prompt: list[int], completion: list[int], **changes: Any) -> Turn:
    count = len(completion)
    defaults: dict[str, Any] = {
        "prompt_ids": np.asarray(prompt, np.int32),
        "completion_ids": np.asarray(completion, np.int32),
        "logprobs": np.linspace(-0.1, -3.3, count, dtype=np.float32),
        "stop_reason": StopReason.STOP,
        "versions": (VersionSpan(3, 0, count),) if count else (),
    }
    return Turn(**defaults | changes)


def rich_trajectory() -> Trajectory:
    good = ToolCall(id="c1", name="python", arguments={"code": "print(1)", "n": [1, {"x": None}]}, raw="{…}")
    bad = ToolCall(id="c2", name="", arguments=None, raw='{"x":1,}', error="not JSON")
    experts = np.arange(24, dtype=np.int16).reshape(6, 2, 2)
    first = turn(
        [1, 2, 3],
        [4, 5],
        text=HOSTILE,
        versions=(VersionSpan(3, 0, 1), VersionSpan(4, 1, 2)),
        observation=(
            Message.tool(HOSTILE, call=good),
            Message(role=Role.TOOL, parts=(TextPart(text="see"), PICTURE), tool_call_id="c2", name=""),
        ),
        reward=0.1 + 0.2,
        tool_events=(
            ToolEvent(call=good, result=HOSTILE, ok=True, duration_s=0.25, info={"status": "ok"}),
            ToolEvent(call=bad, result="error", ok=False, error_kind=ToolErrorKind.MALFORMED_CALL, wait_s=0.125),
        ),
        timings={"generate": 1.5},
        info={"calls_in_reasoning": 2.0},
        media=(PICTURE,),
    )
    second = turn([1, 2, 3, 4, 5, 9, 9], [6, 7, 8], media=(PICTURE, PICTURE), stop_reason=StopReason.LENGTH)
    rewritten = turn([1, 2, 77], [8, 8, 8, 8], routed_experts=experts)
    silent = turn([1, 2, 77, 8, 8], [], stop_reason=StopReason.ABORT)
    return Trajectory(
        id="d3.1",
        task_id="level2/17",
        group_id="d3",
        turns=(first, second, rewritten, silent),
        status=EpisodeStatus.TRUNCATED,
        reward=1 / 3,
        rewards={"answer": 1.0, "format": float("nan")},
        truncated_by="max_turns",
        split="validation",
        seat="solver",
        policy="small",
        sample_index=1,
        draw=3,
        seed=2**62 + 1,
        start_version=3,
        prompt=(Message.system("be brief"), Message(role=Role.USER, parts=(TextPart(text="what is"), PICTURE))),
        metadata={"level": 2, "weights": [0.5, float("inf")]},
        timings={"total": 2.5},
    )


def failed_trajectory() -> Trajectory:
    return Trajectory(
        id="d3.0",
        task_id="t",
        group_id="d3",
        turns=(),
        status=EpisodeStatus.FAILED,
        cause=FailureCause.SANDBOX,
        error="worker died",
    )


def test_what_is_written_is_read_back_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "trajectories" / "step_000010.jsonl"
    written = [rich_trajectory(), failed_trajectory()]
    write_trajectories(path, written)
    back = read_trajectories(path)
    assert len(back) == 2
    assert all(map(same, written, back))
    assert len(path.read_bytes().split(b"\n")) == 3  # two lines, whatever the texts hold


def test_a_picture_repeated_by_every_turn_is_stored_once_beside_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl"
    write_trajectories(path, [rich_trajectory()])
    with np.load(tmp_path / "step_000001.npz") as arrays:
        assert sorted((array.dtype.name, array.size) for array in arrays.values()) == [("int16", 24), ("uint8", 6)]
    assert b"base64" not in path.read_bytes()
    (tmp_path / "step_000001.npz").unlink()
    with pytest.raises(DataError, match=r"line 1: not a trajectory.*the \.npz file beside is gone"):
        read_trajectories(path)


def test_rewriting_a_file_without_arrays_takes_the_old_ones_away(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl"
    write_trajectories(path, [rich_trajectory()])
    write_trajectories(path, [failed_trajectory()])
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_000001.jsonl"]


def test_each_line_says_what_was_sampled(tmp_path: Path) -> None:
    path = tmp_path / "step_000001.jsonl"
    write_trajectories(path, [rich_trajectory()], decode=lambda ids: [f"<{number}>" for number in ids])
    first, second, rewritten, _ = json.loads(path.read_text())["turns"]
    assert (first["prompt_kept"], first["prompt_new_ids"], first["completion_ids"]) == (0, [1, 2, 3], [4, 5])
    assert first["mask"] == [0, 0, 0, 1, 1]
    assert first["tokens"] == ["<1>", "<2>", "<3>", "<4>", "<5>"]
    assert first["versions"] == [[3, 0, 1], [4, 1, 2]]
    assert (second["prompt_kept"], second["prompt_new_ids"]) == (5, [9, 9])
    assert second["mask"] == [0, 0, 1, 1, 1]
    assert (rewritten["prompt_kept"], rewritten["prompt_new_ids"]) == (2, [77])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_every_float32_that_is_a_number_comes_back_bit_for_bit(patterns: list[int]) -> None:
    bits = np.asarray(patterns, np.uint32).view(np.float32)
    logprobs = bits[~np.isnan(bits)]
    count = len(logprobs)
    before = dataclasses.replace(failed_trajectory(), turns=(turn([1], [2] * count, logprobs=logprobs),))
    text = json.dumps(trajectory_to_json(before), allow_nan=False)
    assert same(before, trajectory_from_json(json.loads(text)))


def test_neighbouring_logprobs_stay_apart() -> None:
    # Between 10 and 16 float32 values lie 2^-20 (9.5e-7) apart: eight significant digits would merge some of them.
    first = np.float32(10).view(np.uint32)
    logprobs = -np.arange(first, first + 5000, dtype=np.uint32).view(np.float32)
    before = dataclasses.replace(failed_trajectory(), turns=(turn([1], [2] * 5000, logprobs=logprobs),))
    assert same(before, trajectory_from_json(json.loads(json.dumps(trajectory_to_json(before)))))


def test_nan_logprobs_stay_nan() -> None:
    lost = turn([1], [2, 3], logprobs=np.asarray([np.nan, -np.inf], np.float32))
    back = trajectory_from_json(trajectory_to_json(dataclasses.replace(failed_trajectory(), turns=(lost,))))
    assert np.isnan(back.turns[0].logprobs[0])
    assert back.turns[0].logprobs[1] == -np.inf


def test_a_group_is_one_json_object_with_its_arrays_inside() -> None:
    group = TrajectoryGroup(
        id="d3", task_id="t", draw=3, version=2, seat="agent", trajectories=(rich_trajectory(), failed_trajectory())
    )
    assert same(group, group_from_json(json.loads(json.dumps(group_to_json(group), allow_nan=False))))


def test_a_task_is_one_json_object() -> None:
    task = Task(
        id="gsm/1",
        prompt=(Message.system(HOSTILE), Message(role=Role.USER, parts=(TextPart(text="see"), PICTURE))),
        answer={"value": "42", "unit": None},
        metadata={"level": 1},
        split="test",
    )
    assert same(task, task_from_json(json.loads(json.dumps(task_to_json(task), allow_nan=False))))


def test_numpy_numbers_in_metadata_become_plain_ones() -> None:
    given_ = dataclasses.replace(failed_trajectory(), metadata={"level": np.int64(2), "p": np.float32(0.5)})
    assert trajectory_from_json(trajectory_to_json(given_)).metadata == {"level": 2, "p": 0.5}


@pytest.mark.parametrize(
    ("value", "said"),
    [({1, 2}, "metadata.'k'. holds a set"), (b"x", "holds a bytes"), ({3: 4}, "has the key 3"), ({"$float": 1}, "key")],
)
def test_what_is_no_json_value_is_named(tmp_path: Path, value: Any, said: str) -> None:
    path = tmp_path / "step_000001.jsonl"
    with pytest.raises(DataError, match=said):
        write_trajectories(path, [dataclasses.replace(failed_trajectory(), metadata={"k": value})])
    assert list(tmp_path.iterdir()) == []


def broken(record: dict, key: str, value: Any) -> bytes:
    record = json.loads(json.dumps(record))
    record["turns"][1][key] = value
    return json.dumps(record).encode()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"format": 1, "id"', "line 2: not JSON"),
        (b"\xff\xfe", "line 2: not JSON"),
        (b"[1]", "line 2: not a JSON object"),
        (b"{}", "line 2: not a trajectory .*format None"),
        (("completion_ids", [1]), "line 2: not a trajectory .*1 completion_ids but 3 logprobs"),
        (("mask", [1, 1, 1, 1, 1]), "line 2: not a trajectory .*the mask is not"),
        (("prompt_kept", 6), "line 2: not a trajectory .*prompt_kept is 6"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: Any, said: str) -> None:
    path = tmp_path / "step_000001.jsonl"
    record = trajectory_to_json(rich_trajectory())
    second = line if isinstance(line, bytes) else broken(record, *line)
    path.write_bytes(json.dumps(record).encode() + b"\n" + second + b"\n")
    with pytest.raises(DataError, match=said):
        read_trajectories(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no trajectory file"):
        read_trajectories(tmp_path / "step_000001.jsonl")
