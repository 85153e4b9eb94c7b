"""The HTML report: complete, self-contained, and deaf to what episodes say."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from miles_agents.errors import DataError, FailureCause, RunFolderError, ToolErrorKind
from miles_agents.report import main
from miles_agents.runs import RunFolder, write_trajectories
from miles_agents.runs.html_report import ReportLimits, report_data, write_report
from miles_agents.types import (
    EpisodeStatus,
    Message,
    StopReason,
    ToolCall,
    ToolEvent,
    Trajectory,
    Turn,
    VersionSpan,
)

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "&lt;<!-- {{DATA}}\u2028\ud800"
)


def pieces(ids) -> list[str]:
    return [f"{HOSTILE}{number}" for number in ids]


def episode(
    name: str, reward: float | None = 1.0, *, tokens: int = 3, task: str = "t", hostile: str = HOSTILE
) -> Trajectory:
    call = ToolCall(id="c", name=hostile, arguments={"code": hostile, "n": 3}, raw=hostile)
    turn = Turn(
        prompt_ids=np.arange(2, dtype=np.int32),
        completion_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.full(tokens, -0.5, np.float32),
        stop_reason=StopReason.STOP,
        versions=(VersionSpan(4, 0, 1), VersionSpan(5, 1, tokens)),
        text=hostile,
        tool_events=(ToolEvent(call=call, result=hostile, ok=False),),
        observation=(Message.tool(hostile, call=call), Message.user(hostile)),
    )
    return Trajectory(
        id=name,
        task_id=task,
        group_id="g",
        turns=(turn,),
        status=EpisodeStatus.FAILED if reward is None else EpisodeStatus.COMPLETED,
        cause=None if reward is not None else FailureCause.TOOL,
        error=hostile if reward is None else "",
        reward=reward,
        rewards={"answer": reward or 0.0},
        prompt=(Message.user(hostile),),
        metadata={"level": 2, "note": hostile},
    )


@pytest.fixture
def run(tmp_path: Path):
    with RunFolder.create(tmp_path / "outputs", "<b>run", config=f"note: {HOSTILE!r}\n") as run:
        run.log_metrics(0, {"eval/accuracy": 0.25})
        run.log_metrics(1, {"reward/raw_reward": 0.5, "train/loss": float("nan"), f"x/{HOSTILE!r}": 1.0})
        run.log_metrics(2, {"reward/raw_reward": 0.75, "eval/accuracy": 1.0})
        run.write_summary({"accuracy_before": 0.25, "accuracy_after": 1.0, "seed": 0, "note": HOSTILE})
        write_trajectories(run.evaluation_file(0), [episode("e0", 0.0)], decode=pieces)
        write_trajectories(run.trajectories_file(1), [episode("s1"), episode("s2", None)], decode=pieces)
        write_trajectories(run.evaluation_file(2), [episode("e2", 1.0)], decode=pieces)
        write_trajectories(run.evaluation_file(2, "no_tool"), [episode("n2", 0.0)], decode=pieces)
        yield run


class Page(HTMLParser):
    """What an HTML parser makes of the file."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._in_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def test_hostile_text_ends_no_script_and_adds_no_element(run: RunFolder) -> None:
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert len(page.scripts) == 2
    assert [tag for tag, _ in page.tags if tag == "img"] == []
    data = json.loads(page.scripts[0])
    texts = {message["text"] for shown in data["episodes"] for message in shown["prompt"]}
    as_shown = HOSTILE.replace("\ud800", "\ufffd")  # exactly what was said, but for what is no character
    assert texts == {as_shown}
    assert data["summary"]["note"] == as_shown
    assert "owned" not in page.scripts[1]


def test_the_file_asks_for_nothing_from_anywhere(run: RunFolder) -> None:
    page = Page(write_report(run).read_text(encoding="utf-8"))
    for tag, attributes in page.tags:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        if tag == "link":
            assert attributes["href"] == "data:,"
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    script_rule = re.search(r"script-src ([^;]*)", policy)
    assert script_rule is not None
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", script_rule[1])  # this page's script and no other
    assert "http://" not in page.scripts[1].replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in page.scripts[1]


