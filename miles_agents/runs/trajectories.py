"""Trajectories as JSON lines, exact to the bit, with large arrays beside them in one .npz file.

Each line is one trajectory; docs/run-folder.md describes its keys. What makes it small and readable:

- A turn stores `prompt_kept` (how many leading ids of the turn before, prompt and completion, its prompt repeats) and
  `prompt_new_ids` (the rest), not the whole prompt again.
- `mask` covers `prompt_new_ids` then `completion_ids`: 1 where the policy sampled the token.
- Logprobs are decimals of nine significant digits, which name a float32 exactly.
- Routed experts and images are arrays of the .npz file of the same name; the line holds their key. Without a file
  (a buffer's checkpoint) they are inline, as base64.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miles_agents.errors import DataError, FailureCause, ToolErrorKind
from miles_agents.runs.durable import write_atomic
from miles_agents.runs.json_values import dumps, from_json, to_json
from miles_agents.types import (
    EpisodeStatus,
    ImagePart,
    IntArray,
    Message,
    Part,
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

JsonObject = dict[str, Any]
Arrays = dict[str, NDArray[Any]]
Decode = Callable[[Sequence[int]], list[str]]  # token ids → one piece of text per id

FORMAT = 1


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, decode: Decode | None = None) -> None:
    """Write one line per trajectory, atomically, and `path` with suffix .npz if there are large arrays.

    Args:
        path: the .jsonl file.
        trajectories: what to write.
        decode: gives each token's text; it is then stored, so that a report needs no tokenizer.

    Raises:
        DataError: a metadata, info or argument value is no JSON value.
    """
    arrays: Arrays = {}
    lines = [dumps(trajectory_to_json(trajectory, arrays=arrays, decode=decode)) + "\n" for trajectory in trajectories]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".npz")
    if arrays:
        temporary = beside.with_name(f".{beside.stem}.tmp-{os.getpid()}.npz")
        np.savez_compressed(temporary, allow_pickle=False, **arrays)
        temporary.replace(beside)
    write_atomic(path, "".join(lines))
    if not arrays:
        beside.unlink(missing_ok=True)


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read back what `write_trajectories` wrote: equal ids, bit-equal logprobs.

    Raises:
        DataError: no such file, or a line that is no trajectory; the line is named.
    """
    beside = path.with_suffix(".npz")
    arrays: Arrays = {}
    if beside.exists():
        with np.load(beside, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    trajectories = []
    for number, record in enumerate(read_records(path), start=1):
        try:
            trajectories.append(trajectory_from_json(record, arrays=arrays))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{path}, line {number}: not a trajectory ({type(error).__name__}: {error})") from error
    return trajectories


def read_records(path: Path) -> Iterator[JsonObject]:
    """The lines as JSON objects, one at a time; what a report needs.

    Raises:
        DataError: no such file, or a line that is no JSON object; the line is named.
    """
    if not path.is_file():
        raise DataError(f"no trajectory file {path}")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}: not a JSON object")
            yield record


def trajectory_to_json(
    trajectory: Trajectory, *, arrays: Arrays | None = None, decode: Decode | None = None
) -> JsonObject:
    """One trajectory as a JSON object.

    Args:
        trajectory: the trajectory.
        arrays: takes the large arrays, which the object then names; None puts them inline.
        decode: see `write_trajectories`.
    """
    turns: list[JsonObject] = []
    before: IntArray = np.zeros(0, np.int32)
    for turn in trajectory.turns:
        turns.append(_turn_to_json(turn, before, arrays, decode))
        before = np.concatenate([turn.prompt_ids, turn.completion_ids])
    return {
        "format": FORMAT,
        "id": trajectory.id,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "split": trajectory.split,
        "seat": trajectory.seat,
        "policy": trajectory.policy,
        "sample_index": trajectory.sample_index,
        "draw": trajectory.draw,
        "seed": trajectory.seed,
        "start_version": trajectory.start_version,
        "status": trajectory.status.value,
        "cause": trajectory.cause.value if trajectory.cause else None,
        "error": trajectory.error,
        "truncated_by": trajectory.truncated_by,
        "reward": to_json(trajectory.reward, "reward"),
        "rewards": to_json(trajectory.rewards, "rewards"),
        "prompt": [_message_to_json(message, arrays) for message in trajectory.prompt],
        "turns": turns,
        "metadata": to_json(trajectory.metadata, "metadata"),
        "timings": to_json(trajectory.timings, "timings"),
    }


