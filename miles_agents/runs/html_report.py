"""report.html: one self-contained file, no request to anywhere, that shows what a run did.

The page is report.html + report.css + report.js of this folder with the run's data as JSON inside. Episode text is
hostile: in the file it can end no script element, in the page it is only ever set as text, and the content security
policy allows the page's own script (by its hash) and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from miles_agents.errors import DataError
from miles_agents.runs.durable import write_atomic
from miles_agents.runs.folder import RunFolder, step_of
from miles_agents.runs.json_values import for_people
from miles_agents.runs.metrics import MetricName, MetricRow, merge_by_step
from miles_agents.runs.report_tools import calls_of, recorded_in, sandbox_sums, tool_rows
from miles_agents.runs.tool_figures import CallFacts
from miles_agents.runs.trajectories import Decode, JsonObject, read_records

_HEADLINES = {
    MetricName.ACCURACY: "Held-out accuracy (sampled)",
    MetricName.RAW_REWARD: "Reward of training episodes",
    MetricName.TOOL_CALL_RATE: "Share of episodes that call a tool",
    MetricName.LOGPROB_DIFF: "Largest |trainer − engine| logprob",
    MetricName.SAMPLED_TOKENS_PER_S: "Sampled tokens per second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLimits:
    """What keeps the file small; what is left out is counted in the page."""

    files: int = 80  # trajectory files, evenly spread over the run, first and last included
    episodes_per_step: int = 6
    episodes_per_evaluation: int = 16
    tokens_per_episode: int = 3000
    characters_per_text: int = 8000
    episode_bytes: int = 12_000_000  # all episodes together


@dataclass(slots=True, kw_only=True)
class _Chosen:
    episodes: list[JsonObject] = field(default_factory=list)
    calls: dict[str, list[CallFacts]] = field(default_factory=dict)  # of all the episodes in them, by heading
    recorded: int = 0  # episodes in the files that were read
    files_skipped: int = 0


def write_report(run: RunFolder | Path, *, decode: Decode | None = None, limits: ReportLimits | None = None) -> Path:
    """Write (again) the run's report.html and return its path.

    Args:
        run: a run folder, finished or not.
        decode: token ids → one piece of text per id, for episodes that were written without token texts; without it
            those show ids.
        limits: how much to show.

    Raises:
        RunFolderError: `run` is no run folder.
        DataError: a metrics or trajectory file is broken; file and line are named.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
    data = report_data(folder, decode=decode, limits=limits or ReportLimits())
    write_atomic(folder.report_file, render_page(folder.name, data))
    return folder.report_file


def report_data(run: RunFolder, *, decode: Decode | None, limits: ReportLimits) -> JsonObject:
    """What the page is given, as JSON."""
    summary = run.read_summary()
    evaluations = _evaluations(run.trajectories_folder)
    chosen = _choose_episodes(run.trajectories_folder, decode, limits)
    metrics = run.read_metrics()
    return {
        "name": run.name,
        "verdict": _verdict(summary),
        "summary": for_people(summary),
        "environment": for_people(run.read_environment()),
        "config": run.config_file.read_text(encoding="utf-8"),
        "headlines": {name.value: title for name, title in _HEADLINES.items()},
        "metrics": _series(metrics),
        "comparison": _comparison(summary, evaluations),
        "tools": tool_rows(chosen.calls),
        "sandbox": sandbox_sums(merge_by_step(metrics)),
        "episodes": chosen.episodes,
        "left_out": {
            "shown": len(chosen.episodes),
            "recorded": chosen.recorded,
            "files_skipped": chosen.files_skipped,
            "tokens_per_episode": limits.tokens_per_episode,
        },
    }


def render_page(title: str, data: JsonObject) -> str:
    """The page: template, style, script and data in one text."""
    payload = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half a surrogate pair is no character: no file can hold it, and in a page it crashes Chromium's dump.
    payload = re.sub("[\ud800-\udfff]", "\ufffd", payload)
    # No character that means something to an HTML parser: "</script>" becomes "\u003c/script\u003e".
    for character in "<>&":
        payload = payload.replace(character, f"\\u{ord(character):04x}")
    script = _part("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    parts = {
        "TITLE": html.escape(title),
        "STYLE": _part("report.css"),
        "SCRIPT": script,
        "SCRIPT_HASH": digest,
        "DATA": payload,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("report.html"))


def _part(name: str) -> str:
    return resources.files("miles_agents.runs").joinpath(name).read_text(encoding="utf-8")