def test_the_data_hold_verdict_curves_table_and_episodes(run: RunFolder) -> None:
    data = report_data(run, decode=None, limits=ReportLimits())
    assert data["verdict"] == {"kind": "better", "text": "Held-out accuracy rose from 0.250 to 1.000 (+0.750)."}
    assert data["metrics"]["steps"] == [0, 1, 2]
    assert data["metrics"]["series"]["eval/accuracy"] == [0.25, None, 1.0]
    assert data["metrics"]["series"]["train/loss"] == [None, "nan", None]
    rows = {row["label"]: (row["before"], row["after"]) for row in data["comparison"]}
    assert rows["accuracy"] == (0.25, 1.0)
    assert rows["mean reward"] == (0.0, 1.0)
    assert rows["share of tool calls that fail"] == (1.0, 1.0)
    assert [(e["source"], e["step"], e["status"], e["cause"]) for e in data["episodes"]] == [
        ("held-out", 0, "completed", None),
        ("training", 1, "completed", None),
        ("training", 1, "failed", "tool"),
        ("held-out", 2, "completed", None),
        ("held-out no_tool", 2, "completed", None),
    ]


def called(*events: ToolEvent) -> Trajectory:
    played = episode("c", hostile="x")
    return replace(played, turns=(replace(played.turns[0], tool_events=events),))


def tool_event(name: str, kind: ToolErrorKind = ToolErrorKind.NONE, *, took: float, waited: float = 0.0) -> ToolEvent:
    call = ToolCall(id="c", name=name, arguments={}, raw="")
    return ToolEvent(call=call, result="", ok=not kind, error_kind=kind, duration_s=took, wait_s=waited)


def test_the_tools_of_training_and_of_the_first_and_last_evaluation_have_a_row_each(run: RunFolder) -> None:
    first = [tool_event("python", took=1.0, waited=0.5), tool_event("python", ToolErrorKind.TIMEOUT, took=3.0)]
    write_trajectories(run.evaluation_file(0), [called(*first)])
    write_trajectories(run.evaluation_file(1), [called(tool_event("between", took=9.0))])
    for step in (1, 2):
        events = [tool_event("python", took=float(step)), tool_event("guess", ToolErrorKind.UNKNOWN_TOOL, took=0.0)]
        write_trajectories(run.trajectories_file(step), [called(*events)])
    write_trajectories(run.evaluation_file(2), [called(tool_event("shell", ToolErrorKind.NOT_EXECUTED, took=0.0))])
    write_trajectories(run.evaluation_file(2, "no_tool"), [called(tool_event("python", took=9.0))])
    rows = {
        (row["tool"], row["episodes"]): row for row in report_data(run, decode=None, limits=ReportLimits())["tools"]
    }
    # At step 2 nothing shows that `shell` is a tool.
    assert list(rows) == [
        ("python", "held-out, step 0"),
        ("python", "training"),
        (None, "training"),
        (None, "held-out, step 2"),
    ]
    before, training = rows["python", "held-out, step 0"], rows["python", "training"]
    assert (before["calls"], before["errors"]) == (2, {"timeout": 1})
    assert before["latency"] == pytest.approx([2.0, 2.8, 2.98])
    assert before["wait"] == pytest.approx([0.25, 0.45, 0.495])
    assert (training["calls"], training["latency"][0]) == (2, 1.5)
    assert rows[None, "training"]["calls"] == 2


def test_times_that_are_no_numbers_and_hostile_names_are_shown_as_such(run: RunFolder) -> None:
    write_trajectories(run.evaluation_file(0), [called(tool_event("</script>" * 1000, took=float("nan")))])
    page = Page(write_report(run).read_text(encoding="utf-8"))
    rows = json.loads(page.scripts[0])["tools"]
    [row] = [row for row in rows if row["latency"] == ["nan"] * 3]
    assert len(row["tool"]) <= 81