def trajectory_from_json(record: JsonObject, *, arrays: Mapping[str, NDArray[Any]] | None = None) -> Trajectory:
    """The trajectory behind `trajectory_to_json`'s object; `arrays` as it filled them."""
    if record.get("format") != FORMAT:
        raise ValueError(f"trajectory format {record.get('format')!r}; this version reads {FORMAT}")
    turns: list[Turn] = []
    before: IntArray = np.zeros(0, np.int32)
    for stored in record["turns"]:
        turn = _turn_from_json(stored, before, arrays)
        turns.append(turn)
        before = np.concatenate([turn.prompt_ids, turn.completion_ids])
    return Trajectory(
        id=record["id"],
        task_id=record["task_id"],
        group_id=record["group_id"],
        split=record["split"],
        seat=record["seat"],
        policy=record["policy"],
        sample_index=record["sample_index"],
        draw=record["draw"],
        seed=record["seed"],
        start_version=record["start_version"],
        status=EpisodeStatus(record["status"]),
        cause=FailureCause(record["cause"]) if record["cause"] else None,
        error=record["error"],
        truncated_by=record["truncated_by"],
        reward=from_json(record["reward"]),
        rewards=from_json(record["rewards"]),
        prompt=tuple(_message_from_json(message, arrays) for message in record["prompt"]),
        turns=tuple(turns),
        metadata=from_json(record["metadata"]),
        timings=from_json(record["timings"]),
    )


def group_to_json(group: TrajectoryGroup, *, arrays: Arrays | None = None) -> JsonObject:
    """A group and its trajectories as one JSON object."""
    return {
        "id": group.id,
        "task_id": group.task_id,
        "draw": group.draw,
        "version": group.version,
        "seat": group.seat,
        "trajectories": [trajectory_to_json(trajectory, arrays=arrays) for trajectory in group.trajectories],
    }


def group_from_json(record: JsonObject, *, arrays: Mapping[str, NDArray[Any]] | None = None) -> TrajectoryGroup:
    """The group behind `group_to_json`'s object."""
    return TrajectoryGroup(
        id=record["id"],
        task_id=record["task_id"],
        draw=record["draw"],
        version=record["version"],
        seat=record["seat"],
        trajectories=tuple(trajectory_from_json(stored, arrays=arrays) for stored in record["trajectories"]),
    )


def task_to_json(task: Task) -> JsonObject:
    """A task as a JSON object, answer included; images inline."""
    return {
        "id": task.id,
        "prompt": [_message_to_json(message, None) for message in task.prompt],
        "answer": to_json(task.answer, f"answer of task {task.id}"),
        "metadata": to_json(task.metadata, f"metadata of task {task.id}"),
        "split": task.split,
    }


def task_from_json(record: JsonObject) -> Task:
    """The task behind `task_to_json`'s object."""
    return Task(
        id=record["id"],
        prompt=tuple(_message_from_json(message, None) for message in record["prompt"]),
        answer=from_json(record["answer"]),
        metadata=from_json(record["metadata"]),
        split=record["split"],
    )


def _turn_to_json(turn: Turn, before: IntArray, arrays: Arrays | None, decode: Decode | None) -> JsonObject:
    kept = _shared_prefix(before, turn.prompt_ids)
    new_ids = turn.prompt_ids[kept:].tolist()
    completion_ids = turn.completion_ids.tolist()
    record: JsonObject = {
        "text": turn.text,
        "tool_events": [_event_to_json(event) for event in turn.tool_events],
        "observation": [_message_to_json(message, arrays) for message in turn.observation],
        "reward": to_json(turn.reward, "turn.reward"),
        "stop_reason": turn.stop_reason.value,
        "prompt_kept": kept,
        "prompt_new_ids": new_ids,
        "completion_ids": completion_ids,
        "mask": [0] * len(new_ids) + [1] * len(completion_ids),
        "logprobs": [_float32(value) for value in turn.logprobs.tolist()],
        "versions": [list(span) for span in turn.versions],
        "timings": to_json(turn.timings, "turn.timings"),
        "info": to_json(turn.info, "turn.info"),
    }
    if decode is not None:
        record["tokens"] = decode([*new_ids, *completion_ids])
    if turn.routed_experts is not None:
        record["routed_experts"] = _store(turn.routed_experts, arrays)
    if turn.media:
        record["media"] = [_image_to_json(image, arrays) for image in turn.media]
    return record


def _turn_from_json(record: JsonObject, before: IntArray, arrays: Mapping[str, NDArray[Any]] | None) -> Turn:
    kept, new_ids, completion_ids = record["prompt_kept"], record["prompt_new_ids"], record["completion_ids"]
    if not 0 <= kept <= len(before):
        raise ValueError(f"prompt_kept is {kept}, but the turn before has {len(before)} ids")
    if len(record["logprobs"]) != len(completion_ids):
        raise ValueError(f"{len(completion_ids)} completion_ids but {len(record['logprobs'])} logprobs")
    if record["mask"] != [0] * len(new_ids) + [1] * len(completion_ids):
        raise ValueError("the mask is not 0 on prompt_new_ids and 1 on completion_ids")
    experts = record.get("routed_experts")
    return Turn(
        prompt_ids=np.concatenate([before[:kept], np.asarray(new_ids, np.int32)]),
        completion_ids=np.asarray(completion_ids, np.int32),
        logprobs=np.asarray([float(value) for value in record["logprobs"]], np.float32),
        stop_reason=StopReason(record["stop_reason"]),
        versions=tuple(VersionSpan(*span) for span in record["versions"]),
        text=record["text"],
        observation=tuple(_message_from_json(message, arrays) for message in record["observation"]),
        reward=from_json(record["reward"]),
        tool_events=tuple(_event_from_json(event) for event in record["tool_events"]),
        timings=from_json(record["timings"]),
        info=from_json(record["info"]),
        routed_experts=None if experts is None else _load(experts, arrays),
        media=tuple(_image_from_json(image, arrays) for image in record.get("media", ())),
    )