def _verdict(summary: Mapping[str, Any]) -> JsonObject:
    before, after = summary.get("accuracy_before"), summary.get("accuracy_after")
    if not isinstance(before, (int, float)) or not isinstance(after, (int, float)):
        return {"kind": "open", "text": "This run has no result yet: it is under way or was stopped."}
    change = after - before
    kind, verb = ("better", "rose") if change > 0 else ("worse", "fell") if change < 0 else ("same", "stayed")
    if not change:
        return {"kind": kind, "text": f"Held-out accuracy stayed at {after:.3f}."}
    return {"kind": kind, "text": f"Held-out accuracy {verb} from {before:.3f} to {after:.3f} ({change:+.3f})."}


def _series(rows: list[MetricRow]) -> JsonObject:
    merged = merge_by_step(rows)
    names = sorted({name for row in merged for name in row.metrics})
    return {
        "steps": [row.step for row in merged],
        "series": {name: [for_people(row.metrics.get(name)) for row in merged] for name in names},
    }


def _evaluations(folder: Path) -> list[Path]:
    """The unlabelled evaluation files, by step."""
    files = [path for path in _files(folder) if re.fullmatch(r"eval_step_\d+\.jsonl", path.name)]
    return sorted(files, key=lambda path: step_of(path) or 0)


def _files(folder: Path) -> list[Path]:
    known = [path for path in folder.glob("*.jsonl") if step_of(path) is not None]
    return sorted(known, key=lambda path: (step_of(path), path.name))


def _comparison(summary: Mapping[str, Any], evaluations: Sequence[Path]) -> list[JsonObject]:
    """Rows of the before/after table: from the summary, and from the first and last evaluation's episodes."""
    rows: list[JsonObject] = [
        {
            "label": "accuracy",
            "before": for_people(summary.get("accuracy_before")),
            "after": for_people(summary.get("accuracy_after")),
        }
    ]
    if summary.get("no_tool_accuracy_after") is not None:
        refused = {time: for_people(summary.get(f"no_tool_accuracy_{time}")) for time in ("before", "after")}
        rows.append({"label": "accuracy when tool calls are refused", **refused})
    if not evaluations:
        return rows
    before = _averages(evaluations[0])
    after = _averages(evaluations[-1]) if len(evaluations) > 1 else {}
    return rows + [
        {"label": label, "before": before.get(label), "after": after.get(label)} for label in {**before, **after}
    ]


def _averages(path: Path) -> dict[str, float]:
    """Figures over the recorded episodes of one evaluation."""
    episodes = list(read_records(path))
    if not episodes:
        return {}
    turns = [turn for episode in episodes for turn in episode["turns"]]
    events = [event for turn in turns for event in turn["tool_events"]]
    rewards = [float(for_people(episode["reward"])) for episode in episodes if episode["reward"] is not None]
    users = sum(any(turn["tool_events"] for turn in episode["turns"]) for episode in episodes)
    figures = {
        "mean reward": sum(rewards) / len(rewards) if rewards else math.nan,
        "share of episodes that call a tool": users / len(episodes),
        "share of tool calls that fail": sum(not event["ok"] for event in events) / len(events) if events else math.nan,
        "turns per episode": len(turns) / len(episodes),
        "sampled tokens per episode": sum(len(turn["completion_ids"]) for turn in turns) / len(episodes),
        "episodes recorded": float(len(episodes)),
    }
    return {label: value for label, value in figures.items() if math.isfinite(value)}


def _choose_episodes(folder: Path, decode: Decode | None, limits: ReportLimits) -> _Chosen:
    files = _files(folder)
    picked = _spread(files, limits.files)
    evaluations = _evaluations(folder)
    chosen = _Chosen(files_skipped=len(files) - len(picked))
    per_file: list[list[JsonObject]] = []
    for path in picked:
        try:
            records = list(read_records(path))
            chosen.recorded += len(records)
            wanted = _few(path, records, limits)
            per_file.append([_episode(path, record, decode, limits) for record in wanted])
            if (heading := recorded_in(path, evaluations)) is not None:
                chosen.calls.setdefault(heading, []).extend(calls_of(records))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise DataError(f"{path} is no trajectory file ({type(error).__name__}: {error})") from error
    room = limits.episode_bytes
    # Rank by rank, so that every step has its first episodes in before any has its last.
    for rank in zip_longest(*per_file):
        for episode in rank:
            if episode is not None and (size := len(json.dumps(episode))) <= room:
                chosen.episodes.append(episode)
                room -= size
    chosen.episodes.sort(key=lambda episode: (episode["step"], episode["source"]))
    return chosen