def test_the_sandboxes_of_all_steps_are_summed_up_and_a_run_without_any_says_nothing(run: RunFolder) -> None:
    assert report_data(run, decode=None, limits=ReportLimits())["sandbox"] == {}
    run.log_metrics(3, {"sandbox/starts": 3.0, "sandbox/start_mean_s": 0.5, "sandbox/pool_wait_s": 0.25})
    run.log_metrics(4, {"sandbox/starts": 1.0, "sandbox/start_mean_s": 0.1, "sandbox/pool_wait_s": 0.5})
    run.log_metrics(5, {"sandbox/starts": 0.0, "sandbox/pool_wait_s": 0.0, "sandbox/respawns": 2.0})
    summed = report_data(run, decode=None, limits=ReportLimits())["sandbox"]
    assert summed == pytest.approx({"starts": 4.0, "start_mean_s": 0.4, "pool_wait_s": 0.75, "respawns": 2.0})


def test_a_file_of_an_earlier_version_without_kinds_and_waits_has_its_tools(run: RunFolder) -> None:
    write_trajectories(run.evaluation_file(0), [called(tool_event("python", ToolErrorKind.ERROR, took=1.0))])
    record = json.loads(run.evaluation_file(0).read_text())
    for event in record["turns"][0]["tool_events"]:
        del event["error_kind"], event["wait_s"]
    run.evaluation_file(0).write_text(json.dumps(record) + "\n")
    rows = report_data(run, decode=None, limits=ReportLimits())["tools"]
    [row] = [row for row in rows if row["tool"] == "python"]
    assert (row["errors"], row["wait"]) == ({"error": 1}, [0.0, 0.0, 0.0])


def test_each_token_has_its_mask_logprob_and_version(run: RunFolder) -> None:
    turn = report_data(run, decode=None, limits=ReportLimits())["episodes"][0]["turns"][0]
    assert turn["ids"] == [0, 1, 0, 1, 2]
    assert turn["mask"] == [0, 0, 1, 1, 1]
    assert turn["logprobs"] == [None, None, -0.5, -0.5, -0.5]
    assert turn["versions"] == [None, None, 4, 5, 5]
    assert turn["pieces"] == pieces([0, 1, 0, 1, 2])
    # the tool's answer is shown with the call; what else the environment said is shown once
    assert [message["role"] for message in turn["observation"]] == ["user"]


def test_token_texts_come_from_the_decoder_where_none_are_stored(run: RunFolder) -> None:
    write_trajectories(run.evaluation_file(0), [episode("e0")])
    limits = ReportLimits()
    assert report_data(run, decode=None, limits=limits)["episodes"][0]["turns"][0]["pieces"] is None
    shown = report_data(run, decode=lambda ids: [str(number) for number in ids], limits=limits)
    assert shown["episodes"][0]["turns"][0]["pieces"] == ["0", "1", "0", "1", "2"]


def test_every_outcome_of_a_step_is_shown_before_any_is_shown_twice(run: RunFolder) -> None:
    many = [episode(f"s{index}", 1.0) for index in range(50)] + [episode("lost", None), episode("zero", 0.0)]
    write_trajectories(run.trajectories_file(1), many)
    data = report_data(run, decode=None, limits=ReportLimits(episodes_per_step=4))
    assert [e["id"] for e in data["episodes"] if e["source"] == "training"] == ["s0", "lost", "zero", "s1"]
    assert (data["left_out"]["shown"], data["left_out"]["recorded"]) == (7, 55)


def test_a_long_run_is_thinned_evenly_and_says_so(run: RunFolder) -> None:
    for step in range(1, 101):
        write_trajectories(run.trajectories_file(step), [episode(f"s{step}", hostile="x")])
    data = report_data(run, decode=None, limits=ReportLimits(files=14))
    shown = [e["step"] for e in data["episodes"] if e["source"] == "training"]
    assert shown == [1, 11, 21, 31, 41, 51, 60, 70, 80, 90, 100]
    assert len([e for e in data["episodes"] if e["source"] != "training"]) == 3
    assert data["left_out"]["files_skipped"] == 103 - 14


