"""Figures of tool calls and sandboxes, as metrics of a step. Percentiles worked out by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from miles_agents.contracts import SandboxCounters
from miles_agents.errors import FailureCause, ToolErrorKind
from miles_agents.rollout.metrics import rollout_metrics, tool_metrics
from miles_agents.rollout.sandbox_meter import SandboxMeter, sandbox_metrics
from miles_agents.runs.tool_figures import facts_of, tool_figures
from miles_agents.tools.sandboxes import ScriptedSandboxes
from miles_agents.types import (
    EpisodeStatus,
    StopReason,
    ToolCall,
    ToolEvent,
    Trajectory,
    TrajectoryGroup,
    Turn,
    VersionSpan,
)

TABLE = (Path(__file__).parents[1] / "docs/run-folder.md").read_text(encoding="utf-8")


def event(
    name: str = "python", kind: str = "", *, took: float = 0.0, waited: float = 0.0, error: str | None = None
) -> ToolEvent:
    malformed = kind == "malformed_call" or error is not None
    call = ToolCall(
        id="c", name=name, arguments=None if malformed else {}, raw="", error=(error or "bad") if malformed else None
    )
    return ToolEvent(
        call=call,
        result="",
        ok=not kind and not malformed,
        error_kind=ToolErrorKind(kind),
        duration_s=took,
        wait_s=waited,
    )


def episode(*events: ToolEvent, lost: bool = False, truncated_by: str = "") -> Trajectory:
    turn = Turn(
        prompt_ids=np.ones(2, np.int32),
        completion_ids=np.ones(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        stop_reason=StopReason.STOP,
        versions=(VersionSpan(0, 0, 1),),
        tool_events=events,
    )
    status = EpisodeStatus.TRUNCATED if truncated_by else EpisodeStatus.COMPLETED
    return Trajectory(
        id="d0/0",
        task_id="t",
        group_id="d0",
        turns=(turn,),
        status=EpisodeStatus.FAILED if lost else status,
        cause=FailureCause.SANDBOX if lost else None,
        reward=None if lost else 1.0,
        truncated_by=truncated_by,
    )


def measured(*episodes: Trajectory, tools: Sequence[str] = ("python",)) -> dict[str, float]:
    group = TrajectoryGroup(id="d0", task_id="t", draw=0, version=0, trajectories=episodes)
    return rollout_metrics([group], trainer_version=0, tools=tools)


# ---------------------------------------------------------------------- counts


def test_calls_and_errors_are_counted_by_tool_and_kind_over_lost_episodes_too() -> None:
    row = measured(
        episode(event(), event(kind="timeout"), event(kind="error")),
        episode(event(kind="error"), event("shell", "crashed"), lost=True),
        tools=("python", "shell", "submit"),
    )
    assert {name: value for name, value in row.items() if name.startswith("tool/") and value} == {
        "tool/python/calls": 4.0,
        "tool/python/error_rate": 0.75,
        "tool/python/errors/error": 2.0,
        "tool/python/errors/timeout": 1.0,
        "tool/shell/calls": 1.0,
        "tool/shell/error_rate": 1.0,
        "tool/shell/errors/crashed": 1.0,
    }
    assert row["tool/submit/calls"] == row["tool/submit/error_rate"] == 0.0


def test_names_the_model_makes_up_make_no_metrics_whatever_is_wrong_with_the_calls() -> None:
    kinds = ("unknown_tool", "malformed_call", "not_executed")
    made_up = [event(f"made_up_{number}/x", kinds[number % 3]) for number in range(300)]
    plain = measured(episode(event()))
    row = measured(episode(event(), *made_up, event("", "malformed_call")))
    assert set(row) == set(plain)
    assert row["tool/unknown_calls"] == 301.0
    assert row["tool/python/calls"] == 1.0


def test_a_malformed_call_of_a_real_tool_is_counted_at_the_tool() -> None:
    row = measured(episode(event(kind="malformed_call"), event(kind="bad_arguments")))
    assert row["tool/python/errors/malformed_call"] == row["tool/python/errors/bad_arguments"] == 1.0
    assert row["tool/unknown_calls"] == 0.0


def test_the_same_metrics_are_there_each_step_whatever_was_called() -> None:
    quiet, busy = measured(episode()), measured(episode(event(kind="error", took=1.0)))
    assert set(busy) - set(quiet) == {
        f"time/tool/python/{what}_{p}_s" for what in ("latency", "wait") for p in ("p50", "p90", "p99")
    }
    assert not set(quiet) - set(busy)


def test_errors_of_an_environment_that_states_no_kind_are_told_apart_all_the_same() -> None:
    facts = [facts_of(event(error="what is this")), facts_of(ToolEvent(call=event().call, result="", ok=False))]
    assert [each.error for each in facts] == [ToolErrorKind.MALFORMED_CALL, ToolErrorKind.ERROR]


def test_a_tool_that_ran_without_being_declared_has_its_figures() -> None:
    table = tool_figures([facts_of(event("from_a_server")), facts_of(event("guess", "unknown_tool"))])
    assert list(table.tools) == ["from_a_server"]
    assert table.unknown_calls == 1


def test_names_become_what_every_tracker_takes_and_two_of_one_key_are_one_tool() -> None:
    row = measured(episode(event("a/b c"), event("a.b-c"), event("a_b_c"), event("ä")), tools=("a/b c",))
    assert row["tool/a_b_c/calls"] == 2.0
    assert row["tool/a.b-c/calls"] == row["tool/_/calls"] == 1.0
    assert all(re.fullmatch(r"[A-Za-z0-9_./-]+", name) for name in row)
    # No metric is named like a folder of others: trackers that keep a file a metric could not keep both.
    assert not [name for name in row if any(other.startswith(f"{name}/") for other in row)]


def test_episodes_cut_off_by_their_deadline_are_counted() -> None:
    row = measured(episode(truncated_by="deadline"), episode(truncated_by="max_turns"), episode())
    assert row["rollout/deadline_episodes"] == 1.0


# ---------------------------------------------------------------------- times


def test_percentiles_are_of_the_calls_that_reached_the_tool_its_work_and_its_waiting_apart() -> None:
    # Over 0, 1 … 100 the k-th percentile is k.
    calls = [event(took=float(n), waited=n / 10, kind="timeout" if n == 100 else "") for n in range(101)]
    never_ran = [event(took=999.0, waited=999.0, kind=k) for k in ("bad_arguments", "malformed_call", "not_executed")]
    row = measured(episode(*calls, *never_ran))
    latency = [row[f"time/tool/python/latency_{p}_s"] for p in ("p50", "p90", "p99")]
    wait = [row[f"time/tool/python/wait_{p}_s"] for p in ("p50", "p90", "p99")]
    assert latency == pytest.approx([50.0, 90.0, 99.0])
    assert wait == pytest.approx([5.0, 9.0, 9.9])
    assert row["tool/python/calls"] == 104.0


def test_only_what_is_under_time_and_throughput_depends_on_how_long_calls_take() -> None:
    slow, fast = (measured(episode(event(took=t, waited=t), event(kind="error", took=t))) for t in (0.1, 7.0))
    changed = {name for name in slow if slow[name] != fast[name]}
    assert len(changed) == 7
    assert all(name.startswith(("time/", "throughput/")) for name in changed)


# ---------------------------------------------------------------------- sandboxes


def test_sandbox_metrics_are_what_was_added_since_the_reading_before() -> None:
    provider = ScriptedSandboxes.printing("")
    meter = SandboxMeter(provider)
    counted = provider.counters
    counted.starts, counted.start_s, counted.pool_wait_s, counted.respawns = 4, 2.0, 0.5, 1
    assert meter.read() == {
        "sandbox/starts": 4.0,
        "sandbox/failed_starts": 0.0,
        "sandbox/start_mean_s": 0.5,
        "sandbox/pool_wait_s": 0.5,
        "sandbox/respawns": 1.0,
        "sandbox/sessions_lost": 0.0,
        "sandbox/failed_removals": 0.0,
    }
    counted.starts, counted.start_s, counted.failed_starts = 5, 2.25, 3
    counted.sessions_lost = counted.failed_removals = 2
    row = meter.read()
    assert (row["sandbox/starts"], row["sandbox/start_mean_s"], row["sandbox/failed_starts"]) == (1.0, 0.25, 3.0)
    assert (row["sandbox/respawns"], row["sandbox/sessions_lost"], row["sandbox/failed_removals"]) == (0.0, 2.0, 2.0)
    assert "sandbox/start_mean_s" not in meter.read()  # the mean of nothing


def test_every_counter_of_the_sandboxes_is_a_metric() -> None:
    names = {name.removeprefix("sandbox/") for name in sandbox_metrics(SandboxCounters(), SandboxCounters(starts=1))}
    assert names == {*SandboxCounters.__dataclass_fields__} - {"start_s"} | {"start_mean_s"}


def test_a_run_without_a_sandbox_has_no_metrics_of_any() -> None:
    assert SandboxMeter(None).read() == {}


# ---------------------------------------------------------------------- documents


def test_every_metric_of_tools_and_sandboxes_is_in_the_table_of_the_run_folder() -> None:
    documented = set(re.findall(r"`([a-z]+/[\w/]+)`", TABLE))
    written = tool_metrics([episode(event())], ["python"]) | sandbox_metrics(
        SandboxCounters(), SandboxCounters(starts=1)
    )
    shapes = {re.sub(r"errors/\w+", "errors/KIND", name.replace("/python/", "/NAME/")) for name in written}
    assert len(shapes) == 17
    assert sorted(shapes - documented) == []


def test_every_kind_of_error_is_in_the_table_of_the_run_folder() -> None:
    kinds = {name.rpartition("/")[2] for name in tool_metrics([], ["python"]) if "/errors/" in name}
    assert kinds == set(
        re.findall(r"^\| `(\w+)` \| ", TABLE.partition("| kind | the call |")[2].partition("\n\n")[0], re.M)
    )