def _shared_prefix(before: IntArray, prompt: IntArray) -> int:
    length = min(len(before), len(prompt))
    different = np.flatnonzero(before[:length] != prompt[:length])
    return int(different[0]) if len(different) else length


def _message_to_json(message: Message, arrays: Arrays | None) -> JsonObject:
    record: JsonObject = {"role": message.role.value, "parts": [_part_to_json(part, arrays) for part in message.parts]}
    if message.tool_calls:
        record["tool_calls"] = [_call_to_json(call) for call in message.tool_calls]
    for key, absent in (("tool_call_id", None), ("name", None), ("reasoning", "")):
        if (value := getattr(message, key)) != absent:
            record[key] = value
    return record


def _message_from_json(record: JsonObject, arrays: Mapping[str, NDArray[Any]] | None) -> Message:
    return Message(
        role=Role(record["role"]),
        parts=tuple(_part_from_json(part, arrays) for part in record["parts"]),
        tool_calls=tuple(_call_from_json(call) for call in record.get("tool_calls", ())),
        tool_call_id=record.get("tool_call_id"),
        name=record.get("name"),
        reasoning=record.get("reasoning", ""),
    )


def _part_to_json(part: Part, arrays: Arrays | None) -> JsonObject:
    return {"text": part.text} if isinstance(part, TextPart) else _image_to_json(part, arrays)


def _part_from_json(record: JsonObject, arrays: Mapping[str, NDArray[Any]] | None) -> Part:
    return TextPart(text=record["text"]) if "text" in record else _image_from_json(record, arrays)


def _image_to_json(image: ImagePart, arrays: Arrays | None) -> JsonObject:
    return {"media_type": image.media_type, "image": _store(np.frombuffer(image.data, np.uint8), arrays)}


def _image_from_json(record: JsonObject, arrays: Mapping[str, NDArray[Any]] | None) -> ImagePart:
    return ImagePart(media_type=record["media_type"], data=_load(record["image"], arrays).tobytes())


def _call_to_json(call: ToolCall) -> JsonObject:
    return {
        "id": call.id,
        "name": call.name,
        "arguments": to_json(call.arguments, f"arguments of tool call {call.id}"),
        "raw": call.raw,
        "error": call.error,
    }


def _call_from_json(record: JsonObject) -> ToolCall:
    return ToolCall(
        id=record["id"],
        name=record["name"],
        arguments=from_json(record["arguments"]),
        raw=record["raw"],
        error=record["error"],
    )


def _event_to_json(event: ToolEvent) -> JsonObject:
    return {
        "call": _call_to_json(event.call),
        "result": event.result,
        "ok": event.ok,
        "error_kind": str(event.error_kind),
        "duration_s": to_json(event.duration_s, "duration_s"),
        "wait_s": to_json(event.wait_s, "wait_s"),
        "info": to_json(event.info, f"info of tool call {event.call.id}"),
    }


def _event_from_json(record: JsonObject) -> ToolEvent:
    return ToolEvent(
        call=_call_from_json(record["call"]),
        result=record["result"],
        ok=record["ok"],
        error_kind=ToolErrorKind(record.get("error_kind", "")),  # absent in files of earlier versions
        duration_s=from_json(record["duration_s"]),
        wait_s=from_json(record.get("wait_s", 0.0)),
        info=from_json(record["info"]),
    )


def _store(array: NDArray[Any], arrays: Arrays | None) -> JsonObject:
    content = np.ascontiguousarray(array)
    if arrays is None:
        encoded = base64.b64encode(content.tobytes()).decode("ascii")
        return {"dtype": content.dtype.str, "shape": list(content.shape), "base64": encoded}
    # Named by content: an image that every turn's prompt repeats is stored once.
    digest = hashlib.sha256(f"{content.dtype.str}{content.shape}".encode() + content.tobytes()).hexdigest()[:32]
    arrays[f"a{digest}"] = content
    return {"npz": f"a{digest}"}


def _load(record: JsonObject, arrays: Mapping[str, NDArray[Any]] | None) -> NDArray[Any]:
    if "npz" not in record:
        flat = np.frombuffer(base64.b64decode(record["base64"]), np.dtype(record["dtype"]))
        return flat.reshape(record["shape"]).copy()
    if arrays is None or record["npz"] not in arrays:
        raise KeyError(f"array {record['npz']} is missing: the .npz file beside is gone or another's")
    return arrays[record["npz"]]


def _float32(value: float) -> float | str:
    # Nine significant digits lie closer to the float32 than half the distance to its neighbour, so reading them as a
    # double and rounding to float32 gives it back.
    return float(f"{value:.9g}") if math.isfinite(value) else str(value)