def test_the_page_stays_small_however_long_the_episodes_are(run: RunFolder) -> None:
    long = [episode(f"s{index}", float(index), tokens=20_000, hostile="y" * 100_000) for index in range(6)]
    for step in range(1, 6):
        write_trajectories(run.trajectories_file(step), long)
    path = write_report(run, limits=ReportLimits(episode_bytes=1_000_000))
    assert path.stat().st_size < 1_400_000
    data = report_data(run, decode=None, limits=ReportLimits(episode_bytes=1_000_000))
    shown = [e for e in data["episodes"] if e["source"] == "training"]
    assert {e["step"] for e in shown} == {1, 2, 3, 4, 5}  # every step keeps its first
    assert shown[0]["turns"][0]["tokens_left_out"] == 20_002 - 3000
    assert "92000 characters left out" in shown[0]["turns"][0]["text"]


@pytest.mark.parametrize(
    ("summary", "kind", "text"),
    [
        ({}, "open", "no result yet"),
        ({"accuracy_before": 0.5, "accuracy_after": 0.25}, "worse", r"fell from 0\.500 to 0\.250 \(-0\.250\)"),
        ({"accuracy_before": 0.5, "accuracy_after": 0.5}, "same", r"stayed at 0\.500"),
    ],
)
def test_the_verdict_is_honest(run: RunFolder, summary: dict, kind: str, text: str) -> None:
    run.write_summary(summary)
    verdict = report_data(run, decode=None, limits=ReportLimits())["verdict"]
    assert verdict["kind"] == kind
    assert re.search(text, verdict["text"])


@pytest.mark.parametrize(
    ("before", "after", "rows"), [(0.25, 0.5, [(0.25, 0.5)]), (None, 0.5, [(None, 0.5)]), (None, None, [])]
)
def test_accuracy_with_tools_refused_is_compared_where_there_are_tools(
    run: RunFolder, before: float | None, after: float | None, rows: list
) -> None:
    run.write_summary({"no_tool_accuracy_before": before, "no_tool_accuracy_after": after})
    compared = report_data(run, decode=None, limits=ReportLimits())["comparison"]
    assert [(row["before"], row["after"]) for row in compared if "refused" in row["label"]] == rows


def test_an_unfinished_run_with_nothing_in_it_has_a_report(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "empty") as run:
        assert len(Page(write_report(run).read_text()).scripts) == 2


def test_a_broken_trajectory_file_is_named(run: RunFolder) -> None:
    run.trajectories_file(1).write_text('{"id": "x"}\n')
    with pytest.raises(DataError, match=r"step_000001\.jsonl is no trajectory file \(KeyError"):
        write_report(run)
    run.trajectories_file(1).write_text('{"id": \n')
    with pytest.raises(DataError, match=r"step_000001\.jsonl, line 1: not JSON"):
        write_report(run)


def test_a_path_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        write_report(tmp_path)


def test_the_command_writes_report_and_plot_again(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path.parent / "last")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(run.report_file), str(run.plot_file)]
    assert run.report_file.stat().st_size > 10_000
    assert run.plot_file.read_bytes().startswith(b"\x89PNG")


def test_the_command_answers_a_wrong_path_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "miles_agents.report", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "no run folder" in done.stderr


def test_a_real_browser_draws_the_page_and_runs_nothing_an_episode_said(run: RunFolder, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=2000 --dump-dom"
    command = [browser, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", write_report(run).as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=60)
    page = Page(done.stdout.decode("utf-8", errors="replace"))
    assert [tag for tag, _ in page.tags].count("svg") == 2  # accuracy and reward; the rest unfolds on demand
    classes = [a.get("class") for _, a in page.tags]
    assert classes.count("episode") == 5
    assert not {"img", "b"} & {tag for tag, _ in page.tags}
    assert "<title>owned" not in done.stdout.decode("utf-8", errors="replace")