def _spread(files: Sequence[Path], count: int) -> list[Path]:
    """At most `count` files, evenly spread, first and last included; evaluations keep at least half the places."""
    if len(files) <= count:
        return list(files)
    evaluations = [path for path in files if path.name.startswith("eval_")]
    steps = [path for path in files if not path.name.startswith("eval_")]
    for_evaluations = min(len(evaluations), max(count // 2, count - len(steps)))
    kept = {*_even(evaluations, for_evaluations), *_even(steps, count - for_evaluations)}
    return [path for path in files if path in kept]


def _even(files: Sequence[Path], count: int) -> list[Path]:
    if count <= 1 or len(files) <= count:
        return list(files[-count:]) if count else []
    return [files[round(index * (len(files) - 1) / (count - 1))] for index in range(count)]


def _few(path: Path, records: Sequence[JsonObject], limits: ReportLimits) -> list[JsonObject]:
    if path.name.startswith("eval_"):  # the same tasks in each evaluation: one sample each, in file order
        first: dict[str, JsonObject] = {}
        for record in records:
            first.setdefault(record["task_id"], record)
        return list(first.values())[: limits.episodes_per_evaluation]
    kinds: dict[tuple[Any, ...], list[JsonObject]] = {}  # every kind of outcome is shown before any is shown twice
    for record in records:
        kinds.setdefault((record["status"], record["cause"], str(record["reward"])), []).append(record)
    ranked = [record for rank in zip_longest(*kinds.values()) for record in rank if record is not None]
    return ranked[: limits.episodes_per_step]


def _episode(path: Path, record: JsonObject, decode: Decode | None, limits: ReportLimits) -> JsonObject:
    room = limits.tokens_per_episode
    turns = []
    for turn in record["turns"]:
        shown = _turn(turn, decode, limits, room)
        room -= len(shown["ids"])
        turns.append(shown)
    variant = path.stem.partition("_step_")[2].partition("_")[2] if path.name.startswith("eval_") else ""
    source = "training" if not path.name.startswith("eval_") else f"held-out{' ' + variant if variant else ''}"
    facts = {key: value for key, value in record["metadata"].items() if isinstance(value, (str, int, float))}
    return {
        "source": source,
        "step": step_of(path),
        "id": record["id"],
        "task": record["task_id"],
        "group": record["group_id"],
        "split": record["split"],
        "seed": record["seed"],
        "status": record["status"],
        "cause": record["cause"],
        "error": _cut(record["error"], limits),
        "truncated_by": record["truncated_by"],
        "reward": for_people(record["reward"]),
        "rewards": for_people(record["rewards"]),
        "facts": {key: _cut(value, limits) if isinstance(value, str) else value for key, value in facts.items()},
        "seconds": for_people(record["timings"].get("total")),
        "prompt": [_message(message, limits) for message in record["prompt"]],
        "turns": turns,
    }


def _turn(turn: JsonObject, decode: Decode | None, limits: ReportLimits, room: int) -> JsonObject:
    ids = [*turn["prompt_new_ids"], *turn["completion_ids"]]
    given = len(turn["prompt_new_ids"])
    versions: list[int | None] = [None] * len(ids)
    for version, start, end in turn["versions"]:
        versions[given + start : given + end] = [version] * (end - start)
    logprobs = [None] * given + [_rounded(value) for value in turn["logprobs"]]
    pieces = turn.get("tokens") or (decode(ids) if decode is not None else None)
    answered = {event["call"]["id"] for event in turn["tool_events"]}
    others = [message for message in turn["observation"] if message.get("tool_call_id") not in answered]
    shown = max(min(room, len(ids)), 0)
    return {
        "text": _cut(turn["text"], limits),
        "stop": turn["stop_reason"],
        "seconds": for_people(turn["timings"]),
        "kept": turn["prompt_kept"],
        "ids": ids[:shown],
        "mask": turn["mask"][:shown],
        "logprobs": logprobs[:shown],
        "versions": versions[:shown],
        "pieces": pieces[:shown] if pieces else None,
        "tokens_left_out": len(ids) - shown,
        "events": [_event(event, limits) for event in turn["tool_events"]],
        "observation": [_message(message, limits) for message in others],
    }


def _event(event: JsonObject, limits: ReportLimits) -> JsonObject:
    call = event["call"]
    return {
        "name": _cut(call["name"], limits),
        "arguments": {_cut(key, limits): _argument(value, limits) for key, value in (call["arguments"] or {}).items()},
        "raw": _cut(call["raw"], limits),
        "error": _cut(call["error"] or "", limits),
        "result": _cut(event["result"], limits),
        "ok": event["ok"],
        "seconds": for_people(event["duration_s"]),
    }


def _argument(value: Any, limits: ReportLimits) -> str:
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), limits)


def _message(message: JsonObject, limits: ReportLimits) -> JsonObject:
    texts = (part["text"] if "text" in part else f"[image, {part['media_type']}]" for part in message["parts"])
    return {"role": message["role"], "text": _cut("".join(texts), limits)}


def _cut(text: str, limits: ReportLimits) -> str:
    half = limits.characters_per_text // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _rounded(value: float | str) -> float | str:
    return round(value, 5) if isinstance(value, float) else value
